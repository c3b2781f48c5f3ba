"""A named consumer for asyncio; see topicd.client.consumer."""

from __future__ import annotations

from typing import Any

from topicd.client.aio_engine import AioEngine
from topicd.client.aio_watch import AsyncWatch
from topicd.client.progress import Progress, seq_of
from topicd.client.records import Record
from topicd.client.serial import Match, Start, start_wire
from topicd.client.subscription import Wanted
from topicd.client.watch import Event, OnGap
from topicd.client.wire import number
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.ipc.protocol.messages import Op


class AsyncConsumer:
    """Made by `client.consumer`. Iterate it with `async for`; with auto_ack a record counts as processed when the next
    one is asked for."""

    def __init__(
        self,
        engine: AioEngine,
        topic: str,
        name: str,
        *,
        start: Start,
        auto_ack: bool,
        on_gap: OnGap,
        match: Match,
        nodes: str | list[str] | None,
        batch_bytes: int,
    ) -> None:
        self.topic = topic
        self.name = name
        self._engine = engine
        self._start = start_wire(start)
        self._auto_ack = auto_ack
        wanted = Wanted(topic, 0, match, nodes)
        if wanted.pattern is not None:
            raise InvalidRequest("a consumer belongs to one topic, not to a pattern")
        self._watch = AsyncWatch(engine, wanted, on_gap=on_gap, batch_bytes=batch_bytes)
        self._progress = Progress()

    async def open(self) -> AsyncConsumer:
        try:
            answer = await self._call("open", start=self._start)
        except TopicNotFound:
            await self._engine.call(self.topic, Op.OPEN, {"topic": self.topic, "create": True})
            answer = await self._call("open", start=self._start)
        self._progress.acked_seq = number(answer, "acked_seq")
        await self._watch.open(resume={self.topic: (number(answer, "topic_id"), self._progress.acked_seq)})
        return self

    async def _call(self, action: str, **fields: Any) -> dict[str, Any]:
        body = {"topic": self.topic, "name": self.name, **fields}
        return await self._engine.call(self.topic, Op[f"CONSUMER_{action.upper()}"], body)

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Event:
        self._progress.asked_for_more()
        if self._auto_ack:
            await self._ack_processed(idle=not self._watch.buffered)
        return self._progress.delivered(await self._watch.__anext__())

    @property
    def acked_seq(self) -> int:
        """Everything up to this seq is acknowledged."""
        return self._progress.acked_seq

    @property
    def unacked(self) -> int:
        """Records delivered and not acknowledged."""
        return self._progress.unacked

    async def ack(self, count: int = 1) -> int:
        """Acknowledges the `count` oldest unacknowledged records; the seq up to which all is acknowledged now."""
        seq = self._progress.oldest(count)
        return await self.ack_to(seq) if count else seq

    async def ack_to(self, record: int | Record) -> int:
        """Acknowledges every record up to this one or up to this seq."""
        seq = seq_of(record)
        return self._progress.acked(seq, number(await self._call("ack", seq=seq), "acked_seq"))

    async def lag(self) -> int:
        """How many seqs lie between what is acknowledged and the head, as the daemon sees it."""
        return number(await self._call("state"), "lag")

    async def _ack_processed(self, *, idle: bool) -> None:
        seq = self._progress.auto_ack(idle)
        if seq is not None:
            await self.ack_to(seq)

    async def close(self, *, processed: bool = True) -> None:
        """With auto_ack, acknowledges what was delivered, the record in hand included unless processed=False."""
        if self._auto_ack and not self._watch.closed and not self._engine.closed:
            if processed:
                self._progress.asked_for_more()
            await self._ack_processed(idle=True)
        await self._watch.close()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # The record whose processing failed is delivered again.
        await self.close(processed=kind is None)
