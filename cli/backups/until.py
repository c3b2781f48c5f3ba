"""A restore to a time or a seq, and of some topics only. Promise: afterwards a topic has no record behind that point,
and every one up to it that was not deleted, acknowledged or evicted before the backup was made. Seqs are not given out
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from topicd.backup.shelf import Shelf, Shelved
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import did_you_mean
from topicd.cli.private import SMALL, PrivateDaemon
from topicd.cli.show.human import local_time
from topicd.cli.show.progress import Bar
from topicd.client.blocking.client import Client
from topicd.limits import CHATS, ROUTERS
from topicd.paths import DataDir

# Definitions of routers are as they were in the backup; a stage that nobody has decided about is nobody's record yet.
_LEFT_ALONE = (ROUTERS, "topicd.stage.")
_INTERNAL = "topicd."


class Until(NamedTuple):
    """Where history ends."""

    ms: int | None = None
    seq: int | None = None

    @classmethod
    def of(cls, place: int | datetime | None, topics: Sequence[str]) -> Until | None:
        if place is None:
            return None
        if isinstance(place, datetime):
            return cls(ms=round(place.timestamp() * 1000))
        if len(topics) != 1:
            raise CliError("a seq counts within one topic: name it with --topic", Exit.USAGE)
        return cls(seq=place)


def no_backup(shelf: Shelf) -> CliError:
    return CliError(f"there is no backup in {shelf.root}", Exit.NOT_FOUND, "`topicctl backup create` makes one")


def choose_until(shelf: Shelf, until: Until) -> Shelved:
    """The first backup behind that time: what was deleted later is still in it. A damaged one is not passed over in
    silence: it may be the one that is wanted."""
    found = [one for one in shelf.list() if one.finished]
    if not found:
        raise no_backup(shelf)
    if until.ms is None:
        return found[-1]
    damaged = []
    for one in found:
        if one.manifest is None:
            damaged.append(one)
        elif one.manifest.cut_ms < until.ms:
            damaged.clear()
        else:
            for lost in damaged:
                click.echo(f"note: {lost.id} is passed over: {lost.problem}", err=True)
            return one
    last = max((one.manifest.cut_ms for one in found if one.manifest is not None), default=None)
    hint = f"{damaged[-1].id} is damaged: {damaged[-1].problem}" if damaged else ""
    raise CliError(f"the newest backup is of {local_time(last)}: what came later is in none", Exit.NOT_FOUND, hint)


def check_reaches(one: Shelved, until: Until) -> None:
    if one.manifest is not None and until.ms is not None and one.manifest.cut_ms < until.ms:
        told = local_time(one.manifest.cut_ms)
        raise CliError(f"{one.id} is of {told}: what came later is not in it", Exit.REFUSED)


def cut(data: Path, until: Until | None, topics: Sequence[str]) -> dict[str, Any]:
    """The directory as it shall be: other topics are deleted, newer records too."""
    with PrivateDaemon(data) as client, client:
        there = {row.topic: row for row in client.topics(internal=True)}
        for name in topics:
            if name not in there:
                raise CliError(f"the backup has no topic {name}{did_you_mean(name, list(there))}", Exit.NOT_FOUND)
        if topics:
            _keep_only(client, set(topics), list(there))
        chosen = list(topics) or [name for name in there if not name.startswith(_LEFT_ALONE)]
        if until is None:
            return {"topics": len(chosen), "deleted": 0, "queues": [], "routers": [], "chats": []}
        deleted, chats, late = 0, False, list[str]()
        with Bar("cut", len(chosen), "topics") as bar:
            for name in chosen:
                if name.startswith(CHATS) and _begins_later(client, data, name, until):
                    late.append(name)
                cut_away = client.cut(name, after_seq=until.seq, after_ts=until.ms)
                deleted, chats = deleted + cut_away, chats or (name.startswith(CHATS) and cut_away > 0)
                bar.advance(1)
        routers = [router.router for router in client.routers.list() if router.dest in chosen]
        queues = [name for name in chosen if there[name].type == "queue"]
    if chats:
        _end_chats_there(data)
    return {"topics": len(chosen), "deleted": deleted, "queues": queues, "routers": routers, "chats": late}


def _begins_later(client: Client, data: Path, name: str, until: Until) -> bool:
    """Its log was cut by retention since, and what stands for the rest is newer than that time."""
    base = any(_store_of(data, name).glob("base-*"))
    first = client.fetch(name, 0, limit=1).records
    return base and until.ms is not None and (not first or first[0].ts > until.ms)


def _store_of(data: Path, name: str) -> Path:
    return DataDir(data).chat(int(name.removeprefix(CHATS)))


def _end_chats_there(data: Path) -> None:
    """Stores are no part of a backup. Made from a log whose end is cut they go on behind the seqs that are gone."""
    with PrivateDaemon(data, {**SMALL, "chat": "true"}) as client, client:
        client.chat.rebuild(over_holes=True)


def _keep_only(client: Client, wanted: set[str], there: list[str]) -> None:
    for router in list(client.routers.list()):
        if not {router.source, router.dest} <= wanted:
            client.routers.delete(router.router)
    for name in there:
        if name not in wanted and not name.startswith(_INTERNAL):
            client.delete_topic(name)
