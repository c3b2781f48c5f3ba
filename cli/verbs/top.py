"""`topicctl top`: the daemon at work, live."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit
from topicd.cli.show.queues import queue_lines
from topicd.errors import TopicdError

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client


@verb("top", examples="topicctl top\ntopicctl top --interval 0.5\ntopicctl top --once\ntopicctl top --json --count 60")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, metavar="SECONDS", help="Time between two looks."
)
@click.option("--once", is_flag=True, help="Print one picture and leave.")
@click.option("--count", "pictures", type=click.IntRange(min=1), metavar="N", help="Leave after N pictures.")
@pass_app
def top(app: App, interval: float, once: bool, pictures: int | None) -> None:
    """Show rates, latencies, rings and processes until q is pressed.

    With --json, one object per interval.
    """
    pictures = 1 if once else pictures
    with app.connect() as client:
        looks = _looks(client, interval, pictures)
        if app.json:
            for before, after in looks:
                app.out.lines([sample(before, after)])
        elif once:
            from topicd.cli.show.top_picture import render

            for before, after in looks:
                app.out.show(render(before, after, app.out.width if app.out.width < 1_000 else 160))
        elif not sys.stdout.isatty():
            raise CliError("top needs a terminal", Exit.USAGE, "use --once or --json")
        else:
            _live(looks)


def sample(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    from topicd.cli.show.rates import process_rates, seconds_between, topic_rates, totals

    return {
        "state": after["state"],
        "uptime_s": after["uptime_s"],
        "interval_s": seconds_between(before, after),
        "pressure": after.get("pressure"),
        "totals": asdict(totals(before, after)),
        "processes": [asdict(process) for process in process_rates(before, after)],
        "queues": after.get("queues") or [],
        "topics": [asdict(topic) for topic in topic_rates(before, after)],
    }


def _looks(client: Client, interval: float, pictures: int | None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of STATUS answers; ends when q is pressed. A restart of the daemon is waited out."""
    before = _look(client)
    shown = 0
    with _keys() as keys:
        while pictures is None or shown < pictures:
            if _pressed(keys, interval):
                return
            try:
                after = _look(client)
            except TopicdError as exc:
                if not exc.retriable:
                    raise
                continue
            if after["instance"] != before["instance"] or after["run"] != before["run"]:
                before = after
                continue
            yield before, after
            before = after
            shown += 1


def _look(client: Client) -> dict[str, Any]:
    found = client.status()
    found["queues"] = queue_lines(client, found)
    return found


def _live(looks: Iterator[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from topicd.cli.show.top_picture import render

    console = Console(highlight=False)
    with Live(Text("looking…"), console=console, screen=True, auto_refresh=False) as live:
        for before, after in looks:
            live.update(render(before, after, console.width), refresh=True)


@contextmanager
def _keys() -> Iterator[int | None]:
    """The terminal's descriptor with single keys readable, or None where there is none."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    saved = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _pressed(fd: int | None, seconds: float) -> bool:
    """Waits so long; True as soon as q is pressed."""
    if fd is None:
        time.sleep(seconds)
        return False
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            typed = os.read(fd, 64)
            if not typed or b"q" in typed or b"Q" in typed:
                return True
    return False
