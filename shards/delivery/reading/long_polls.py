"""A fetch that found nothing and waits for records, for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from topicd.errors import TopicdError
from topicd.shards.delivery.reading.elsewhere import StillComing
from topicd.shards.delivery.reading.filters import ReadFilter
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.sessions.outbox import Outbox
from topicd.shards.delivery.topic.follower import Follower
from topicd.shards.delivery.topic.topic import Topic


class LongPoll(Follower):
    def __init__(
        self,
        outbox: Outbox,
        reader: Reader,
        request_id: int,
        topic: Topic,
        fetch: tuple[int, int, int, ReadFilter],
        started_at: float | None,
        ended: Callable[[LongPoll], None],
    ) -> None:
        self._outbox = outbox
        self._reader = reader
        self._request_id = request_id
        self._topic = topic
        self._from_seq, self._limit, self._max_bytes, self._filter = fetch
        self._started_at = started_at
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop, wait_ms: int) -> None:
        self._topic.followers.add(self)
        self._timer = loop.call_later(wait_ms / 1000, self._expire)

    @property
    def asked(self) -> bool:
        return True

    def moved(self) -> None:
        self._answer(give_up=False)

    def gone(self) -> None:
        self.cancel()
        self._outbox.refused(self._request_id, self._topic.gone())

    def cancel(self) -> None:
        self._topic.followers.discard(self)
        self._ended(self)
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._answer(give_up=True)

    def _answer_if_there(self, *, give_up: bool) -> None:
        if self in self._topic.followers:
            self._answer(give_up=give_up)

    def _answer(self, *, give_up: bool) -> None:
        try:
            answer = self._reader.fetch(self._topic, self._from_seq, self._limit, self._max_bytes, self._filter)
        except StillComing as coming:
            coming.then(lambda: self._answer_if_there(give_up=give_up))
            return
        except TopicdError as exc:
            self.cancel()
            self._outbox.refused(self._request_id, exc)
            return
        if answer.count or answer.tombstone is not None or give_up:
            self.cancel()
            if answer.count:
                self._reader.note_read(self._topic, answer.count)
            self._outbox.fetched(self._request_id, self._topic, answer, self._started_at)
        else:
            self._from_seq = answer.next_from
