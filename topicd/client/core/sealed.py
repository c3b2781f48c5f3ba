"""Sealed segments of a topic as file descriptors, when the daemon is on this host and runs as our user: they are mapped
and read here, the daemon idle. Promise: the same records that `read` gives, each checked against its checksum.

Blocks: for the daemon's answer, and for the disk.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topicd._native import core
from topicd.client.core.batch import Batch
from topicd.errors import ConnectionLost, StorageCorrupt, TopicdError, from_wire
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol.codec import Fetched, answer_map, packed
from topicd.ipc.protocol.messages import Segments
from topicd.ipc.protocol.selecting import select
from topicd.limits import MAX_CONTROL_MESSAGE, MAX_SEQ
from topicd.model import TagMatch

_LENGTH = struct.Struct("<I")
_SEGMENTS = 32
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is wanted: seqs above from_seq, up to to_seq, with that tag."""

    topic: str
    from_seq: int
    to_seq: int = MAX_SEQ
    match: TagMatch | None = None


def sealed(wanted: Stretch, topic_id: int, where: Path) -> Generator[Batch, None, None]:
    """Batches out of sealed segments, as many as are handed out; none is a fine answer."""
    from_seq = wanted.from_seq
    try:
        conn = unixsock.connect(where, _TIMEOUT_S)
    except OSError:
        return
    with conn:
        while from_seq < wanted.to_seq:
            try:
                answer, fds = _ask(conn, topic_id, from_seq)
            except (OSError, TopicdError):
                return
            try:
                if not fds or answer["evict_floor"] > from_seq + 1:
                    return  # nothing sealed is left here, or a gap that the daemon has to report
                for row, fd in zip(answer["segments"], fds, strict=True):
                    if from_seq >= wanted.to_seq:
                        return
                    batch = _segment(replace(wanted, from_seq=from_seq), topic_id, answer, row, fd)
                    from_seq = batch.next_from_seq
                    yield batch  # an empty one, too: what was examined need not be read again
            finally:
                for fd in fds:
                    os.close(fd)


def _ask(conn: socket.socket, topic_id: int, from_seq: int) -> tuple[dict[str, Any], list[int]]:
    request = packed(Segments(topic_id=topic_id, from_seq=from_seq, segments=_SEGMENTS).to_wire())
    conn.sendall(_LENGTH.pack(len(request)) + request)
    data, fds, _, _ = socket.recv_fds(conn, 1 << 16, _SEGMENTS)
    try:
        while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _length(data):
            piece = conn.recv(1 << 16)
            if not piece:
                raise ConnectionLost("the daemon closed the connection that hands out history")
            data += piece
        answer = answer_map(data[_LENGTH.size :])
        if "code" in answer:
            raise from_wire(answer)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return answer, fds


def _length(data: bytes) -> int:
    (length,) = _LENGTH.unpack_from(data)
    if length > MAX_CONTROL_MESSAGE:
        raise ConnectionLost(f"an answer of {length} bytes cannot be right")
    return int(length)


def _segment(wanted: Stretch, topic_id: int, answer: dict[str, Any], row: dict[str, Any], fd: int) -> Batch:
    last = row["first_seq"] + row["count"] - 1
    view = mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if row["data_bytes"] else b""
    scan = core.scan_frames(view, 0, len(view))
    if scan.problem or any(run.topic_id != topic_id for run in scan.runs):
        raise StorageCorrupt(
            f"topic {wanted.topic}: segment {row['first_seq']} fails its checksum",
            topic=wanted.topic,
            segment=row["first_seq"],
            first_seq=row["first_seq"],
            last_seq=last,
        )
    after = max(wanted.from_seq, answer["earliest_seq"] - 1)
    buffer: Any = view
    start, end = 0, len(view)
    records = sum(run.count for run in scan.runs)
    if after >= row["first_seq"] or last > wanted.to_seq or wanted.match is not None or row["dead"]:
        chosen = select(
            view, 0, len(view), after_seq=after, up_to_seq=wanted.to_seq, match=wanted.match, dead=row["dead"]
        )
        records = chosen.count
        if len(chosen.ranges) == 1:
            start, end = chosen.ranges[0]
        else:
            buffer = b"".join(view[a:b] for a, b in chosen.ranges)
            start, end = 0, len(buffer)
    fetched = Fetched(
        topic_id=topic_id,
        next_from_seq=max(min(last, wanted.to_seq), wanted.from_seq),
        head_seq=answer["head_seq"],
        earliest_seq=answer["earliest_seq"],
        records=records,
        caught_up=last >= answer["head_seq"],
        tombstone=None,
        performance=None,
        buffer=buffer,
        start=start,
        end=end,
    )
    return Batch(wanted.topic, fetched)
