"""What a cutoff would remove from a chat store, chat by chat. Promise: together it is what `topicctl chat retain
--dry-run` says of a store that has applied the same entries; nothing is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from topicd.errors import InvalidRequest
from topicd.shards.chat import hlc, keys
from topicd.shards.chat.domains import name_of
from topicd.shards.chat.store import MESSAGES
from topicd.shards.chat.view import View
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines.chat_log import in_each, open_log
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark
from topicd.words import counted

COLUMNS = ("chat", "goes", "bytes", "stays", "newest")
SHOWN = 100  # chats, those that lose most


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    cutoff_ms: int
    archive: Path | None = None  # None: the live store
    top: int = SHOWN
    dry_run: bool = False


class Aged(NamedTuple):
    """Of one chat."""

    chat: str
    goes: int
    bytes: int
    stays: int
    newest_ms: int


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    if options.cutoff_ms < 0:
        raise InvalidRequest(f"a cutoff is a time, not {options.cutoff_ms}")
    log = open_log(options.place, options.archive)
    report = Report("retention-plan", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.summary = f"would apply {log.entries:,} entries of {log.name}"
        return report
    found = [
        aged
        for part in in_each(spark, "retention-plan", log, partial(of_view, cutoff_ms=options.cutoff_ms), progress)
        for aged in part
    ]
    goes = sorted((aged for aged in found if aged.goes), key=lambda aged: (-aged.bytes, aged.chat))
    for aged in goes[: options.top]:
        newest = datetime.fromtimestamp(aged.newest_ms / 1000, UTC).isoformat(timespec="seconds")
        report.rows.append({**aged._asdict(), "newest": newest})
    if len(goes) > options.top:
        report.notes.append(f"{counted(len(goes) - options.top, 'more chat')} with messages to lose; --top shows them")
    messages, size = sum(aged.goes for aged in goes), sum(aged.bytes for aged in goes)
    report.totals = {
        "cutoff_ms": options.cutoff_ms,
        "chats": len(goes),
        "messages": messages,
        "bytes": size,
        "stays": sum(aged.stays for aged in found),
    }
    report.summary = f"{counted(messages, 'message')} of {counted(len(goes), 'chat')}, {size:,} bytes, would go"
    return report


def of_view(view: View, cutoff_ms: int) -> list[Aged]:
    found: dict[bytes, Aged] = {}
    for key, value in view.store.scan(MESSAGES):
        place = keys.parse_message_key(key)
        ms = hlc.physical_ms(place.stamp)
        now = found.get(place.chat, Aged("", 0, 0, 0, 0))
        newest = max(now.newest_ms, ms)
        if ms <= cutoff_ms:
            found[place.chat] = now._replace(goes=now.goes + 1, bytes=now.bytes + len(value), newest_ms=newest)
        else:
            found[place.chat] = now._replace(stays=now.stays + 1, newest_ms=newest)
    store = view.store
    return [aged._replace(chat=name_of(store, keys.chat_name_key(chat)) or chat.hex()) for chat, aged in found.items()]
