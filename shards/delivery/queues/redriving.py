"""Dead letters back to the queues that they came from. Promise: each is appended there before it goes here, under a
number of its own, so that it is there once; what is no dead letter stays.
"""

from __future__ import annotations

import asyncio
from typing import Any

from topicd.errors import TopicdError, TopicNotFound
from topicd.frames import core
from topicd.ipc.protocol.messages import Redrive
from topicd.limits import FETCH_BYTES_MAX, SCATTERED
from topicd.shards.delivery.queues.burying import Road
from topicd.shards.delivery.queues.letters import Returned, origin, returned
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges

_TOGETHER = 64
_LOOKED_AT = 10_000  # records of one request


class Redriving:
    def __init__(self, tools: Tools, road: Road) -> None:
        self._tools = tools
        self._road = road

    async def run(self, topic: Topic, want: Redrive) -> dict[str, Any]:
        """The answer. Raises what refuses the first of them; what was done before another refusal is told."""
        found, skipped, following = self._letters(topic, want)
        gone: list[int] = []
        refusal: TopicdError | None = None
        if want.discard:
            gone = [seq for seq, _ in found]
        else:
            ids: dict[str, int] = {}
            for at in range(0, len(found), _TOGETHER):
                some = found[at : at + _TOGETHER]
                outcomes = await asyncio.gather(*(self._send(topic, ids, seq, one) for seq, one in some))
                for (seq, _), error in zip(some, outcomes, strict=True):
                    if error is None:
                        gone.append(seq)
                    elif isinstance(error, TopicNotFound):
                        skipped.append(seq)  # its queue is not there any more
                    else:
                        refusal, following = error, min(following or seq, seq - 1)
                if refusal is not None:
                    break
        if refusal is not None and not gone:
            raise refusal
        if gone:
            await self._delete(topic, gone)
        done = 0 if want.discard else len(gone)
        return {
            "topic_id": topic.id,
            "redriven": done,
            "discarded": len(gone) - done,
            "skipped": sorted(skipped),
            "next": following,
        }

    def _letters(self, topic: Topic, want: Redrive) -> tuple[list[tuple[int, Returned]], list[int], int | None]:
        """(dead letters to go back, seqs that were named and are none, where to go on or None)"""
        found: list[tuple[int, Returned]] = []
        if want.seqs:
            skipped = []
            for seq in sorted(set(want.seqs)):
                row = self._row(topic, seq)
                if row is None or not _is_of(row, want.queue):
                    skipped.append(seq)
                else:
                    found.append((seq, returned(row)))
            return found, skipped, None
        position, looked_at, size = want.from_seq, 0, 0
        while position < topic.seqs.visible:
            answer = self._tools.reader.fetch(topic, position, 256, FETCH_BYTES_MAX, NO_FILTER)
            for part in answer.parts:
                for row in core.decode_frames(part, 0, len(part)):
                    if _is_of(row, want.queue):
                        found.append((row[0], returned(row)))
                        size += len(row[5])
                    looked_at += 1
                    full = len(found) == want.limit or looked_at == _LOOKED_AT or size > FETCH_BYTES_MAX
                    if full:
                        return found, [], row[0] if row[0] < topic.seqs.visible else None
            if answer.next_from <= position:
                break
            position = answer.next_from
        return found, [], None

    def _row(self, topic: Topic, seq: int) -> Any:
        if seq > topic.seqs.visible:
            return None
        answer = self._tools.reader.fetch(topic, seq - 1, 1, 1, NO_FILTER)
        rows = [row for part in answer.parts for row in core.decode_frames(part, 0, len(part))]
        return rows[0] if rows and rows[0][0] == seq else None

    async def _send(self, topic: Topic, ids: dict[str, int], seq: int, one: Returned) -> TopicdError | None:
        try:
            if one.queue not in ids:
                ids[one.queue] = await self._road.open(one.queue, create=False)
            number, options = SCATTERED | topic.id, one.options
            await self._road.append(one.queue, ids[one.queue], number, seq, one.frames, 1, options)
        except TopicdError as exc:
            return exc
        return None

    async def _delete(self, topic: Topic, seqs: list[int]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def told(records: int, error: TopicdError | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        self._tools.deletion.delete_seqs(topic, Ranges((seq, seq) for seq in sorted(seqs)), told)
        await done


def _is_of(row: Any, queue: str) -> bool:
    came_from = origin(row[4])
    return bool(came_from) and queue in ("", came_from)
