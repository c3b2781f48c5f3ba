"""`topicctl tier`: which segments lie on the fast disk, which are packed, which are in the cold directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app
from topicd.cli.exits import Exit
from topicd.cli.groups import Group
from topicd.cli.show.human import count, size
from topicd.cli.show.progress import Bar
from topicd.cli.show.render import Column
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.words import counted

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client

tier = Group("tier", help="Show and steer which segments lie on the fast disk.", no_args_is_help=True)

COLUMNS = [
    Column("topic", shrink=True),
    Column("hot", right=True),
    Column("packed", right=True),
    Column("cold", right=True),
    Column("stored", right=True, rank=1),
    Column("on disk", right=True, rank=1),
    Column("waiting", right=True),
    Column("keeps", rank=2),
]
_TOPIC = click.argument("topic", shell_complete=complete_topics)
_LOOK_S = 0.2
_FAILED = 10  # looks in a row with the same trouble


@tier.verb(
    "status",
    examples="""
    topicctl tier status
    topicctl tier status orders --json | jq .segments
    """,
)
@click.argument("topic", required=False, shell_complete=complete_topics)
@pass_app
def status(app: App, topic: str | None) -> int:
    """Show where the segments of TOPIC lie; without it, of every topic that is not a queue.

    Exit code 1 if the cold directory is in trouble.
    """
    with app.connect() as client:
        names = [topic] if topic else [found.topic for found in client.topics() if found.type == "log"]
        with known_topic(client, topic or ""):
            rows = [client.tier_state(name) for name in names]
    if app.json:
        app.out.document(rows[0] if topic else rows)
    else:
        app.out.table(COLUMNS, [_row(row) for row in rows], empty="no topics")
        _remarks(app, rows)
    return Exit.FAILED if any(row["trouble"] for row in rows) else Exit.OK


@tier.verb("now", examples="topicctl tier now orders")
@_TOPIC
@click.option("--no-wait", is_flag=True, help="Do not wait until they have moved.")
@pass_app
def now(app: App, topic: str, no_wait: bool) -> int:
    """Move the segments of TOPIC that should lie elsewhere, without waiting for the next time it is looked at."""
    with app.connect() as client, known_topic(client, topic):
        return _move(app, client, topic, no_wait)


@tier.verb("recall", examples="topicctl tier recall orders")
@_TOPIC
@click.option("--no-wait", is_flag=True, help="Do not wait until they are back.")
@pass_app
def recall(app: App, topic: str, no_wait: bool) -> int:
    """Bring all segments of TOPIC back to the fast disk, plain, and keep them there.

    They stay because its hot_retain_segments and hot_retain_bytes are set to 0. To let them go again:
    `topicctl topic config TOPIC hot_retain_segments=none hot_retain_bytes=none`.
    """
    with app.connect() as client, known_topic(client, topic):
        client.state(topic, touch=False)  # one that is not there is not created
        client.configure(topic, hot_retain_segments=0, hot_retain_bytes=0)
        return _move(app, client, topic, no_wait)


def _move(app: App, client: Client, topic: str, no_wait: bool) -> int:
    head = client.state(topic, touch=False).head_seq
    row = client.tier_now(topic)
    if not no_wait:
        row = _watch(lambda: client.tier_state(topic), row, head)
    if app.json:
        app.out.document(row)
    else:
        app.out.table(COLUMNS, [_row(row)])
        _remarks(app, [row])
    return Exit.FAILED if row["trouble"] and not no_wait else Exit.OK


def _watch(look: Callable[[], dict[str, Any]], row: dict[str, Any], head: int) -> dict[str, Any]:
    """Until nothing waits any more that was there when it was asked for, or the same trouble stays."""
    total = left = row["waiting"]
    troubled = 0
    with Bar("moving segments", total, "segments") as bar:
        while 0 < row["waiting_from_seq"] <= head and troubled < _FAILED:
            time.sleep(_LOOK_S)
            row = look()
            bar.advance(max(left - row["waiting"], 0))
            left = row["waiting"]
            troubled = troubled + 1 if row["trouble"] else 0
    return row


def _remarks(app: App, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["unmovable"]:
            left = f"damaged, and left where it is: {counted(row['unmovable'], 'segment')}"
            app.out.text(app.out.styled(f"{row['topic']}: {left}", "yellow"))
    for trouble in sorted({row["trouble"] for row in rows if row["trouble"]}):
        app.out.text(app.out.styled(f"trouble: {trouble}", "yellow"))


def _row(row: dict[str, Any]) -> list[str]:
    segments = row["segments"]
    kept = [counted(row["hot_retain_segments"], "segment")] if row["hot_retain_segments"] else []
    kept += [size(row["hot_retain_bytes"])] if row["hot_retain_bytes"] else []
    return [
        row["topic"],
        count(segments["hot"]),
        count(segments["packed"]),
        count(segments["cold"] + segments["cold_packed"]),
        size(sum(row["bytes"].values())),
        size(sum(row["file_bytes"].values())),
        count(row["waiting"]),
        (row["tiered"] and ", ".join(kept)) or "all",
    ]
