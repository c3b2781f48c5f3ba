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

VIEWS = ("process", "topic", "consumer")  # their first letters are the keys that change between them


@verb(
    "top",
    examples="topicctl top\ntopicctl top --by consumer\ntopicctl top --by topic --once\ntopicctl top --json --count 60",
    apart=("--once --count", "--by --json"),
)
@click.option(
    "--by",
    type=click.Choice(VIEWS),
    default="process",
    show_default=True,
    help="What to list: processes, the topics written last, the named consumers furthest behind.",
)
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, metavar="SECONDS", help="Time between two looks."
)
@click.option("--once", is_flag=True, help="Print one picture and leave.")
@click.option("--count", "pictures", type=click.IntRange(min=1), metavar="N", help="Leave after N pictures.")
@pass_app
def top(app: App, by: str, interval: float, once: bool, pictures: int | None) -> None:
    """Show rates, lags, latencies, rings and processes until q is pressed; p, t and c change what is listed.

    Of each delivery shard the 20 topics written last and the 20 named consumers furthest behind are known. With --json,
    one object per interval with all of it.
    """
    pictures, view = 1 if once else pictures, _View(by)
    with app.connect() as client:
        looks = _looks(client, interval, pictures, view)
        if app.json:
            for before, after in looks:
                app.out.lines([sample(before, after)])
        elif once:
            from topicd.cli.show.top_picture import render

            for before, after in looks:
                app.out.show(render(before, after, app.out.width if app.out.width < 1_000 else 160, by))
        elif not sys.stdout.isatty():
            raise CliError("top needs a terminal", Exit.USAGE, "use --once or --json")
        else:
            _live(looks, view)


class _View:
    def __init__(self, by: str) -> None:
        self.by = by

    def change(self, typed: str) -> bool:
        """The last key that means one; True: it is another than before."""
        before = self.by
        for key in typed:
            self.by = next((name for name in VIEWS if name[0] == key), self.by)
        return self.by != before


def sample(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    from topicd.cli.show.rates import consumer_rates, process_rates, seconds_between, topic_rates, totals

    return {
        "state": after["state"],
        "uptime_s": after["uptime_s"],
        "interval_s": seconds_between(before, after),
        "pressure": after.get("pressure"),
        "totals": asdict(totals(before, after)),
        "processes": [asdict(process) for process in process_rates(before, after)],
        "queues": after.get("queues") or [],
        "topics": [asdict(topic) for topic in topic_rates(before, after)],
        "consumers": [asdict(consumer) for consumer in consumer_rates(before, after)],
    }


def _looks(
    client: Client, interval: float, pictures: int | None, view: _View
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of STATUS answers; ends when q is pressed. A restart of the daemon is waited out. Who changes the view sees
    the same pair again."""
    before = _look(client)
    shown = 0
    last: tuple[dict[str, Any], dict[str, Any]] | None = None
    with _keys() as keys:
        while pictures is None or shown < pictures:
            ends = time.monotonic() + interval
            while typed := _typed(keys, ends):
                if "q" in typed:
                    return
                if view.change(typed) and last is not None:
                    yield last
            try:
                after = _look(client)
            except TopicdError as exc:
                if not exc.retriable:
                    raise
                continue
            if after["instance"] != before["instance"] or after["run"] != before["run"]:
                before = after
                continue
            last = (before, after)
            yield last
            before = after
            shown += 1


def _look(client: Client) -> dict[str, Any]:
    found = client.status()
    found["queues"] = queue_lines(client, found)
    return found


def _live(looks: Iterator[tuple[dict[str, Any], dict[str, Any]]], view: _View) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from topicd.cli.show.top_picture import ROWS_SHOWN, render

    console = Console(highlight=False)
    with Live(Text("looking…"), console=console, screen=True, auto_refresh=False) as live:
        for before, after in looks:
            rows = max(3, min(ROWS_SHOWN, console.height - 6))  # below the title and the head of the table
            live.update(render(before, after, console.width, view.by, rows), refresh=True)


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


def _typed(fd: int | None, ends: float) -> str:
    """What is typed until then, as soon as there is something; `q` where the terminal has gone."""
    left = ends - time.monotonic()
    if left <= 0:
        return ""
    if fd is None:
        time.sleep(left)
        return ""
    if not select.select([fd], [], [], left)[0]:
        return ""
    return os.read(fd, 64).decode("ascii", "replace").lower() or "q"
