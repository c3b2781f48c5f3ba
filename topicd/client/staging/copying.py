"""Stages into a topic. Promise: each chunk is stored once, in order, whoever sends it and however often: the producer
id and the numbers are the same for all, and the daemon says where to go on.

A stage lies in the shard of its destination where it can, and then the daemon is told which records to copy. Others
travel here and back as raw frames; the daemon stamps topic id, seq, time and checksum anew either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from topicd._native import core
from topicd.client.blocking.connection import Connection
from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.client.core.batch import Batch
from topicd.client.core.options import COMMIT_HOLD_S
from topicd.client.staging.plan import Chunk, Piece
from topicd.errors import Conflict, FormatError, TopicdError, TopicNotFound
from topicd.frames import continue_batch
from topicd.ipc.protocol.retry import Patience
from topicd.ipc.protocol.wire import COPIED
from topicd.limits import FETCH_BYTES_MAX, MIB

T = TypeVar("T")

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
            page = self._client.fetch(self._stage, at, limit=piece.records, max_bytes=FETCH_BYTES_MAX)
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


class Flying:
    """Appends of one connection that are not answered yet. Answers come in any order; of several refusals the one
    that came first in the order of the chunks is the cause of the others."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sizes: dict[int, int] = {}  # by request id, oldest first
        self._bytes = 0

    def add(self, request_id: int, size: int) -> None:
        self._sizes[request_id] = size
        self._bytes += size

    def make_room(self, size: int, limit: int) -> None:
        while self._sizes and (len(self._sizes) >= WINDOW or self._bytes + size > limit):
            refused = self._finish()
            if refused is not None:
                self.land(refused)

    def land(self, first: tuple[int, TopicdError] | None = None) -> None:
        """All of them are answered. Raises the first refusal."""
        order = list(self._sizes)
        refusals = {} if first is None else dict([first])
        while self._sizes:
            refused = self._finish()
            if refused is not None:
                refusals[refused[0]] = refused[1]
        if refusals:
            order = [*refusals.keys() - order, *order]
            raise refusals[min(refusals, key=order.index)]

    def _finish(self) -> tuple[int, TopicdError] | None:
        request_id, outcome = self._connection.finish_append()
        size = self._sizes.pop(request_id, None)
        if size is None:
            self._connection.close()
            raise FormatError(f"the daemon answered request {request_id}, which is not under way")
        self._bytes -= size
        return (request_id, outcome) if isinstance(outcome, TopicdError) else None


class Copier:
    """One destination's chunks."""

    def __init__(self, client: Operations, destination: str, producer_id: int) -> None:
        self._client = client
        self._destination = destination
        self._producer_id = producer_id
        self._readers: dict[str, StageReader] = {}
        self._in_flight = FLYING_BYTES  # that may be under way at once

    def where(self) -> requests.ProducerPlace:
        """The number of the first chunk that is not stored; the topic is created if there is none."""
        return self._ask(requests.producer_place(self._destination, self._producer_id))

    def reserve(self, records: int, content: int, first_no: int = 0) -> requests.CommitPlace:
        """Holds room for so much, for a while; the topic is created if there is none. TopicFull: there is none."""
        hold_ms = int(COMMIT_HOLD_S * 1000)
        place = self._ask(
            requests.open_commit(
                self._destination, self._producer_id, records, content, hold_ms=hold_ms, first_no=first_no
            )
        )
        self._in_flight = min(FLYING_BYTES, place.max_inflight_bytes)
        return place

    def reserve_rest(self, first_no: int, chunks: list[Chunk]) -> None:
        """Room for what is not there yet."""
        rest = chunks[max(0, self.where().expected - first_no) :]
        if rest:
            self.reserve(sum(chunk.records for chunk in rest), sum(chunk.bytes for chunk in rest), first_no)

    def _ask(self, request: requests.Request[T]) -> T:
        caller = self._client.caller
        while True:
            caller.ask(requests.open_topic(self._destination, create=True))
            try:
                return caller.ask(request)
            except TopicNotFound:
                continue  # deleted in between

    def close(self, first_no: int) -> None:
        """Everything is published, or nothing will be."""
        self._client.caller.ask(requests.close_commit(self._destination, self._producer_id, first_no))

    def abandon(self, first_no: int, *, take_back: bool) -> requests.AbandonedPart:
        """Whoever still publishes it is refused from now on."""
        return self._client.caller.ask(
            requests.abandon_commit(self._destination, self._producer_id, first_no, take_back=take_back)
        )

    def release(self) -> None:
        """The daemon need not remember the producer any more."""
        self._client.caller.ask(requests.release_producer(self._destination, self._producer_id))

    def copy(self, topic_id: int, first_no: int, chunks: list[Chunk], *, held: bool = False) -> None:
        """Returns when all are acknowledged. held: room for them was reserved just now. Trouble that may pass is waited
        out, as long as something moves within the client's timeout. TopicNotFound: the topic of that id is gone.
        TopicFull: there is no room for all of the rest, and nothing of it was sent."""
        caller = self._client.caller
        patience, best = Patience(caller.tempo, caller.timeout), 0
        while True:
            now_id, expected = self.where()
            if now_id != topic_id:
                raise TopicNotFound(f"topic {self._destination} was deleted while it was written", topic_id=topic_id)
            rest = chunks[max(0, expected - first_no) :]
            if not rest:
                return
            if expected > best:
                patience, best = Patience(caller.tempo, caller.timeout), expected
            try:
                if not held:
                    self.reserve(sum(chunk.records for chunk in rest), sum(chunk.bytes for chunk in rest), first_no)
                held = False
                self._send(topic_id, expected, rest)
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
        flying = Flying(connection)
        self._readers.clear()
        try:
            near = Near(connection, lambda stage: caller.shard_map.shard_of(stage) == shard)
            near.look_up(chunks)
            for no, chunk in enumerate(chunks, first_no):
                size, number = chunk.framed_bytes, (topic_id, self._producer_id, no, chunk.records)
                ranges = near.ranges(chunk)
                parts = self._frames_of(chunk) if ranges is None else []
                flying.make_room(size, self._in_flight)
                if ranges is None:
                    flying.add(connection.start_append(*number, parts), size)
                else:
                    flying.add(connection.start_copy(*number, ranges), size)
            flying.land()
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


def _lacking(stage: str, at: int) -> Conflict:
    return Conflict(f"stage {stage} lacks what follows record {at}; it was dropped or has expired", stage=stage)


def _continued(views: list[memoryview]) -> bytearray:
    """The frames, the last of them marked as not the last of its batch."""
    frames = bytearray().join(views)
    last = memoryview(core.frame_offsets(frames, 0, len(frames))).cast("I")[-1]
    continue_batch(frames, last)
    return frames
