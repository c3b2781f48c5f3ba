"""Jobs of queues between frames and JSON: what is claimed, how it is told, which lease is meant."""

from __future__ import annotations

import re

from topicd._native import core
from topicd._native.interface import Decoded
from topicd.errors import FormatError
from topicd.gateway import errors
from topicd.gateway.records_json import data_text, label_text, meta_text
from topicd.ipc.protocol.wire import CLAIMED, JOB
from topicd.limits import CLAIM_MAX, MAX_NODE, MAX_U64

_LEASE = re.compile(r"lease_([0-9a-fA-F]+)")


class Job:
    """A job that somebody holds."""

    __slots__ = ("deadline", "deliveries", "lease", "record", "seq")

    def __init__(self, row: tuple[int, int, int, int], record: Decoded) -> None:
        self.seq, self.lease, self.deadline, self.deliveries = row
        self.record = record

    def text(self, topic: bytes = b"") -> bytes:
        """As JSON; `topic`: its name, as JSON, if it shall be told."""
        _, ts, _, tag, meta, data = self.record
        parts = [b'"topic":' + topic] if topic else []
        parts.append(
            b'"$seq":%d,"lease_id":"lease_%x","deadline":%d,"$ts":%d' % (self.seq, self.lease, self.deadline, ts)
        )
        if tag:
            parts.append(b'"$tag":' + label_text(tag))
        parts.append(b'"deliveries":%d,"data":%b' % (self.deliveries, data_text(data)))
        if meta:
            parts.append(b'"meta":' + meta_text(meta))
        return b"{" + b",".join(parts) + b"}"


class Claimed:
    """The answer to CLAIM, or what is pushed to a worker; in the order of seqs."""

    def __init__(self, raw: bytes | bytearray | memoryview) -> None:
        if len(raw) < CLAIMED.size:
            raise FormatError(f"a shard's jobs have {len(raw)} bytes, at least {CLAIMED.size} are needed")
        self.topic_id, self.ready, count = CLAIMED.unpack_from(raw)
        frames_at = CLAIMED.size + count * JOB.size
        if frames_at > len(raw):
            raise FormatError(f"a shard names {count} jobs in {len(raw)} bytes")
        rows = JOB.iter_unpack(memoryview(raw)[CLAIMED.size : frames_at])
        try:
            records = core.decode_frames(raw, frames_at, len(raw))
            if len(records) != count:
                raise ValueError(f"{len(records)} records for {count} jobs")
            self.jobs = sorted(map(Job, rows, records), key=lambda job: job.seq)
        except (ValueError, TypeError) as exc:
            raise FormatError(f"a shard sent jobs that are malformed: {exc.args[-1]}") from None


def checked_node(node: str | None) -> str:
    if not node:
        raise errors.invalid("node is needed: the worker's name")
    if len(node.encode()) > MAX_NODE:
        raise errors.invalid(f"node has at most {MAX_NODE} bytes")
    return node


def leases_of(seqs: list[int], lease_ids: list[str] | None) -> list[int]:
    """The number of each lease; 0: not checked."""
    if len(seqs) > CLAIM_MAX:
        raise errors.batch_too_large(f"at most {CLAIM_MAX} seqs in one request", CLAIM_MAX)
    if not lease_ids:
        return [0] * len(seqs)
    if len(lease_ids) != len(seqs):
        raise errors.invalid(f"lease_ids has {len(lease_ids)} entries for {len(seqs)} seqs")
    return [_number(text) for text in lease_ids]


def _number(text: str) -> int:
    if not text:
        return 0
    found = _LEASE.fullmatch(text)
    if found is None:
        raise errors.invalid(f"a lease id is lease_ and hex digits, not {text!r:.100}")
    # One that no lease has ever had is a stale one: it must not turn into "not checked".
    return min(int(found[1], 16) if len(found[1]) <= 16 else MAX_U64, MAX_U64) or MAX_U64
