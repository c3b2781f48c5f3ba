"""Sealed segments of a topic as file descriptors, when the daemon is on this host and runs as our user: they are read
here, the daemon idle. Promise: the same records that `read` gives, each checked against its checksum. Where bytes
cannot be read or believed it ends, and the daemon is asked, which reports what is damaged.

Blocks: for the daemon's answer, and for the disk.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from topicd._native import core
from topicd.client.core.batch import Batch
from topicd.errors import ConnectionLost, TopicdError, from_wire
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol.codec import Fetched, answer_map, packed
from topicd.ipc.protocol.messages import Segments
from topicd.ipc.protocol.selecting import select
from topicd.limits import KIB, MAX_CONTROL_MESSAGE, MAX_FRAME, MAX_SEQ
from topicd.model import TagMatch

_LENGTH = struct.Struct("<I")
_SEGMENTS = 32
_TIMEOUT_S = 10.0
_PIECE = 256 * KIB  # read at once: small enough to be in the processor's cache while it is checked and decoded


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
                # Fewer descriptors than segments: this process may not have more. The rest comes when these are closed.
                for row, fd in zip(answer["segments"], fds, strict=False):
                    if from_seq >= wanted.to_seq:
                        return
                    segment = _Segment(replace(wanted, from_seq=from_seq), topic_id, answer, row, fd)
                    for batch in segment.batches():
                        from_seq = batch.next_from_seq
                        yield batch  # an empty one, too: what was examined need not be read again
                    if from_seq < min(row["first_seq"] + row["count"] - 1, wanted.to_seq):
                        return
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


class _Piece(NamedTuple):
    """Bytes of a segment and what the whole frames among them hold."""

    data: bytes
    end: int  # of the frames
    first: int  # seqs
    last: int
    records: int


_NOTHING = _Piece(b"", 0, MAX_SEQ, 0, 0)


class _Segment:
    """One of them, read in pieces of whole frames: the first bad byte ends it where it lies."""

    def __init__(self, wanted: Stretch, topic_id: int, answer: dict[str, Any], row: dict[str, Any], fd: int) -> None:
        self._wanted = wanted
        self._topic_id = topic_id
        self._answer = answer
        self._fd = fd
        self._dead: bytes = row["dead"]
        self._first, self._last = row["first_seq"], row["first_seq"] + row["count"] - 1
        self._bytes: int = row["data_bytes"]

    def batches(self) -> Generator[Batch, None, None]:
        """Up to the end of the segment, or to where it cannot be read or believed."""
        at, reached = 0, self._wanted.from_seq
        if not self._bytes:
            yield self._batch(_NOTHING, reached, self._last)  # all of it was deleted
        while at < self._bytes and reached < self._wanted.to_seq:
            piece = self._piece(at)
            if piece is None:
                return
            at += piece.end
            last = self._last if at == self._bytes else piece.last
            if last <= reached:
                continue  # all of it was read before
            batch = self._batch(piece, reached, last)
            reached = batch.next_from_seq
            yield batch

    def _piece(self, at: int) -> _Piece | None:
        """None: something is wrong there. The daemon knows better what, and says so."""
        size = _PIECE
        while True:
            try:
                data = os.pread(self._fd, size, at)
            except OSError:
                return None
            scan = core.scan_frames(data, 0, len(data))
            if any(run.topic_id != self._topic_id for run in scan.runs):
                return None
            if scan.runs:
                last = scan.runs[-1].first_seq + scan.runs[-1].count - 1
                return _Piece(data, scan.end, scan.runs[0].first_seq, last, sum(run.count for run in scan.runs))
            if scan.problem != "torn" or len(data) < size or size > MAX_FRAME:
                return None
            size += MAX_FRAME  # it is one large frame

    def _batch(self, piece: _Piece, reached: int, last: int) -> Batch:
        """What is wanted of a piece; last: up to there the segment has nothing else."""
        wanted, answer = self._wanted, self._answer
        after = max(reached, answer["earliest_seq"] - 1)
        buffer, start, end, records = piece.data, 0, piece.end, piece.records
        if after >= piece.first or last > wanted.to_seq or wanted.match is not None or self._dead:
            chosen = select(
                buffer, 0, end, after_seq=after, up_to_seq=wanted.to_seq, match=wanted.match, dead=self._dead
            )
            records = chosen.count
            if len(chosen.ranges) == 1:
                start, end = chosen.ranges[0]
            else:
                buffer = b"".join(piece.data[a:b] for a, b in chosen.ranges)
                end = len(buffer)
        fetched = Fetched(
            topic_id=self._topic_id,
            next_from_seq=max(min(last, wanted.to_seq), reached),
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
