"""Stages into a topic. Promise: each chunk is stored once, in order, whoever sends it and however often: the producer
id and the numbers are the same for all, and the daemon says where to go on.

A stage lies in the shard of its destination where it can, and then the daemon is told which records to copy. Others
travel here and back as raw frames; the daemon stamps topic id, seq, time and checksum anew either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from topicd._native import core
from topicd.client.blocking.connection import Connection
from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.client.core.batch import Batch
from topicd.client.staging.plan import Chunk, Piece
from topicd.errors import Conflict, TopicdError, TopicNotFound
from topicd.frames import continue_batch
from topicd.ipc.protocol.retry import Patience
from topicd.ipc.protocol.wire import COPIED
from topicd.limits import FETCH_BYTES_MAX, MIB

WINDOW = 24
FLYING_BYTES = 32 * MIB


class StageReader:
    """Frames of one stage. Who begins at its beginning wants all of it, at the speed of files; who begins elsewhere
    wants a part, as a stage of many destinations has them. Neighbouring pieces go on where the last one ended."""

    def __init__(self, client: Operations, stage: str) -> None:
        self._client = client
        self._stage = stage
        self._at = -1  # the last seq that was taken
        self._source: Iterator[Batch] = iter(())
        self._frames = memoryview(b"")
        self._offsets = memoryview(b"").cast("I")  # of its frames
        self._taken = 0  # how many of them

    def take(self, piece: Piece) -> list[memoryview]:
        if piece.from_seq != self._at:
            self._at = piece.from_seq
            self._source = self._pages(piece) if piece.from_seq else self._client.history(self._stage)
            self._load(memoryview(b""))
        found: list[memoryview] = []
        wanted = piece.records
        while wanted:
            if self._taken == len(self._offsets):
                self._next()
            end = min(self._taken + wanted, len(self._offsets))
            stop = self._offsets[end] if end < len(self._offsets) else len(self._frames)
            found.append(self._frames[self._offsets[self._taken] : stop])
            wanted -= end - self._taken
            self._at += end - self._taken
            self._taken = end
        return found

    def _pages(self, piece: Piece) -> Iterator[Batch]:
        at = piece.from_seq
        while True:
            page = self._client.read(self._stage, at, limit=piece.records, max_bytes=FETCH_BYTES_MAX)
            yield page
            at = page.next_from_seq

    def _next(self) -> None:
        try:
            batch = next(self._source, None)
        except TopicNotFound:
            batch = None
        if not batch or batch.tombstone is not None or batch.next_from_seq - len(batch) != self._at:
            raise _lacking(self._stage, self._at)
        self._load(batch.frames)

    def _load(self, frames: memoryview) -> None:
        self._frames, self._taken = frames, 0
        self._offsets = memoryview(core.frame_offsets(frames, 0, len(frames))).cast("I")


class Near:
    """The stages that lie in the shard of their destination: what of them the daemon can copy by itself."""

    def __init__(self, connection: Connection, is_near: Callable[[str], bool]) -> None:
        limits = connection.hello.limits if connection.hello is not None else {}
        self._connection = connection
        self._is_near = is_near
        self._max_bytes = int(limits.get("max_copy_bytes", 0))  # a daemon that does not say it cannot copy
        self._max_ranges = int(limits.get("max_copy_ranges", 0))
        self._ids: dict[str, int] = {}

    def look_up(self, chunks: list[Chunk]) -> None:
        """Finds their ids, before anything is under way on the connection."""
        if not self._max_ranges:
            return
        for stage in dict.fromkeys(piece.stage for chunk in chunks for piece in chunk.pieces):
            if self._is_near(stage):
                try:
                    self._ids[stage] = self._connection.ask(requests.open_topic(stage, create=False))
                except TopicNotFound:
                    raise _lacking(stage, 0) from None

    def ranges(self, chunk: Chunk) -> bytes | None:
        """None: the chunk has to travel."""
        if chunk.framed_bytes > self._max_bytes or len(chunk.pieces) > self._max_ranges:
            return None
        if not all(piece.stage in self._ids for piece in chunk.pieces):
            return None
        return b"".join(COPIED.pack(self._ids[stage], seq, records) for stage, seq, records in chunk.pieces)


class Copier:
    """One destination's chunks."""

    def __init__(self, client: Operations, destination: str, producer_id: int) -> None:
        self._client = client
        self._destination = destination
        self._producer_id = producer_id
        self._readers: dict[str, StageReader] = {}

    def where(self) -> requests.ProducerPlace:
        """The number of the first chunk that is not stored; the topic is created if there is none."""
        caller = self._client.caller
        while True:
            caller.ask(requests.open_topic(self._destination, create=True))
            try:
                return caller.ask(requests.producer_place(self._destination, self._producer_id))
            except TopicNotFound:
                continue  # deleted in between

    def release(self) -> None:
        """The daemon need not remember the producer any more."""
        self._client.caller.ask(requests.release_producer(self._destination, self._producer_id))

    def copy(self, topic_id: int, first_no: int, chunks: list[Chunk]) -> None:
        """Returns when all are acknowledged. Trouble that may pass is waited out, as long as something moves within
        the client's timeout. TopicNotFound: the topic of that id is gone."""
        caller = self._client.caller
        patience, best = Patience(caller.tempo, caller.timeout), 0
        while True:
            now_id, expected = self.where()
            if now_id != topic_id:
                raise TopicNotFound(f"topic {self._destination} was deleted while it was written", topic_id=topic_id)
            if expected - first_no >= len(chunks):
                return
            if expected > best:
                patience, best = Patience(caller.tempo, caller.timeout), expected
            try:
                self._send(topic_id, expected, chunks[expected - first_no :])
                return
            except Conflict as error:
                # Somebody else stored so much meanwhile that the daemon remembers the beginning no longer.
                if self.where()[1] <= expected:
                    raise error from None
            except TopicdError as error:
                patience.pause(error)

    def _send(self, topic_id: int, first_no: int, chunks: list[Chunk]) -> None:
        caller = self._client.caller
        shard = caller.shard_map.shard_of(self._destination)
        connection = caller.dial(shard, caller.timeout)
        flying: deque[tuple[int, int]] = deque()  # request id, bytes
        in_flight = 0
        self._readers.clear()
        try:
            near = Near(connection, lambda stage: caller.shard_map.shard_of(stage) == shard)
            near.look_up(chunks)
            for no, chunk in enumerate(chunks, first_no):
                size, number = chunk.framed_bytes, (topic_id, self._producer_id, no, chunk.records)
                ranges = near.ranges(chunk)
                parts = self._frames_of(chunk) if ranges is None else []
                while flying and (len(flying) >= WINDOW or in_flight + size > FLYING_BYTES):
                    in_flight -= _await(connection, flying)
                if ranges is None:
                    request_id = connection.start_append(*number, parts)
                else:
                    request_id = connection.start_copy(*number, ranges)
                flying.append((request_id, size))
                in_flight += size
            while flying:
                _await(connection, flying)
        finally:
            connection.close()

    def _frames_of(self, chunk: Chunk) -> list[memoryview]:
        pieces = [self._reader(piece.stage).take(piece) for piece in chunk.pieces]
        if len(pieces) > 1:
            # Each was the end of a batch; now only the last is.
            pieces = [*([memoryview(_continued(piece))] for piece in pieces[:-1]), pieces[-1]]
        return [view for piece in pieces for view in piece]

    def _reader(self, stage: str) -> StageReader:
        found = self._readers.get(stage)
        if found is None:
            self._readers.clear()  # stages are read one after the other
            found = self._readers[stage] = StageReader(self._client, stage)
        return found


def _await(connection: Connection, flying: deque[tuple[int, int]]) -> int:
    request_id, size = flying.popleft()
    connection.finish_append(request_id)
    return size


def _lacking(stage: str, at: int) -> Conflict:
    return Conflict(f"stage {stage} lacks what follows record {at}; it was dropped or has expired", stage=stage)


def _continued(views: list[memoryview]) -> bytearray:
    """The frames, the last of them marked as not the last of its batch."""
    frames = bytearray().join(views)
    last = memoryview(core.frame_offsets(frames, 0, len(frames))).cast("I")[-1]
    continue_batch(frames, last)
    return frames
