"""A real browser on the dashboard. Promise: every error and warning on the console is noticed; waiting is for a
condition, until a deadline; what is started is ended.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.daemon import Daemon

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WAIT_MS = 20_000
VIEWS = ("now", "topics", "queues", "consumers", "routers", "channels", "chat", "processes", "recovery")


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise AssertionError("the browser tests need Chromium: apt-get install chromium (make chromium does it)")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """With a user's directory of its own that goes with it."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield opened
        finally:
            opened.close()


class Visit:
    """Somebody who looks at one daemon."""

    def __init__(self, context: BrowserContext, daemon: Daemon) -> None:
        self.context = context
        self.daemon = daemon
        self.said: list[str] = []  # errors and warnings of the console, and of the page
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        self.page: Page = context.new_page()
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"thrown: {error}"))

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.daemon.run.http_port.read_text().strip()}"

    def go(self, view: str) -> Page:
        """To a view, as if its link were opened anew."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}/#/{view}")
        self.page.wait_for_selector("main h1")
        return self.page

    def click(self, label: str, within: str = "body") -> None:
        self.page.locator(within).get_by_role("button", name=label, exact=True).first.click()

    def type_name(self, name: str) -> None:
        """What a dangerous action asks for."""
        self.page.locator("dialog input[name=typed]").fill(name)

    def toast(self, words: str) -> None:
        expect(self.page.locator("#toasts")).to_contain_text(words)

    def shows(self, words: str, within: str = "main") -> None:
        expect(self.page.locator(within)).to_contain_text(words)

    def faults(self) -> list[dict[str, Any]]:
        """What axe finds that is serious or worse."""
        self.page.evaluate(AXE.read_text() + "; undefined")
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        return [{"id": one["id"], "at": [node["html"][:120] for node in one["nodes"][:3]]} for one in serious]


@contextmanager
def visit(opened: Browser, daemon: Daemon, **options: Any) -> Iterator[Visit]:
    context = opened.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        yield Visit(context, daemon)
    finally:
        context.close()
