"""Every part of a delivery shard, built once and handed what it needs. Nothing else happens here: to follow a record,
read turn.py, then the rooms in the order of a record's way: sessions, writing, storing, reading, removing.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from topicd.errors import TopicdError
from topicd.ipc.control import ControlChannel
from topicd.ipc.protocol.messages import ChannelSlots
from topicd.limits import ROUTERS
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.channels.channels import Channels
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.damage import DamageLog
from topicd.shards.delivery.figures import Figures
from topicd.shards.delivery.laggards import Laggards
from topicd.shards.delivery.load import Load
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.queues.burying import Burials
from topicd.shards.delivery.queues.deadlines import Deadlines
from topicd.shards.delivery.queues.publishing import Publishing
from topicd.shards.delivery.queues.queues import Queues
from topicd.shards.delivery.queues.redriving import Redriving
from topicd.shards.delivery.queues.ticking import Ticking
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.reading.elsewhere import FramesElsewhere
from topicd.shards.delivery.reading.fan_out import FanOut
from topicd.shards.delivery.reading.holders import Holders
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.patterns import PatternWatchers
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.reading.subscriptions import Pushing
from topicd.shards.delivery.relay import Relay
from topicd.shards.delivery.removing.compaction import Compaction
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.removing.reclaim import Reclaimer
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.routing.own_topic import OwnTopic
from topicd.shards.delivery.routing.registry import Registry
from topicd.shards.delivery.routing.replica import Replica
from topicd.shards.delivery.routing.routing import Routing
from topicd.shards.delivery.routing.workshop import Workshop
from topicd.shards.delivery.sessions.connections import Connections
from topicd.shards.delivery.sessions.fairness import Fairness
from topicd.shards.delivery.slices import spread
from topicd.shards.delivery.starting.recovery import Recovery
from topicd.shards.delivery.storing.apply import Apply, Failures
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.backup_hold import BackupHold
from topicd.shards.delivery.storing.pressure import Pressure
from topicd.shards.delivery.storing.rounds import Rounds
from topicd.shards.delivery.storing.snapshots import Snapshots
from topicd.shards.delivery.storing.tiering import Tiering
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
from topicd.shards.process.threads import CountedThreads

log = logging.getLogger(__name__)


class Parts:
    def __init__(
        self,
        shard: Shard,
        loop: asyncio.AbstractEventLoop,
        outlets: list[Outlet],
        pool: Executor,
        channel_threads: Executor | None = None,
    ) -> None:
        place = self.place = Place(shard)
        self.loop = loop
        self.outlets = outlets
        counters = self.counters = Counters()
        agenda = self.agenda = Agenda(loop.call_soon, place.clock)
        board = self.board = shard.board
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
        elsewhere = self.elsewhere = FramesElsewhere(place, loop)
        segments = self.segments = Segments(place, elsewhere)
        live = self.live = LiveRecords(segments, pulse)
        retention = self.retention = Retention(place, live, log, counters, backlog)
        self.deletion = Deletion(log, segments, live, retention, backlog, counters, pulse)
        damage = self.damage = DamageLog(counters)
        reader = self.reader = Reader(place, segments, live, retention, damage)
        self.pushing = Pushing(reader, agenda, counters, board, loop.call_soon)
        self.patterns = PatternWatchers()
        self.holders = Holders()
        # Writing.
        direct = self.direct = DirectWrites(place, log, backlog, pressure)
        commits = Commits(counters, agenda, backlog, IdempotencyKeys(place.clock), direct, outlets)
        self.admission = WriteAdmission(place, log, direct, backlog, pressure, retention, board)
        ranges = RangeFinder(catalog, reader, segments)
        publishing = Publishing(place, log, live)
        self.appender = Appender(place, catalog, log, commits, self.admission, ranges, publishing)
        # Queues.
        self.deadlines = Deadlines(place.clock, loop.call_later)
        tools = Tools(place, log, agenda, live, retention, reader, self.deletion, damage, self.deadlines)
        self.queues = Queues(tools, catalog, publishing)
        # Dead letters and routers, over the sockets of all shards.
        relay = self.relay = Relay(place, loop)
        self.burials = Burials(tools, relay, loop)
        self.redriving = Redriving(tools, relay)
        self.ticking = Ticking(tools, self.appender)
        replica = Replica(place, loop, catalog, reader, relay)
        own = OwnTopic(ROUTERS, loop, catalog, self.appender, agenda)
        registry = Registry(place, relay, replica, own, self.deletion)
        shop = Workshop(place, loop, agenda, counters, log, catalog, reader, self.appender, relay, backlog)
        self.routing = Routing(place, loop, catalog, relay, replica, registry, shop, log)
        business = pool.business if isinstance(pool, CountedThreads) else lambda: 0.0
        fairness = self.fairness = Fairness(lambda: self.place.settings.flood_leave)
        load = self.load = Load(
            *(place, board, loop, agenda.ready, outlets, pressure, fairness, business),
            lambda: _call_supervisor(shard.channel),
        )
        self.turn = Turn(
            place,
            shard.bell,
            loop,
            outlets,
            agenda,
            self.appender,
            retention,
            pulse,
            board,
            load,
            FanOut(reader, agenda),
        )
        self._pump, self._polite = shop.pump, shop.pump.polite
        load.on_beat += [self.turn.look_at_pauses, self._look_at_shares, self._look_at_routers]
        # Storing.
        tiering = self.tiering = Tiering(place, loop, catalog, segments, elsewhere, damage, board, backlog)
        reclaimer = Reclaimer(place, loop, pool, backlog, segments, tiering)
        self.snapshots = Snapshots(place, loop, pool, outlets, catalog, backlog, direct, wal_sync, reclaimer, tiering)
        failures = Failures()
        apply = Apply(backlog, direct, live, failures, damage)
        self.rounds = Rounds(
            *(place, loop, pool, outlets, agenda, catalog, backlog, pressure),
            *(direct, wal_sync, apply, failures, reclaimer, self.snapshots),
        )
        self.trimmer = MemoryTrimmer(counters, backlog)
        self.channels = Channels(
            *(place, loop, channel_threads or pool, catalog, self.appender, reader, self.deletion, outlets),
            *(self._ask_slots, self._tell_slots),
        )
        self.compaction = Compaction(place, loop, pool, catalog, self.deletion, backlog, counters, board)
        self.backup_hold = BackupHold(
            *(place, loop, outlets, backlog, direct, self.rounds, self.snapshots, self.channels.files, tiering)
        )
        # Around it.
        self.connections = Connections(place)
        laggards = Laggards(catalog)
        self.survey = Survey(place, catalog, retention, backlog, reclaimer, log, laggards)
        self._surveying: asyncio.Future[None] | None = None
        self.figures = Figures(
            *(counters, catalog, outlets, self.rounds, segments, self.connections, self.survey, self.queues),
            *(load, place.clock, self.pushing, self.channels.tallies, shop, self.reader, self.backup_hold),
            *(laggards, tiering),
        )
        self._connect()
        self.rounds.unsafe_copies = self.routing.safety.unsafe_copies
        self.deletion.before_loss = self.routing.safety.before_loss
        self.deletion.copied = self.routing.safety.passed_by_all
        self.routing.free_acked = self.deletion.free_acked

    def tell_tally(self) -> None:
        """What this shard holds of what is limited for all."""
        self.place.tally.tell_bytes(self.backlog.total_bytes)
        self.catalog.tell_count()

    def _connect(self) -> None:
        """What follows from a change of a topic."""
        catalog, backlog = self.catalog, self.backlog

        def metadata_changed(topic: Topic) -> None:
            backlog.metadata_changed = True

        def tell_followers(topic: Topic) -> None:
            for follower in list(topic.followers):
                follower.gone()
            topic.followers.clear()

        catalog.on_born += [metadata_changed, self.patterns.note_new_topic, self.compaction.note]
        # What the old TTL has taken does not come back with a longer one.
        catalog.before_change += [self.retention.expire]
        catalog.on_changed += [self.deletion.free_acked, metadata_changed, self.compaction.note, self.agenda.moved]
        catalog.on_gone += [
            tell_followers,
            self.agenda.ready.forget,
            self.compaction.forget,
            self.segments.drop,
            lambda topic: self.direct.fail(topic, topic.gone()),
            backlog.forget,
        ]

    async def _ask_slots(self, shard: int, action: str, user: str, handler: str) -> dict[str, Any]:
        return await self.relay.ask(shard, ChannelSlots(action=action, user=user, channel=handler))

    def _tell_slots(self, shard: int, action: str, user: str, handler: str) -> None:
        async def tell() -> None:
            with suppress(TopicdError):  # what nobody heard ends by itself
                await self._ask_slots(shard, action, user, handler)

        self.channels.begin(tell())

    def recovery(self) -> Recovery:
        self.tiering.open()
        return Recovery(
            *(self.place, self.catalog, self.segments, self.live),
            *(self.retention, self.deletion, self.backlog, self.rounds),
            self.tiering,
        )

    def tick(self) -> None:
        """Once a second: what nobody reads or writes is looked after too, a piece at a time."""
        self.connections.close_stalled()
        self.pushing.tell_lagging(self.place.clock.monotonic())
        self.trimmer.tick()
        self.routing.tick()
        self.tiering.tick()
        self.compaction.tick()
        if self._surveying is None:
            self._surveying = asyncio.ensure_future(self._look_after(), loop=self.loop)

    def _look_at_shares(self) -> None:
        if self.board.refusing:
            self.fairness.release()

    def _look_at_routers(self) -> None:
        """One band lower is half the share."""
        self._pump.polite = self._polite * 2**self.board.routers_lower

    async def _look_after(self) -> None:
        try:
            await spread(self.survey.run(), PAUSE_S)
            self.rounds.tick()
        except Exception:
            log.exception("looking after the topics failed")
        finally:
            self._surveying = None


def _call_supervisor(channel: ControlChannel) -> None:
    """Somebody should look at the pressure. One that is gone or deaf is noticed by those who wait for it."""
    with suppress(EOFError, BufferError):
        channel.send({"event": "pressed"})
