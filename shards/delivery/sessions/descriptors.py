"""History at memory speed: sealed segments as read-only file descriptors for readers of the daemon's own user.

Promise: what is handed out never changes; the answer says which seqs of it are live, and where to go on. A segment that
is dropped later stays readable for whoever holds its descriptor.

A socket of its own, for descriptors travel beside bytes: `u32 length | msgpack map` in both directions.

    request   topic_id, from_seq, segments (at most SEGMENTS_MAX)
    answer    segments [{first_seq, count, data_bytes, dead}], earliest_seq, evict_floor, head_seq, stored_seq;
              one descriptor of a .data file for each, in that order; or {code, message, …}
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from typing import Any

import msgpack

from topicd.errors import Forbidden, TopicdError, TopicNotFound
from topicd.ipc.protocol.messages import Segments
from topicd.ipc.protocol.unixsock import peer_credentials
from topicd.ipc.protocol.wire import unpack_map
from topicd.limits import KIB
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.info import Lies
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_REQUEST_MAX = 4 * KIB
_DEAD_BYTES = 64 * KIB  # of deletion marks in one answer, give or take the last segment's
_READERS_MAX = 256
_RETRY_S = 0.1
_SILENCE_S = 60.0
_IDLE_S = 60.0  # a reader that asks for nothing gives its place back; it may come again


class DescriptorServer:
    def __init__(
        self, place: Place, loop: asyncio.AbstractEventLoop, catalog: Catalog, reader: Reader, retention: Retention
    ) -> None:
        self._place = place
        self._loop = loop
        self._catalog = catalog
        self._reader = reader
        self._retention = retention
        self._readers: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._silent_until = 0.0

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept(listener), loop=self._loop)

    def close(self) -> None:
        for task in (self._accepting, *self._readers):
            if task is not None:
                task.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    conn, _ = await self._loop.sock_accept(listener)
                except OSError as exc:
                    # Most likely no descriptor is left. Readers have the daemon's other socket; this one goes on.
                    self._refuse("connection not taken", exc)
                    await asyncio.sleep(_RETRY_S)
                    continue
                if len(self._readers) >= _READERS_MAX:
                    conn.close()
                    continue
                task = asyncio.ensure_future(self._serve(conn), loop=self._loop)
                self._readers.add(task)
                task.add_done_callback(self._readers.discard)

    def _refuse(self, what: str, error: OSError) -> None:
        """Said once a minute at most: whoever tries again and again must not fill the log."""
        now = self._loop.time()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_S
            log.error(what, extra={"error": str(error)})

    async def _serve(self, conn: socket.socket) -> None:
        with conn:
            try:
                while (request := await asyncio.wait_for(self._receive(conn), _IDLE_S)) is not None:
                    self._answer(conn, request)
            except (OSError, asyncio.CancelledError):  # TimeoutError is an OSError
                return
            except Exception:
                log.exception("handing out history failed")

    async def _receive(self, conn: socket.socket) -> bytes | None:
        head = await self._exactly(conn, _LENGTH.size)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        return await self._exactly(conn, length) if length <= _REQUEST_MAX else None

    async def _exactly(self, conn: socket.socket, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(conn, size - len(data))
            if not piece:
                return None
            data += piece
        return data

    def _answer(self, conn: socket.socket, request: bytes) -> None:
        fds: list[int] = []
        try:
            try:
                body = self._segments(conn, unpack_map(request), fds)
            except TopicdError as exc:
                body = exc.to_wire()
            packed = msgpack.packb(body)
            # Small enough for an empty socket buffer: a reader that does not read gets an error, not our time.
            socket.send_fds(conn, [_LENGTH.pack(len(packed)) + packed], fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _segments(self, conn: socket.socket, fields: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        _, uid, _ = peer_credentials(conn)
        if uid not in {os.geteuid(), 0}:
            raise Forbidden("descriptors go to the daemon's own user only", uid=uid)
        want = Segments.from_wire(fields)
        topic = self._catalog.by_id.get(want.topic_id)
        if topic is None:
            raise TopicNotFound(f"no topic with id {want.topic_id}", topic_id=want.topic_id)
        self._retention.expire(topic)
        self._reader.note_read(topic)
        return {
            "segments": self._open(topic, max(want.from_seq + 1, topic.floors.earliest), want.segments, fds),
            "earliest_seq": topic.floors.earliest,
            "evict_floor": topic.floors.evict_floor,
            "head_seq": topic.seqs.visible,
            "stored_seq": topic.seqs.stored,
        }

    def _open(self, topic: Topic, first: int, limit: int, fds: list[int]) -> list[dict[str, Any]]:
        """Neighbouring sealed, undamaged segments from the one that holds `first` on."""
        rows: list[dict[str, Any]] = []
        room = _DEAD_BYTES
        directory = self._place.data.topic(topic.id)
        contents = topic.contents
        for info in contents.segments:
            if info.last_seq < first:
                continue
            damaged = contents.is_damaged(info.first_seq, info.last_seq)
            lost = contents.lost.within(first, info.first_seq - 1) if first < info.first_seq else []
            # Frames that are packed are not frames to whoever maps them; a cold disk may not answer.
            if not info.sealed or info.lies is not Lies.HERE or damaged or lost or len(rows) == limit:
                break
            try:
                fds.append(os.open(resolve(directory, info.first_seq).file(DATA), os.O_RDONLY | os.O_CLOEXEC))
            except OSError as exc:
                self._refuse("segment not handed out", exc)
                break  # whoever asks reads on through the daemon
            marks = contents.marks.get(info.first_seq)
            dead = marks.packed() if marks is not None else b""
            row = {"first_seq": info.first_seq, "count": info.count, "data_bytes": info.data_bytes, "dead": dead}
            rows.append(row)
            room -= len(dead)
            if room < 0:
                break
            first = info.last_seq + 1
        return rows
