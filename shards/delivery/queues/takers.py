"""Who gets jobs: a claim that waits for some, or a stream that is pushed them. Promise: what is handed to one reaches
its connection in the order of the hand-outs; one whose connection does not read gets nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topicd._native.interface import Buffer
from topicd.errors import TopicdError
from topicd.ipc.protocol.wire import JOB, OP_CLAIMED, OP_JOBS
from topicd.shards.delivery.queues.leases import Holder
from topicd.shards.delivery.sessions.outbox import Outbox
from topicd.shards.delivery.topic.topic import Topic


class Batch(NamedTuple):
    """Jobs on their way to whoever got them."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    rows: bytes
    parts: list[Buffer]  # their frames
    size: int


NONE = Batch(0, b"", [], 0)


def _ignored(taker: Taker) -> None:
    """Nobody has to know."""


class Taker(Holder):
    def __init__(self, outbox: Outbox, request_id: int, node: bytes, most: int, lease_ms: int) -> None:
        super().__init__()
        self.outbox = outbox
        self.request_id = request_id
        self.node = node
        self.most = most
        self.lease_ms = lease_ms  # 0: the queue's
        self.on_leave: Callable[[Taker], None] = _ignored  # its connection ended
        self.on_room: Callable[[Taker], None] = _ignored  # it can take more
        self.give_up_ms = 0  # a claim that waits: until when

    @property
    def wants(self) -> int:
        """So many more jobs."""
        raise NotImplementedError

    @property
    def holder(self) -> Holder | None:
        """Whose jobs come back when the connection ends; None: nobody's."""
        return None

    def deliver(self, topic: Topic, ready: int, batch: Batch) -> None:
        raise NotImplementedError

    def deliver_one(self, topic: Topic, ready: int, seq: int, lease: int, deadline: int, frame: Buffer) -> None:
        """One job that is delivered for the first time."""
        raise NotImplementedError

    def taken(self) -> None:
        """Jobs are on their way to it."""

    def not_granted(self, error: TopicdError) -> None:
        """Those jobs are not coming: their leases could not be stored."""

    def topic_gone(self, topic: Topic) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        """Its connection ended."""
        self.on_leave(self)

    def resume(self) -> None:
        """Its connection reads again."""
        self.on_room(self)


class WaitingClaim(Taker):
    def __init__(
        self, outbox: Outbox, request_id: int, node: bytes, most: int, lease_ms: int, wait_ms: int = 0
    ) -> None:
        super().__init__(outbox, request_id, node, most, lease_ms)
        self.wait_ms = wait_ms
        self.served = False
        self.ended = b""  # what became of the jobs that it finished first, for its answer
        self.ended_one = False  # that was one, and it was held
        self.among: dict[int, Taker] = {}  # of its connection
        self._listed = False

    def enlist(self) -> None:
        """Whoever ends its connection finds it there, until it is answered."""
        self._listed = True
        self.among[self.request_id] = self

    def _answered(self) -> None:
        if self._listed:
            self._listed = False
            self.among.pop(self.request_id, None)

    @property
    def wants(self) -> int:
        return 0 if self.served else self.most

    def taken(self) -> None:
        self.served = True

    def not_granted(self, error: TopicdError) -> None:
        self._answered()
        self.outbox.refused(self.request_id, error)

    def deliver(self, topic: Topic, ready: int, batch: Batch) -> None:
        self.served = True
        self._answered()
        count, rows, parts, size = batch
        self.outbox.jobs(OP_CLAIMED, self.request_id, topic.id, ready, count, rows, parts, size, self.ended)

    def deliver_one(self, topic: Topic, ready: int, seq: int, lease: int, deadline: int, frame: Buffer) -> None:
        self.served = True
        self._answered()
        if self.ended_one:
            self.outbox.next_job(self.request_id, topic.id, ready, seq, lease, deadline, frame)
        else:
            rows = JOB.pack(seq, lease, deadline, 1)
            self.outbox.jobs(OP_CLAIMED, self.request_id, topic.id, ready, 1, rows, [frame], len(frame), self.ended)

    def topic_gone(self, topic: Topic) -> None:
        self._answered()
        self.outbox.refused(self.request_id, topic.gone())


class WorkStream(Taker):
    def __init__(self, outbox: Outbox, request_id: int, node: bytes, most: int, lease_ms: int) -> None:
        super().__init__(outbox, request_id, node, most, lease_ms)
        self.on_stop: Callable[[Taker], None] = lambda taker: None  # it wants no more, and keeps what it has
        self.on_release: Callable[[Taker], int] = lambda taker: 0

    def stop(self, *, release: bool) -> int:
        """No more jobs; what it holds stays its own, or is given back: how many."""
        self.on_stop(self)
        return self.on_release(self) if release else 0

    @property
    def wants(self) -> int:
        return 0 if self.outbox.write_blocked else self.most - self.held

    @property
    def holder(self) -> Holder | None:
        return self

    def deliver(self, topic: Topic, ready: int, batch: Batch) -> None:
        if batch.count:
            self.outbox.jobs(
                OP_JOBS, self.request_id, topic.id, ready, batch.count, batch.rows, batch.parts, batch.size
            )

    def deliver_one(self, topic: Topic, ready: int, seq: int, lease: int, deadline: int, frame: Buffer) -> None:
        rows = JOB.pack(seq, lease, deadline, 1)
        self.outbox.jobs(OP_JOBS, self.request_id, topic.id, ready, 1, rows, [frame], len(frame))

    def topic_gone(self, topic: Topic) -> None:
        body = {"event": "topic_deleted", "topic": topic.name, "topic_id": topic.id}
        self.outbox.notice(self.request_id, body)
