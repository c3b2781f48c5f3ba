"""Jobs on the wire: what is put, claimed, pushed and finished, as values. Layouts: topicd.ipc.protocol.wire. Promise:
what cannot be a job's option is refused here, and whatever bytes a daemon sends, the outcome is a value or FormatError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import msgpack

from topicd._native import core
from topicd._native.interface import Decoded, Next
from topicd.client.core.arguments import milliseconds
from topicd.errors import FormatError, InvalidRequest
from topicd.ipc.protocol.messages import JobOptions
from topicd.ipc.protocol.wire import ACK, ACKED, CLAIM, CLAIMED, ENDED, FLAG_DONE, JOB, LEASED, OP_CLAIM, message
from topicd.limits import CLAIM_MAX, LEASE_MS_MAX, LEASE_MS_MIN, LONG_POLL_MS_MAX, MAX_NODE

Until: TypeAlias = Literal["done", "start", "time"]
OnConflict: TypeAlias = Literal["drop", "replace", "reschedule"]
NackKind: TypeAlias = Literal["release", "fail", "dead"]
Row: TypeAlias = tuple[int, int, int, int]  # seq, lease, deadline, deliveries
_SEQ = 8
_HELD = LEASED.size  # a JOB row begins like a LEASED one


# ---- put ----

_NO_OPTIONS = (None, None, None, None, None, "done", None, "drop")  # the arguments of job_options


def job_options(
    *,
    delay_ms: int | None = None,
    ready_at: datetime | int | None = None,
    priority: int | None = None,
    group: str | None = None,
    unique: str | None = None,
    until: Until = "done",
    unique_ms: int | None = None,
    on_conflict: OnConflict = "drop",
) -> dict[str, Any]:
    """Checked, and without what is the default."""
    given_all = (delay_ms, ready_at, priority, group, unique, until, unique_ms, on_conflict)
    if given_all == _NO_OPTIONS:
        return {}
    if delay_ms is not None and ready_at is not None:
        raise InvalidRequest("delay_ms and ready_at exclude each other")
    if unique is None and (until != "done" or unique_ms is not None or on_conflict != "drop"):
        raise InvalidRequest("until, unique_ms and on_conflict belong to a unique key")
    if (until == "time") != (unique_ms is not None):
        raise InvalidRequest("unique_ms is how long the key is held with until='time', and only then")
    if unique == "":
        raise InvalidRequest("a unique key has at least one character")
    given = {
        "delay_ms": delay_ms,
        "ready_at": milliseconds(ready_at) if isinstance(ready_at, datetime) else ready_at,
        "priority": priority,
        "group": group,
        "unique": unique,
        "until": until,
        "unique_ms": unique_ms,
        "on_conflict": on_conflict,
    }
    return JobOptions.from_wire({name: value for name, value in given.items() if value is not None}).to_wire()


def packed_options(options: dict[str, Any], count: int) -> bytes:
    """The same options for every job of a batch; empty if there are none."""
    if not options:
        return b""
    raw: bytes = msgpack.packb([[0, count, options]], use_bin_type=True)
    return raw


class Put(NamedTuple):
    """Where a job is. `new` is False if a job with its unique key was there already: `seq` is that job's."""

    seq: int
    new: bool = True


# ---- claim ----


def worker_name(node: str) -> bytes:
    if not isinstance(node, str) or not 0 < len(node.encode()) <= MAX_NODE:
        raise InvalidRequest(f"a worker's name is a string of 1 to {MAX_NODE} bytes, not {node!r:.200}")
    return node.encode()


def lease_of(lease_ms: int | None) -> int:
    """As it travels: 0 means the queue's."""
    if lease_ms is None:
        return 0
    return bounded("lease_ms", lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)


def bounded(what: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{what} is an integer from {low} to {high}, not {value!r:.100}")
    return value


def claim_body(topic_id: int, most: int, lease_ms: int, wait_ms: int, node: bytes, rows: bytes = b"") -> bytes:
    """`rows`: LEASED rows of jobs that are finished first; the request has the flag DONE then."""
    return CLAIM.pack(topic_id, most, lease_ms, min(wait_ms, LONG_POLL_MS_MAX), len(node)) + node + rows


class Acked(NamedTuple):
    """How many jobs were finished by this, and the seqs of those that were not ours any more."""

    acked: int
    skipped: list[int]
    ready: int = 0
    in_flight: int = 0


NOTHING_ACKED = Acked(0, [])


class Claimed(NamedTuple):
    """JOB rows are buffer[rows_at:frames_at], their records buffer[frames_at:end], in the same order."""

    topic_id: int
    ready: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    buffer: bytes | bytearray
    rows_at: int
    frames_at: int
    end: int
    finished: Acked = NOTHING_ACKED  # what became of the jobs that were finished first

    def rows(self) -> list[Row]:
        """Of each job."""
        return list(JOB.iter_unpack(memoryview(self.buffer)[self.rows_at : self.frames_at]))

    def records(self) -> list[Decoded]:
        """Of each job; copied."""
        try:
            found = core.decode_frames(self.buffer, self.frames_at, self.end)
        except ValueError as exc:
            raise FormatError(f"the daemon sent jobs that are malformed: {exc.args[-1]}") from None
        if len(found) != self.count:
            raise FormatError(f"the daemon sent {len(found)} records for {self.count} jobs")
        return found

    def payloads(self) -> list[bytes]:
        """The data of each job, and nothing else of it."""
        try:
            return core.payloads(self.buffer, self.frames_at, self.end)
        except ValueError as exc:
            raise FormatError(f"the daemon sent jobs that are malformed: {exc.args[-1]}") from None

    def leased(self) -> bytes:
        """LEASED rows of all of them, to finish them with."""
        return b"".join(_leases_of(self.count).unpack_from(self.buffer, self.rows_at))


class OneClaimed:
    """What `Claimed` says, of one job that came when another was finished."""

    __slots__ = ("next", "ready")

    count = 1

    def __init__(self, found: Next) -> None:
        self.ready = found[0]
        self.next = found

    @property
    def finished(self) -> Acked:
        return Acked(1, [], self.ready)

    def rows(self) -> list[Row]:
        return [self.next[1:5]]

    def records(self) -> list[Decoded]:
        return [(self.next[1], *self.next[5:])]

    def payloads(self) -> list[bytes]:
        return [self.next[9]]

    def leased(self) -> bytes:
        return LEASED.pack(self.next[1], self.next[2])


def next_request(topic_id: int, node: bytes) -> bytes:
    """The whole message of a claim that finishes one job and takes the next, whose id and row are 0 yet."""
    return message(OP_CLAIM, 0, claim_body(topic_id, 1, 0, 0, node, bytes(LEASED.size)), FLAG_DONE)


def parse_claimed(buffer: bytes | bytearray, start: int, end: int, *, done: bool = False) -> Claimed:
    """`done`: of a claim that finished jobs first."""
    rows_at, finished = start + CLAIMED.size, NOTHING_ACKED
    if rows_at > end:
        raise FormatError(f"the daemon's jobs have {end - start} bytes, at least {CLAIMED.size} are needed")
    topic_id, ready, count = CLAIMED.unpack_from(buffer, start)
    if done:
        if rows_at + ENDED.size > end:
            raise FormatError(f"the daemon's jobs have {end - start} bytes and say nothing of those that were finished")
        acked, skipped = ENDED.unpack_from(buffer, rows_at)
        seqs_at = rows_at + ENDED.size
        rows_at = seqs_at + skipped * _SEQ
        if rows_at > end:
            raise FormatError(f"the daemon names {skipped} skipped jobs in {end - start} bytes")
        finished = Acked(acked, _seqs(buffer, seqs_at, rows_at), ready)
    frames_at = rows_at + count * JOB.size
    if frames_at > end:
        raise FormatError(f"the daemon names {count} jobs in {end - start} bytes")
    return Claimed(topic_id, ready, count, buffer, rows_at, frames_at, end, finished)


@lru_cache(1_024)
def _leases_of(count: int) -> struct.Struct:
    """The LEASED part of so many JOB rows."""
    return struct.Struct("<" + f"{_HELD}s{JOB.size - _HELD}x" * count)


# ---- finish ----


def leased_rows(held: Iterable[tuple[int, int]]) -> bytes:
    """(seq, lease) of each."""
    pack = LEASED.pack
    return b"".join([pack(seq, lease) for seq, lease in held])


def ack_body(topic_id: int, rows: bytes, node: bytes = b"") -> bytes:
    """Without a node: whoever holds them, by the numbers of the leases."""
    return ACK.pack(topic_id, len(rows) // LEASED.size, len(node)) + node + rows


def row_pieces(rows: bytes) -> list[bytes]:
    """As many rows as one request takes, each."""
    most = CLAIM_MAX * LEASED.size
    return [rows[at : at + most] for at in range(0, len(rows), most)]


def parse_acked(buffer: bytes | bytearray, start: int, end: int) -> Acked:
    if end - start < ACKED.size:
        raise FormatError(f"the daemon's answer to ACK has {end - start} bytes, at least {ACKED.size} are needed")
    _, ready, in_flight, acked, skipped = ACKED.unpack_from(buffer, start)
    if not skipped and end - start == ACKED.size:
        return Acked(acked, [], ready, in_flight)
    if end - start != ACKED.size + skipped * _SEQ:
        raise FormatError(f"the daemon's answer to ACK names {skipped} seqs in {end - start} bytes")
    return Acked(acked, _seqs(buffer, start + ACKED.size, end), ready, in_flight)


def _seqs(buffer: bytes | bytearray, start: int, end: int) -> list[int]:
    return [int.from_bytes(buffer[at : at + _SEQ], "little") for at in range(start, end, _SEQ)]


def chunks(seqs: Sequence[int]) -> list[Sequence[int]]:
    """As many as one request takes, each."""
    return [seqs[at : at + CLAIM_MAX] for at in range(0, len(seqs), CLAIM_MAX)]
