"""The delivery shard as an actor: its state, and what the parts of it tell each other. One thread, no locks.

A turn: bytes arrive or the doorbell rings; entries are told their outcome; topics that moved tell their
followers; sessions flush; the WAL shards are rung. Everything else is a timer.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import select
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from topicd.clock import SystemClock
from topicd.config import Settings
from topicd.errors import Forbidden, InvalidRequest, Throttled, TopicdError, TopicNotFound, Unauthorized
from topicd.ipc.unixsock import peer_credentials
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.ready import effective_priority
from topicd.shards.delivery.removing.deletion import Deletion, note_tags
from topicd.shards.delivery.removing.retention import IndexSizes, Retention
from topicd.shards.delivery.storing.rounds import Checkpointer
from topicd.shards.delivery.topic.catalog import Topics
from topicd.shards.delivery.topic.consumers import Cursors
from topicd.shards.delivery.topic.idempotency_keys import KeyWindow
from topicd.shards.delivery.topic.patterns import note_new_topic
from topicd.shards.delivery.writing.append import Appender
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.outlet import Entry, Need, Outlet, all_synced
from topicd.shards.linger import Linger
from topicd.shards.runtime import HEARTBEAT_S
from topicd.shards.storage.segment.reader import SegmentReader
from topicd.shards.storage.segment.reader_cache import ReaderCache
from topicd.tokens import Rights, TokenFile

if TYPE_CHECKING:
    from topicd.shards.delivery.sessions.session import Session
    from topicd.shards.delivery.topic.tail import Blob
    from topicd.shards.delivery.topic.topic import Topic
    from topicd.shards.runtime import Shard
    from topicd.shards.storage.segment.info import SegmentInfo
    from topicd.shards.storage.segment.lookup import SegmentLookup

log = logging.getLogger(__name__)

_STALLED_MESSAGE_S = 30.0
_NEXT_REQUEST_US = 60  # what an answer takes to its writer, and the writer's next request to here
_DIRS_KEPT = 8_192
TOP_TOPICS = 20  # whose figures are on the stats page
_SLOWEST_BYTES_S = 1 << 20  # a long message may take longer, if it comes at this pace


class Actor:
    def __init__(self, shard: Shard, loop: asyncio.AbstractEventLoop, outlets: list[Outlet]) -> None:
        self.shard = shard
        self.loop = loop
        self.outlets = outlets
        for outlet in outlets:
            outlet.send_answers = self.flush_sessions
        self.clock = shard.clock
        self.settings: Settings = shard.settings
        self.fs = shard.fs
        self.data = shard.data
        # Asked for with every read from segments and every write to them.
        self.topic_dir = lru_cache(_DIRS_KEPT)(shard.data.topic)
        info = shard.boot
        self.index = info.index
        self.instance = info.instance
        self.wal_shards = info.wal_shards
        self.delivery_shards = info.delivery_shards
        self.socket_paths = [str(shard.run.delivery_socket(i).absolute()) for i in range(info.delivery_shards)]
        # A batch larger than the ring goes through it in pieces; a frame always fits one.
        self.piece_bytes = shard.settings.ring_bytes * 3 // 4
        self.tokens: TokenFile | None = None
        self.tcp_ports: list[int] = []
        self.draining = False
        self.wal_is_away = False  # as far as draining found out
        self.total_bytes_share = self.share_of(self.settings.max_total_bytes)
        # parts
        self.topics = Topics(self)
        self.appender = Appender(self)
        self.direct = DirectWrites(self)
        self.reader = Reader(self)
        self.retention = Retention(self)
        self.deletion = Deletion(self)
        self.cursors = Cursors(self)
        self.keys = KeyWindow(self.clock)
        self.readers = ReaderCache(shard.fs, shard.settings.map_cache_bytes)
        self.checkpointer = Checkpointer(self)
        # state of the turn
        self.sessions: set[Session] = set()
        self._moved: dict[int, Topic] = {}
        self.to_flush: set[Session] = set()
        self.pushed: set[Session] = set()
        self._turn_scheduled = False
        self._shown_at = time.monotonic()
        self.to_ring: set[Outlet] = set()
        self._write_linger = Linger(self.settings.linger_us)
        self._request_linger = Linger(min(_NEXT_REQUEST_US, self.settings.linger_us))
        self._events = _events_of(loop)
        # counters
        self.appends = 0
        self.records = 0
        self.bytes_taken = 0
        self.evicted_total = 0
        self.deleted_total = 0
        self.lagged_total = 0
        self.tombstones_total = 0
        self.throttled_total = 0
        self.loop_lag_ms = 0.0
        self.damage: list[str] = []

    # ---- the turn ----

    def doorbell(self) -> None:
        """The WAL shards have news. Announce, then look once more: what came in between would not ring again."""
        bell = self.shard.bell
        lone = self._under_way() == 1
        while True:
            self._collect()
            # Emptied only now: those who wait for an answer do not wait for this.
            bell.awake()
            bell.announce()
            if not self._collect():
                break
        if lone and not self._under_way():
            self._await_request()

    def _collect(self) -> bool:
        told = False
        for outlet in self.outlets:
            told = outlet.collect() or told
        if told or self.to_flush or self._moved:
            self.end_turn()
        return told

    def await_write(self) -> None:
        """A lone write is stored sooner than this process could fall asleep and be woken. Whatever else comes ends
        the wait."""
        if self._under_way() != 1 or not self._write_linger.worthwhile():
            return
        bell = self.shard.bell
        bell.withdraw()
        stored = self._write_linger.until(self._stored_or_disturbed)
        bell.announce()
        self._collect()
        if stored and not self._under_way():
            self._await_request()

    def _under_way(self) -> int:
        return sum(outlet.under_way for outlet in self.outlets)

    def _stored_or_disturbed(self) -> bool:
        return any(outlet.oldest_is_stored for outlet in self.outlets) or self._something_came()

    def _await_request(self) -> None:
        """Whoever writes one record at a time sends the next when it has the answer. Nothing is read here: the loop
        finds the request, and whatever else came, without having slept."""
        if self._request_linger.worthwhile():
            self._request_linger.until(self._something_came)

    def _something_came(self) -> bool:
        return self._events is not None and bool(self._events.poll(0))

    async def wait_synced(self) -> None:
        """Until everything placed so far is durable. On the way out, a WAL shard that has left is waited for once."""
        if not self.wal_is_away:
            self.wal_is_away = not await all_synced(self.outlets) and self.draining

    def flush_sessions(self) -> None:
        """Those who were pushed records come first: they wait for data, the others for a number."""
        for sessions in (self.pushed, self.to_flush):
            for session in sessions:
                session.flush()
            sessions.clear()

    def flush_later(self, session: Session) -> None:
        self.to_flush.add(session)
        self._schedule_turn()

    def flush_first(self, session: Session) -> None:
        self.pushed.add(session)
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self.end_turn()

    def end_turn(self) -> None:
        """Ring first: the disk works while followers and sessions are served."""
        self.appender.close_entry()
        for outlet in self.to_ring:
            outlet.flush()
        self.to_ring.clear()
        while self._moved:
            _, topic = self._moved.popitem()
            if topic.capped or topic.ephemeral:
                self.retention.enforce(topic)
            for follower in list(topic.followers):
                follower.moved()
                self.show_life()
        self.flush_sessions()
        self.show_life()

    def publish_stats(self) -> None:
        self._shown_at = time.monotonic()
        self.shard.stats.publish(self.counters())

    def show_life(self) -> None:
        """One who has much to do is not dead: thousands of peers may keep the heartbeat from its turn."""
        if time.monotonic() - self._shown_at > 2 * HEARTBEAT_S:
            self.publish_stats()

    # ---- what parts tell ----

    def note_visible(self, topic: Topic, blob: Blob, count: int, untagged: bool = False) -> None:
        self.appends += 1
        self.records += count
        self.bytes_taken += blob.end - blob.start
        topic.last_write_ms = blob.last_ts
        self._moved[topic.id] = topic
        if not untagged:
            note_tags(topic, blob)
        self.checkpointer.note_blob(topic, blob)

    def note_read(self, topic: Topic) -> None:
        topic.last_read_ms = self.clock.now_ms()

    def note_config(self, topic: Topic) -> None:
        self._moved[topic.id] = topic
        self.checkpointer.note_metadata(topic)
        self._schedule_turn()

    def note_new_topic(self, topic: Topic) -> None:
        self.checkpointer.note_metadata(topic)
        note_new_topic(self, topic)

    def note_deleted(self, topic: Topic) -> None:
        for follower in list(topic.followers):
            follower.gone(topic)
        topic.followers.clear()
        self._moved.pop(topic.id, None)
        self.readers.drop(topic.id)
        self.checkpointer.note_deleted(topic)

    def note_reclaimable(self, topic: Topic) -> None:
        self.checkpointer.note_reclaimable(topic)

    def submit_control(self, topic: Topic, frame: bytes, entry: Entry) -> None:
        """Put a control frame of the topic into the log; its snapshot is due before the WAL may forget it."""
        self.appender.close_entry()  # what was written before comes first in the log too
        outlet = self.outlets[topic.outlet]
        if outlet.read_only_errno and entry.need is not Need.PLACED:
            entry.failed(outlet.refusal())
            return
        outlet.submit([frame], len(frame), entry)
        self.checkpointer.note_control(outlet, len(frame))
        self.to_ring.add(outlet)
        self._schedule_turn()

    def topic_gone(self, topic: Topic) -> TopicNotFound:
        return TopicNotFound(f"topic {topic.name!r} was deleted", topic=topic.name, topic_id=topic.id)

    def ask_for_ids(self) -> None:
        self.shard.channel.send({"event": "need_ids"})

    # ---- where records are ----

    def segment_reader(self, topic: Topic, info: SegmentInfo) -> SegmentReader:
        return self.readers.get(topic.id, self.topic_dir(topic.id), info)

    def segment_glance(self, topic: Topic, info: SegmentInfo) -> SegmentReader:
        """Cheaper for few records; see ReaderCache.glance."""
        return self.readers.glance(topic.id, self.topic_dir(topic.id), info)

    def segment_lookup(self, topic: Topic, info: SegmentInfo) -> SegmentLookup:
        return self.readers.lookup(topic.id, self.topic_dir(topic.id), info)

    @staticmethod
    def lookup_sizes(lookup: SegmentLookup) -> IndexSizes:
        return IndexSizes(lookup.offset)

    def segment_sizes(self, topic: Topic, info: SegmentInfo) -> IndexSizes:
        return IndexSizes(self.segment_reader(topic, info).offset)

    def ts_of(self, topic: Topic, seq: int) -> int:
        """When a stored record was written; the topic's newest time for one that is not there."""
        for info in topic.segments:
            if seq <= info.last_seq:
                return self.segment_reader(topic, info).entry(max(seq, info.first_seq)).ts
        for blob in topic.tail.from_seq(seq):
            return blob.first_ts
        return topic.last_ts

    # ---- limits ----

    def admit(self, session: Session, sock: socket.socket) -> TopicdError | None:
        if len(self.sessions) >= self.settings.max_connections:
            limit = self.settings.max_connections
            return Throttled(f"{limit} connections are open already", limit="max_connections", retry_after_ms=1_000)
        if sock.family == socket.AF_UNIX:
            _, uid, _ = peer_credentials(sock)
            if uid not in self.settings.uids:
                return Forbidden(f"uid {uid} may not connect; see the setting allowed_uids", uid=uid)
        else:
            session.needs_token = True
        self.sessions.add(session)
        return None

    def authorize(self, secret: Any) -> Rights:
        """The rights of a connection that no user id vouches for."""
        if self.tokens is None:
            raise Unauthorized("this daemon knows no tokens")
        try:
            return self.tokens.authorize(secret, SystemClock().now_ms())
        except Unauthorized as exc:
            log.warning("connection refused", extra={"reason": exc.message})
            raise

    def share_of(self, limit: int) -> int | None:
        """This shard's share of a limit for all: together the shards never exceed it. None: no limit."""
        if not limit:
            return None
        return limit // self.delivery_shards + (1 if self.index < limit % self.delivery_shards else 0)

    def use_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.total_bytes_share = self.share_of(settings.max_total_bytes)

    def total_bytes(self) -> int:
        return self.checkpointer.total_bytes()

    def effective_priority(self, topic: Topic) -> int:
        return effective_priority(topic, self.clock.now_ms())

    def close_stalled(self) -> None:
        """A message that never ends, or a connection that never says hello, does not stay."""
        now = self.clock.monotonic()
        for session in list(self.sessions):
            patience = _STALLED_MESSAGE_S + session.incomplete_bytes / _SLOWEST_BYTES_S
            if session.waiting_since and now - session.waiting_since > patience:
                session.refused(0, InvalidRequest(f"no complete message within {patience:.0f} s"))
                session.close()
            else:
                session.relax()

    def _top_topics(self) -> list[list[Any]]:
        """[name, newest seq, records, bytes, largest consumer lag] of the topics written last: bounded, whatever
        the number of topics."""
        recent = heapq.nlargest(TOP_TOPICS, self.topics.by_name.values(), key=lambda topic: topic.last_write_ms)
        return [
            [topic.name[:64], topic.visible, topic.count, topic.bytes, self.cursors.largest_lag(topic)]
            for topic in recent
        ]

    def counters(self) -> dict[str, Any]:
        return {
            "topics": len(self.topics.by_name),
            "sessions": len(self.sessions),
            "appends": self.appends,
            "records": self.records,
            "evicted": self.evicted_total,
            "deleted": self.deleted_total,
            "lagged": self.lagged_total,
            "tombstones": self.tombstones_total,
            "throttled": self.throttled_total,
            "top_topics": self._top_topics(),
            "in_flight_bytes": sum(outlet.in_flight_bytes for outlet in self.outlets),
            "ring_backlog_bytes": sum(outlet.backlog_bytes for outlet in self.outlets),
            **self.checkpointer.counters(),
            "loop_lag_ms": self.loop_lag_ms,
            "damage": len(self.damage),
        }


def _events_of(loop: asyncio.AbstractEventLoop) -> Any:
    """Tells whether the loop has anything to do; None: this loop does not show it."""
    backend = getattr(loop, "_get_backend_id", None)
    if backend is None:
        return None
    events = select.poll()
    events.register(backend(), select.POLLIN)
    return events
