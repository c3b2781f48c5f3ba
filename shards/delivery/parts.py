"""Every part of a delivery shard, built once and handed what it needs. Nothing else happens here: to follow a record,
read turn.py, then the rooms in the order of a record's way: sessions, writing, storing, reading, removing.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.damage import DamageLog
from topicd.shards.delivery.figures import Figures
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.patterns import PatternWatchers
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.reading.subscriptions import Pushing
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.removing.reclaim import Reclaimer
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.sessions.connections import Connections
from topicd.shards.delivery.slices import spread
from topicd.shards.delivery.starting.recovery import Recovery
from topicd.shards.delivery.storing.apply import Apply, Failures
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.pressure import Pressure
from topicd.shards.delivery.storing.rounds import Rounds
from topicd.shards.delivery.storing.snapshots import Snapshots
from topicd.shards.delivery.storing.trim_memory import MemoryTrimmer
from topicd.shards.delivery.survey import PAUSE_S, Survey
from topicd.shards.delivery.topic.catalog import Catalog, TopicIds
from topicd.shards.delivery.topic.idempotency_keys import IdempotencyKeys
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.turn import Turn
from topicd.shards.delivery.writing.admission import WriteAdmission
from topicd.shards.delivery.writing.append import Appender
from topicd.shards.delivery.writing.copy_ranges import RangeFinder
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.in_flight import Commits
from topicd.shards.delivery.writing.log import Log
from topicd.shards.delivery.writing.outlet import Outlet
from topicd.shards.delivery.writing.wal_sync import WalSync
from topicd.shards.process.runtime import Shard

log = logging.getLogger(__name__)


class Parts:
    def __init__(self, shard: Shard, loop: asyncio.AbstractEventLoop, outlets: list[Outlet], pool: Executor) -> None:
        place = self.place = Place(shard)
        self.loop = loop
        self.outlets = outlets
        counters = self.counters = Counters()
        agenda = self.agenda = Agenda(loop.call_soon)
        pulse = self.pulse = Pulse(lambda: shard.stats.publish(self.figures.page()))
        # Storing, as far as others have to tell it something.
        backlog = self.backlog = Backlog()
        pressure = self.pressure = Pressure(place, backlog, loop.call_soon)
        wal_sync = self.wal_sync = WalSync(outlets)
        # The log, and what changes through it.
        log = self.log = Log(place, outlets, agenda, backlog)
        ids = self.ids = TopicIds(lambda: shard.channel.send({"event": "need_ids"}))
        catalog = self.catalog = Catalog(place, log, ids)
        # Reading and removing.
        segments = self.segments = Segments(place)
        live = self.live = LiveRecords(segments, pulse)
        retention = self.retention = Retention(place, live, log, counters, backlog)
        self.deletion = Deletion(log, segments, live, retention, backlog, counters, pulse)
        damage = DamageLog(counters)
        reader = self.reader = Reader(place, segments, live, retention, damage)
        self.pushing = Pushing(reader, agenda, counters, loop.call_soon)
        self.patterns = PatternWatchers()
        # Writing.
        direct = self.direct = DirectWrites(place, log, backlog, pressure)
        commits = Commits(counters, agenda, backlog, IdempotencyKeys(place.clock), direct)
        self.admission = WriteAdmission(place, log, direct, backlog, pressure, retention)
        ranges = RangeFinder(catalog, reader, segments)
        self.appender = Appender(place, catalog, log, commits, self.admission, ranges)
        self.turn = Turn(place, shard.bell, loop, outlets, agenda, self.appender, retention, pulse)
        # Storing.
        reclaimer = Reclaimer(place, loop, pool, backlog, segments)
        self.snapshots = Snapshots(place, loop, pool, outlets, catalog, backlog, direct, wal_sync, reclaimer)
        failures = Failures()
        apply = Apply(backlog, direct, live, failures, damage)
        self.rounds = Rounds(
            *(place, loop, pool, outlets, agenda, catalog, backlog, pressure),
            *(direct, wal_sync, apply, failures, reclaimer, self.snapshots),
        )
        self.trimmer = MemoryTrimmer(counters, backlog)
        # Around it.
        self.connections = Connections(place)
        self.survey = Survey(place, catalog, retention, backlog, reclaimer, log)
        self._surveying: asyncio.Future[None] | None = None
        self.figures = Figures(counters, catalog, outlets, self.rounds, segments, self.connections, self.survey)
        self._connect()

    def _connect(self) -> None:
        """What follows from a change of a topic."""
        catalog, backlog = self.catalog, self.backlog

        def metadata_changed(topic: Topic) -> None:
            backlog.metadata_changed = True

        def tell_followers(topic: Topic) -> None:
            for follower in list(topic.followers):
                follower.gone()
            topic.followers.clear()

        catalog.on_born += [metadata_changed, self.patterns.note_new_topic]
        # What the old TTL has taken does not come back with a longer one.
        catalog.before_change += [self.retention.expire]
        catalog.on_changed += [self.deletion.free_acked, metadata_changed, self.agenda.moved]
        catalog.on_gone += [
            tell_followers,
            self.agenda.ready.forget,
            self.segments.drop,
            lambda topic: self.direct.fail(topic, topic.gone()),
            backlog.forget,
        ]

    def recovery(self) -> Recovery:
        return Recovery(
            *(self.place, self.catalog, self.segments, self.live),
            *(self.retention, self.deletion, self.backlog, self.rounds),
        )

    def tick(self) -> None:
        """Once a second: what nobody reads or writes is looked after too, a piece at a time."""
        self.connections.close_stalled()
        self.trimmer.tick()
        if self._surveying is None:
            self._surveying = asyncio.ensure_future(self._look_after(), loop=self.loop)

    async def _look_after(self) -> None:
        try:
            await spread(self.survey.run(), PAUSE_S)
            self.rounds.tick()
        except Exception:
            log.exception("looking after the topics failed")
        finally:
            self._surveying = None
