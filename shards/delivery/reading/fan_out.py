"""One record to many subscribers: those who would get the same bytes get them in one pass. The frames are read and put
together once, and go to all sockets in one call outside the interpreter's lock. Promise: what each of them receives,
its cursor, its credit and what its outbox holds are as if it had been served by itself; who cannot be served so is
left to that way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from topicd._native import send_each
from topicd.ipc.protocol.wire import OP_PUSH
from topicd.limits import FETCH_RECORDS_MAX
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.reading.filters import NO_FILTER, ReadFilter
from topicd.shards.delivery.reading.reading import ReadAnswer, Reader
from topicd.shards.delivery.reading.subscriptions import PUSH_BYTES, TopicFeed
from topicd.shards.delivery.sessions.outbox import frames_head
from topicd.shards.delivery.topic.follower import Follower
from topicd.shards.delivery.topic.topic import Topic

SHARED = 16  # followers of a topic; with fewer it is not worth looking for those that are alike
_ALIKE = 8


class FanOut:
    def __init__(self, reader: Reader, agenda: Agenda) -> None:
        self._reader = reader
        self._agenda = agenda

    def push(self, topic: Topic, followers: list[Follower]) -> list[Follower]:
        """Those who are still to be told."""
        if send_each is None or topic.policy.yields:
            return followers
        rest: list[Follower] = []
        alike: dict[tuple[int, ReadFilter], list[TopicFeed]] = {}
        stored = topic.seqs.stored
        for follower in followers:
            if isinstance(follower, TopicFeed) and follower.shares and follower.cursor >= stored:
                key = (follower.cursor, follower.subscription.filter)
                feeds = alike.get(key)
                if feeds is None:
                    alike[key] = [follower]
                else:
                    feeds.append(follower)
            else:
                rest.append(follower)
        for (cursor, chosen), feeds in alike.items():
            answer = self._read(topic, cursor, chosen) if len(feeds) >= _ALIKE else None
            if answer is None:
                rest += feeds
            else:
                self._push_all(topic, answer, feeds)
                rest += [feed for feed in feeds if feed.behind]
        return rest

    def _read(self, topic: Topic, cursor: int, chosen: ReadFilter) -> ReadAnswer | None:
        """None: somebody has to be told more than records, each by itself."""
        if chosen == NO_FILTER:
            return self._reader.newest(topic, cursor, PUSH_BYTES)
        if chosen.committed or topic.contents.damaged or cursor >= topic.seqs.visible:
            return None
        answer = self._reader.fetch(topic, cursor, FETCH_RECORDS_MAX, PUSH_BYTES, chosen)
        return answer if answer.tombstone is None and answer.next_from > cursor else None

    def _push_all(self, topic: Topic, answer: ReadAnswer, feeds: Sequence[TopicFeed]) -> None:
        by_id: dict[int, list[TopicFeed]] = {}
        for feed in feeds:
            feed.cursor = answer.next_from
            if answer.count:
                feed.subscription.credit -= answer.bytes
                by_id.setdefault(feed.subscription.id, []).append(feed)
            self._reader.note_read(topic, answer.count)
        for sub_id, same in by_id.items():
            self._send(b"".join([frames_head(OP_PUSH, sub_id, topic, answer), *answer.parts]), same)

    def _send(self, data: bytes, feeds: list[TopicFeed]) -> None:
        assert send_each is not None
        outboxes = [feed.subscription.outbox for feed in feeds]
        size = len(data)
        missed = send_each(array("i", [outbox.free_socket for outbox in outboxes]).tobytes(), data)
        for outbox in outboxes:
            outbox.sent(size)
        for index, sent in missed:
            # What does not fit waits as it would have, and its transport finds out why.
            outbox = outboxes[index]
            outbox.sent(sent - size)
            outbox.write(memoryview(data)[sent:])
            self._agenda.flush_first(outbox)
