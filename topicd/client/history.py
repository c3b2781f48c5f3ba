"""Reading a stretch of a topic, to its head at most, as fast as this machine allows.

Sealed segments come as file descriptors when the daemon is on this host and runs as our user: they are mapped and read
here, the daemon idle. Everything else, and the rest, comes through `read`. Promise: the same records either way, each
checked against its checksum.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topicd._native import core
from topicd.client.batch import Batch, ReadResult
from topicd.client.wire import Fetched, answer_map, packed
from topicd.errors import ConnectionLost, StorageCorrupt, TopicdError, from_wire
from topicd.ipc import unixsock
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX, MAX_CONTROL_MESSAGE, MAX_SEQ
from topicd.model import TagMatch

_LENGTH = struct.Struct("<I")
_SEGMENTS = 32
_TIMEOUT_S = 10.0

Read = Callable[[int, int], ReadResult]
FIRST_READ = 256  # records: enough to learn where the topic stands, little where files can be had


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is wanted: seqs above from_seq, up to to_seq, with that tag."""

    topic: str
    from_seq: int
    to_seq: int = MAX_SEQ
    match: TagMatch | None = None


def history(wanted: Stretch, read: Read, socket_of: Callable[[], Path | None]) -> Iterator[Batch]:
    """Batches of what is wanted, up to the head.

    `read` fetches so many from a seq; `socket_of` names the socket that hands out descriptors, None when there is
    none to reach.
    """
    from_seq, size = wanted.from_seq, FIRST_READ
    while from_seq < wanted.to_seq:
        # What lies at the cursor decides: a gap, an error or an empty topic is told by the daemon itself. So many
        # records may reach further than as many seqs, where some were deleted.
        found = read(from_seq, min(size, wanted.to_seq - from_seq)).up_to(wanted.to_seq)
        if len(found) or found.tombstone is not None:
            yield found
        from_seq = found.next_from_seq
        if found.caught_up:
            return
        where = socket_of()
        if where is not None:
            for batch in _mapped(replace(wanted, from_seq=from_seq), found.topic_id, where):
                from_seq = batch.next_from_seq
                if len(batch):
                    yield batch
        size = FETCH_RECORDS_MAX  # behind the last sealed segment


def bulk_read(read: Callable[..., ReadResult], topic: str, match: TagMatch | None, epoch: int | None) -> Read:
    return lambda from_seq, limit: read(
        topic, from_seq, limit=limit, max_bytes=FETCH_BYTES_MAX, match=match, epoch=epoch
    )


def _mapped(wanted: Stretch, topic_id: int, where: Path) -> Iterator[Batch]:
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
    request = packed({"topic_id": topic_id, "from_seq": from_seq, "segments": _SEGMENTS})
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
        tag = wanted.match.value if wanted.match is not None else None
        equal, prefix = (None, tag) if wanted.match is not None and wanted.match.prefix else (tag, None)
        chosen = core.select_frames(
            *(view, 0, len(view), after, wanted.to_seq, 2**31, 2**62, 0, equal, prefix, (), row["dead"])
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
