"""Staging for asyncio: see topicd.client.staging. Each call runs in a thread, over connections of its own: staging
reads and maps whole files, and publishes from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from topicd.client.aio.shared import AioShared
from topicd.client.staging.plan import Staged
from topicd.client.staging.stages import Abandoned, Stages
from topicd.client.staging.writing import Laid


class AsyncStages:
    """The batches of one query, or of one job with a single batch. Made by `client.stages`."""

    def __init__(self, shared: AioShared, stages: Stages) -> None:
        self.query = stages.query
        self._shared = shared
        self._stages = stages

    async def write(self, batch: int, partition: int, laid: Iterable[Laid]) -> Staged:
        """Stages batches of ready-made frames, each with its destination."""
        return await self._shared.in_thread(lambda: self._stages.write(batch, partition, laid))

    async def write_records(self, batch: int, partition: int, topic: str, records: Sequence[Any]) -> Staged:
        """Stages a list like that of `publish_many`."""
        return await self._shared.in_thread(lambda: self._stages.write_records(batch, partition, topic, records))

    async def commit(self, batch: int, stages: Sequence[Staged]) -> int:
        """Publishes the stages, in order; how many records that were. If this batch was decided before, what was
        decided then is published instead, once."""
        return await self._shared.in_thread(lambda: self._stages.commit(batch, stages))

    async def finish(self) -> list[int]:
        """Publishes what was decided and left; the batches."""
        return await self._shared.in_thread(self._stages.finish)

    async def abandon(self, *, take_back: bool = True) -> list[Abandoned]:
        """Gives up what was decided and left. With take_back what was published of it is deleted, and the batch counts
        as never decided; without, it stays, and the batch is over. Conflict: all of it is published."""
        return await self._shared.in_thread(lambda: self._stages.abandon(take_back=take_back))

    async def drop(self, batch: int) -> int:
        """Drops the stages of a batch that was not decided; how many."""
        return await self._shared.in_thread(lambda: self._stages.drop(batch))
