"""`make screenshots`: every view of the dashboard, light and dark, two as a telephone shows them, into docs/images."""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from tests.browser import scene
from tests.browser.browsing import browser as open_browser
from tests.browser.browsing import visit
from tests.support.daemon import Daemon
from tests.support.web import Web

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SHOTS = {
    **{name: name for name in ("now", "topics", "queues", "consumers", "routers", "channels", "processes", "recovery")},
    "topic": "topics/orders",
    "topic-tail": "topics/orders/tail",
    "topic-config": "topics/orders/config",
    "topic-routers": "topics/orders/routers",
    "queue": "queues/thumbs",
    "queue-dead": "queues/thumbs/dead",
    "channel": "channels/lobby",
    "chat": "chat/team?user=ann",
}
SMALL = ("now", "topic")
COLOURS = 128  # of a picture: enough for flat surfaces, a fifth of the bytes
_WARM_S = 65.0


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as root,
        Daemon(Path(root), env=scene.ENVIRON, **scene.SETTINGS) as daemon,
        open_browser() as opened,
    ):
        web = scene.set_up(daemon)
        done = threading.Event()
        writer = threading.Thread(target=_write, args=(web, done))
        writer.start()
        try:
            _warm(opened, daemon)
            for name in SHOTS:
                for scheme in ("light", "dark"):
                    _shoot(opened, daemon, name, scheme, 1280, f"{name}-{scheme}.png")
            for name in SMALL:
                _shoot(opened, daemon, name, "light", 380, f"{name}-small.png")
        finally:
            done.set()
            writer.join()


def _write(web: Web, done: threading.Event) -> None:
    """So that something moves."""
    number = 0
    while not done.wait(0.02):
        number += 1
        web.write("orders", {"id": number, "state": "paid", "total": number % 97 * 1.5})
        if number % 3 == 0:
            web.write("orders.eu.paid", {"id": number})


def _warm(opened: Browser, daemon: Daemon) -> None:
    """Charts have something to show when somebody has looked for a while."""
    with visit(opened, daemon) as me:
        me.go("now")
        me.page.wait_for_timeout(_WARM_S * 1000)


def _shoot(opened: Browser, daemon: Daemon, name: str, scheme: str, width: int, path: str) -> None:
    height = 860 if width > 400 else 780
    with visit(opened, daemon, color_scheme=scheme, viewport={"width": width, "height": height}) as me:
        page = me.go(SHOTS[name])
        page.wait_for_selector(".shell code")
        page.wait_for_timeout(3_000 if name in ("now", "topics", "topic-tail") else 1_300)
        raw = page.screenshot()
    picture = Image.open(io.BytesIO(raw)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(IMAGES / path, optimize=True)
    sys.stdout.write(f"{path} {(IMAGES / path).stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    main()
