"""Topic names that do not exist: which one was meant?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

import click

from topicd.cli.app import App
from topicd.cli.exits import CliError, Exit, hint_of
from topicd.cli.groups import did_you_mean
from topicd.errors import TopicdError, TopicNotFound

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client

LOOK_AT = 10_000
COMPLETE_AT_MOST = 100
COMPLETE_TIMEOUT_S = 1.0


@contextmanager
def known_topic(client: Client, topic: str) -> Iterator[None]:
    """Inside, TopicNotFound becomes an error that names topics of a similar name."""
    try:
        yield
    except TopicNotFound as exc:
        near = near_topics(client, topic)
        raise CliError(f"there is no topic {topic!r}{near}", Exit.NOT_FOUND, hint_of(exc), exc.code) from None


def near_topics(client: Client, topic: str) -> str:
    """`; did you mean …?` or nothing."""
    with suppress(TopicdError):
        names = [info.topic for info in islice(client.topics(), LOOK_AT) if info.topic != topic]
        return did_you_mean(topic, names)
    return ""


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's TAB: topics that begin so; nothing when the daemon is away."""
    import topicd

    with suppress(TopicdError, OSError):
        app = ctx.find_object(App) or App()
        with topicd.connect(app.socket, timeout=COMPLETE_TIMEOUT_S) as client:
            return [info.topic for info in islice(client.topics(incomplete), COMPLETE_AT_MOST)]
    return []
