"""Bodies of requests about jobs, and what comes back, for tests that speak the protocol themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgpack

from topicd.frames import core
from topicd.ipc.protocol.wire import ACK, ACKED, APPEND, CLAIM, CLAIMED, ENDED, FLAG_DONE, JOB, LEASED


class Job(NamedTuple):
    seq: int
    lease: int
    deadline: int
    deliveries: int
    data: bytes
    tag: str | None = None


class Claimed(NamedTuple):
    topic_id: int
    ready: int
    jobs: list[Job]
    acked: int = 0  # of those that the claim was to finish first
    skipped: Sequence[int] = ()

    @property
    def seqs(self) -> list[int]:
        return [job.seq for job in self.jobs]


class Acked(NamedTuple):
    topic_id: int
    ready: int
    in_flight: int
    acked: int
    skipped: list[int]


def claim_body(
    topic_id: int,
    most: int = 1,
    *,
    node: bytes = b"w",
    lease_ms: int = 0,
    wait_ms: int = 0,
    done: Iterable[tuple[int, int]] = (),
) -> bytes:
    """`done`: jobs to finish first, (seq, lease); the request has the flag DONE then."""
    rows = b"".join([LEASED.pack(seq, lease) for seq, lease in done])
    return CLAIM.pack(topic_id, most, lease_ms, wait_ms, len(node)) + node + rows


def parse_claimed(body: bytes, flags: int = 0) -> Claimed:
    topic_id, ready, count = CLAIMED.unpack_from(body)
    at, acked, skipped = CLAIMED.size, 0, 0
    if flags & FLAG_DONE:
        acked, skipped = ENDED.unpack_from(body, at)
        at += ENDED.size
    seqs = [int.from_bytes(body[at + 8 * n : at + 8 * n + 8], "little") for n in range(skipped)]
    at += 8 * skipped
    rows = [JOB.unpack_from(body, at + JOB.size * n) for n in range(count)]
    frames = body[at + JOB.size * count :]
    records = core.decode_frames(frames, 0, len(frames))
    assert [row[0] for row in rows] == [record[0] for record in records], "rows and frames are in the same order"
    found = zip(rows, records, strict=True)
    jobs = [Job(*row, bytes(r[5]), r[3] and bytes(r[3]).decode()) for row, r in found]
    return Claimed(topic_id, ready, jobs, acked, seqs)


def ack_body(topic_id: int, rows: Iterable[tuple[int, int]], node: bytes = b"") -> bytes:
    packed = [LEASED.pack(seq, lease) for seq, lease in rows]
    return ACK.pack(topic_id, len(packed), len(node)) + node + b"".join(packed)


def parse_acked(body: bytes) -> Acked:
    topic_id, ready, in_flight, acked, skipped = ACKED.unpack_from(body)
    seqs = [int.from_bytes(body[at : at + 8], "little") for at in range(ACKED.size, len(body), 8)]
    assert len(seqs) == skipped
    return Acked(topic_id, ready, in_flight, acked, seqs)


def put_body(
    topic_id: int,
    datas: Sequence[bytes],
    options: list[list[Any]],
    *,
    producer: int = 0,
    number: int = 0,
    tag: bytes | None = None,
) -> bytes:
    """An append with the flag OPTIONS; options: [index of the first record, how many, map]."""
    packed = msgpack.packb(options)
    frames = core.encode_batch(datas, tag, None, None)
    return APPEND.pack(topic_id, producer, number, len(datas)) + len(packed).to_bytes(4, "little") + packed + frames
