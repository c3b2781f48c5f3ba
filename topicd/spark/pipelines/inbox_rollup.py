"""Inboxes of all users of a chat store: chats, unread messages, the newest. Promise: of each user what the store itself
shows when it has applied the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from topicd.shards.chat import hlc, inbox, keys
from topicd.shards.chat.domains import name_of
from topicd.shards.chat.rows import InboxEntry
from topicd.shards.chat.store import USER_INBOX
from topicd.shards.chat.view import View
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines.chat_log import in_each, open_log
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark
from topicd.words import counted

COLUMNS = ("user", "chats", "unread_chats", "unread", "newest_ms")
SHOWN = 100  # users, those with most unread


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    archive: Path | None = None  # None: the live store
    top: int = SHOWN
    dry_run: bool = False


class Inbox(NamedTuple):
    """Of one user, or a part of it."""

    name: str = ""
    chats: int = 0
    unread_chats: int = 0
    unread: int = 0
    newest_ms: int = 0

    def plus(self, other: Inbox) -> Inbox:
        return Inbox(
            self.name or other.name,
            self.chats + other.chats,
            self.unread_chats + other.unread_chats,
            self.unread + other.unread,
            max(self.newest_ms, other.newest_ms),
        )


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    log = open_log(options.place, options.archive)
    report = Report("inbox-rollup", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.summary = f"would apply {log.entries:,} entries of {log.name}"
        return report
    users: dict[bytes, Inbox] = {}
    for part in in_each(spark, "inbox-rollup", log, of_view, progress):
        _into(users, part)
    order = sorted(users.items(), key=lambda item: (-item[1].unread, -item[1].chats, item[1].name or item[0].hex()))
    for user, found in order[: options.top]:
        report.rows.append({"user": found.name or user.hex(), **{name: getattr(found, name) for name in COLUMNS[1:]}})
    if len(users) > options.top:
        report.notes.append(f"{counted(len(users) - options.top, 'more user')}; --top shows them")
    unread = sum(found.unread for found in users.values())
    rows = sum(found.chats for found in users.values())
    report.totals = {"users": len(users), "inbox_rows": rows, "unread": unread}
    held = f"{counted(rows, 'chat')} in their inboxes and {counted(unread, 'unread message')}"
    report.summary = f"{counted(len(users), 'user')} with {held}"
    return report


def of_view(view: View) -> dict[bytes, Inbox]:
    users: dict[bytes, Inbox] = {}
    store = view.store
    for key, value in store.scan(USER_INBOX):
        user, entry = key[: keys.USER], InboxEntry.unpack(value)
        row = inbox.InboxRow(entry, inbox.progress(store, user, entry.chat))
        newest_ms = hlc.physical_ms(entry.last_ts)
        name = name_of(store, keys.user_name_key(user))
        _into(users, {user: Inbox(name, 1, int(row.unread > 0), row.unread, newest_ms)})
    return users


def _into(users: dict[bytes, Inbox], part: dict[bytes, Inbox]) -> None:
    for user, found in part.items():
        users[user] = users[user].plus(found) if user in users else found
