"""The store as a view of its log. Promise: applying an entry depends on the store and the entry only, so the same log
gives the same bytes, however it was cut into batches; each batch holds the seq of its last entry, and what is refused
changes nothing.

An entry that cannot be read, or that breaks whoever applies it, is passed over as a whole: told in the log of the
daemon, counted, and noted in the store.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgpack

from topicd.errors import Internal, TopicdError
from topicd.shards.chat import identity, inbox, keys, membership, messages, retention
from topicd.shards.chat.changes import Changes, Metas, Told
from topicd.shards.chat.identity import Identity
from topicd.shards.chat.operations import (
    ALONE,
    Add,
    Clean,
    Entry,
    Ingest,
    LogEntry,
    Mark,
    MergeMember,
    Operation,
    PutIdentity,
    Remove,
    Retain,
    Send,
    Unreadable,
)
from topicd.shards.chat.store import DEFAULT, IDENTITY, SEEN_IDENTITY, Store

log = logging.getLogger(__name__)

Outcome = Any  # what the operation answers, or the TopicdError that refuses it
# What an entry of an unexpected shape brings about; what the engine reports is none of it.
_NONSENSE = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, struct.error)


_WHY_MAX = 300


def unreadable_of(store: Store | Changes) -> tuple[int, int, str]:
    """(how many entries of the log were passed over, the seq of the last one, why)."""
    raw = store.get(DEFAULT, keys.UNREADABLE)
    count, seq, why = msgpack.unpackb(raw) if raw else (0, 0, "")
    return count, seq, why


class Applied(NamedTuple):
    outcomes: list[list[Outcome]]  # of each entry's operations
    told: list[Told]


class View:
    def __init__(self, store: Store, topic_id: int = 0, listening: Collection[bytes] = ()) -> None:
        self.store = store
        self.metas = Metas(store)
        self._listening = listening
        self.topic_id = topic_id
        self.applied = self.cutoff_ms = 0
        self.reload()

    def reload(self) -> None:
        """The store is another one."""
        raw = self.store.get(DEFAULT, keys.APPLIED)
        if raw:
            self.topic_id, self.applied = keys.parse_u64(raw[:8]), keys.parse_u64(raw[8:])
        else:
            self.applied = 0
        self.cutoff_ms = retention.cutoff_of(self.store)
        self.metas.forget()

    def apply(self, entries: Sequence[tuple[int, LogEntry]]) -> Applied:
        """Entries with their seqs, which rise. Written when it returns."""
        done = Applied([], [])
        try:
            self._apply(entries, done)
        except _NONSENSE:
            # One of them: those before it go on as if it were not there.
            self.reload()
            rest = [one for one in entries if one[0] > self.applied]
            del done.outcomes[len(entries) - len(rest) :]
            for seq, entry in rest:
                self._apply_alone(seq, entry, done)
        return done

    def _apply_alone(self, seq: int, entry: LogEntry, done: Applied) -> None:
        try:
            self._apply([(seq, entry)], done)
        except _NONSENSE as exc:
            self.reload()
            why = f"{type(exc).__name__}: {exc}"
            self._apply([(seq, Unreadable(why))], done)
            count = len(entry.operations) if isinstance(entry, Entry) else 0
            done.outcomes[-1] += [Internal(f"the chat store cannot apply this: {why:.200}") for _ in range(count)]

    def _apply(self, entries: Sequence[tuple[int, LogEntry]], done: Applied) -> None:
        changes: Changes | None = None
        for seq, entry in entries:
            outcomes: list[Outcome] = []
            if isinstance(entry, Unreadable):
                changes = changes or Changes(self.store, self.metas, self._listening)
                self._note(changes, seq, entry)
                self.applied = seq
                done.outcomes.append(outcomes)
                continue
            if ids := [op.message.msg_id for op in entry.operations if isinstance(op, Send | Ingest)]:
                changes = changes or Changes(self.store, self.metas, self._listening)
                changes.foresee(ids)
            for op in entry.operations:
                if isinstance(op, ALONE) and changes is not None:
                    # Within an entry the seq stays the one before: after a crash the whole entry comes again, and
                    # whatever of it was done is recognised.
                    self._write(changes, self.applied, done)
                    changes = None
                changes = changes or Changes(self.store, self.metas, self._listening)
                outcomes.append(self._outcome(changes, op, entry.at_ms))
                if isinstance(op, ALONE):
                    self._write(changes, seq, done)
                    changes = None
            self.applied = seq
            done.outcomes.append(outcomes)
        if entries:
            self._write(changes or Changes(self.store, self.metas), self.applied, done)

    def _write(self, changes: Changes, seq: int, done: Applied) -> None:
        told = changes.finish(self.topic_id, seq)
        self.store.write(changes.writes)
        changes.keep()
        done.told.append(told)

    def _note(self, changes: Changes, seq: int, found: Unreadable) -> None:
        """Of what is passed over."""
        log.error(
            "an entry of the chat log cannot be understood and is passed over", extra={"seq": seq, "why": found.why}
        )
        count = unreadable_of(changes)[0] + found.entries
        changes.put(DEFAULT, keys.UNREADABLE, msgpack.packb([count, seq, found.why[:_WHY_MAX]]))

    def _outcome(self, changes: Changes, op: Operation, at_ms: int) -> Outcome:
        try:
            return self._do(changes, op, at_ms)
        except TopicdError as exc:
            return exc

    def _do(self, changes: Changes, op: Operation, at_ms: int) -> Any:
        if isinstance(op, Send):
            return messages.send(changes, op.message, at_ms, self.cutoff_ms, op.row)
        if isinstance(op, Ingest):
            return messages.put(changes, op.message, at_ms, self.cutoff_ms)
        if isinstance(op, Add):
            return membership.add(changes, op)
        if isinstance(op, Remove):
            return membership.remove(changes, op)
        if isinstance(op, MergeMember):
            return membership.merge(changes, op)
        if isinstance(op, PutIdentity):
            return self._put_identity(changes, op)
        if isinstance(op, Mark):
            return inbox.mark(changes, op)
        if isinstance(op, Retain):
            self.cutoff_ms = retention.retain(changes, op.cutoff_ms)
            return self.cutoff_ms
        return self._clean(changes, op)

    def _clean(self, changes: Changes, op: Clean) -> retention.Cleaned:
        return retention.clean(changes, self.store, op.limit)

    def _put_identity(self, changes: Changes, op: PutIdentity) -> bool:
        """Was it stored?"""
        incoming = Identity(op.stamp, identity.checked_blob(op.blob))
        raw = changes.get(IDENTITY, op.user)
        stored = None if raw is None else Identity.from_value(raw)
        if not identity.wins(incoming, stored):
            return False
        old_id = None if stored is None else identity.record_id(op.user, stored)
        new_id = identity.record_id(op.user, incoming)
        if old_id is not None:
            changes.delete(SEEN_IDENTITY, old_id)
        changes.put(IDENTITY, op.user, incoming.to_value())
        changes.put(SEEN_IDENTITY, new_id, op.user)
        changes.learn_user(op.user, op.user_name)
        changes.record("identities", old_id, new_id)
        return True
