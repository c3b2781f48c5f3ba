"""The process of one WAL shard: open the log, turn the committer, sleep without spinning, leave clean.

Start is one of two: a successor of a killed shard goes on exactly where its state page says; a new run first drains the
rings that a killed run left in shared memory, cuts the torn tail, and then begins with empty rings.
"""

from __future__ import annotations

import logging
import os
import select
import signal
from types import FrameType
from typing import Any

from topicd import _native, child
from topicd.clock import SystemClock
from topicd.ipc.linger import Linger
from topicd.ipc.ring import RingConsumer
from topicd.ipc.shardboot import DELIVERY
from topicd.ipc.slots import Slots
from topicd.ipc.walstate import WalState
from topicd.paths import ring_shm, wal_state_shm
from topicd.shards.process import runtime
from topicd.shards.process.runtime import Shard
from topicd.shards.storage.walfile import fresh_lsn
from topicd.shards.wal import adopt, turns
from topicd.shards.wal.aside import Beside, InTurn
from topicd.shards.wal.committer import Committer, Inlet
from topicd.shards.wal.log import WalLog
from topicd.shards.wal.turns import LEFT_TO_PYTHON, NativeTurns, Why

log = logging.getLogger(__name__)

_NEXT_WRITE_US = 160  # what an answer takes to its writer, and the writer's next record to here
_LONE_BYTES = 4096  # a group up to this is the write of somebody who waits for it


def serve(shard: Shard) -> None:
    WalShard(shard).run()


class WalShard:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        info = shard.boot
        self._state = Slots.attach(wal_state_shm(info.instance, info.index), info.instance)
        self._rings = [
            RingConsumer.attach(ring_shm(info.instance, info.index, dlv), info.instance)
            for dlv in range(info.delivery_shards)
        ]
        self._stopping = False
        self._lone_written = False
        self._answered = Linger(min(_NEXT_WRITE_US, shard.settings.linger_us))
        self._adopted: list[int] = []
        self.damage: list[str] = []  # what the start found

    def run(self) -> None:
        self._committer = self._open()
        signal.signal(signal.SIGTERM, self._asked_to_stop)
        self._shard.serving()
        self._publish_stats()
        self._loop()
        self._committer.finish()
        for ring in self._rings:
            ring.set_consumer_pid(0)  # whoever is on its way out does not wait for us
        self._publish_stats()
        self._log.close()

    # ---- start ----

    def _open(self) -> Committer:
        shard, info = self._shard, self._shard.boot
        directory = shard.data.wal_shard(info.index)
        payload = self._state.read()
        # With the clock of a test every call is made in its turn.
        aside = Beside(shard.bell.ring_always) if isinstance(shard.clock, SystemClock) else InTurn()
        self._log = WalLog(shard.fs, directory, shard.settings.wal_file_bytes, info.run, info.wal_seed, aside)
        if payload is None:
            self._adopted, end_lsn = adopt.adopt_previous_run(shard, self.damage)
            end = adopt.settle_tail(shard, info.index, end_lsn, self.damage)
            usable = end.file is not None and not end.torn and not end.unread
            begin = end.lsn if end.lsn or end.file is not None else fresh_lsn(info.run)
            self._log.open(begin, end.file.first_lsn if end.file is not None and usable else None)
            inlets = self._inlets([0] * len(self._rings))
        else:
            state = WalState.unpack(payload)
            log.info("going on after a crash", extra={"lsn": state.lsn})
            self._log.open(state.lsn, state.first_lsn)
            inlets = self._inlets(list(state.written))
        disk_sync_s, board = shard.settings.disk_sync_ms / 1000, shard.board
        committer = Committer(self._log, self._state, shard.clock, inlets, disk_sync_s, lambda: board.commit_us)
        committer.open(shard.settings.wal_file_bytes - 4096)
        for ring in self._rings:
            ring.set_consumer_pid(os.getpid())
        return committer

    def _inlets(self, written: list[int]) -> list[Inlet]:
        return [
            Inlet(ring, self._shard.bell_of(DELIVERY, dlv), written[dlv], ring.synced_pos)
            for dlv, ring in enumerate(self._rings)
        ]

    # ---- life ----

    def _loop(self) -> None:
        shard, committer, clock = self._shard, self._committer, self._shard.clock
        poll = select.poll()
        poll.register(shard.bell.fd, select.POLLIN)
        poll.register(shard.channel.fileno(), select.POLLIN)
        next_tick = clock.monotonic()
        native = self._native_turns()
        self._take_messages()  # some may have come with the boot message
        while not self._stopping:
            if native is not None and committer.is_calm():
                why = native.run(next_tick)
                if why is Why.TICK:
                    next_tick = clock.monotonic() + child.HEARTBEAT_S
                    self._tick(idle=not committer.pending())
                elif why is Why.MESSAGE:
                    self._take_messages()
                if why not in LEFT_TO_PYTHON:
                    continue
            before = committer.bytes
            busy = committer.turn()
            self._lone_written = self._lone_written or 0 < committer.bytes - before <= _LONE_BYTES
            now = clock.monotonic()
            if now >= next_tick:
                next_tick = now + child.HEARTBEAT_S
                self._tick(idle=not busy)
            if busy or self._something_comes():
                continue
            # Emptied only now: whoever rang waits for the turn, not for this.
            shard.bell.awake()
            shard.bell.announce()
            if not committer.pending():
                self._sleep(poll, committer.next_deadline(), next_tick - now)

    def _native_turns(self) -> NativeTurns | None:
        shard, committer = self._shard, self._committer
        if not turns.possible(committer.log, shard.clock):
            return None
        channel = shard.channel.fileno()
        return NativeTurns(committer, shard.bell, channel, shard.board, self._answered, _LONE_BYTES)

    def _something_comes(self) -> bool:
        """Has somebody got an answer who writes one record at a time? Then more comes before this process could fall
        asleep and be woken, and its core is awake for the writer."""
        lone, self._lone_written = self._lone_written, False
        return lone and self._answered.worthwhile() and self._answered.until(self._committer.pending)

    def _sleep(self, poll: select.poll, deadline: float | None, tick: float) -> None:
        wait = tick if deadline is None else min(tick, deadline)
        if not _native.is_native:
            wait = min(wait, runtime.PURE_POLL_S)
        for fd, _ in poll.poll(max(0.0, wait) * 1000):
            if fd == self._shard.channel.fileno():
                self._take_messages()

    def _take_messages(self) -> None:
        for message in child.messages(self._shard.channel):
            if message.get("event") == "stop":
                self._stop()

    def _asked_to_stop(self, signum: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _stop(self) -> None:
        self._stopping = True

    def _tick(self, *, idle: bool) -> None:
        if idle and self._committer.attest():
            log.debug("sync attested", extra={"lsn": self._log.lsn})
        recycled = self._committer.recycle_absorbed()
        if recycled:
            log.debug("files recycled", extra={"files": recycled})
        self._log.tick()
        if self._adopted and all(ring.absorbed_pos is not None for ring in self._rings):
            self._adopted = adopt.drop_adopted(self._shard, self._adopted)
        self._publish_stats()

    def _publish_stats(self) -> None:
        committer = self._committer
        values: dict[str, Any] = {
            "groups": committer.groups,
            "bytes": committer.bytes,
            "syncs": committer.syncs,
            "failures": committer.failures,
            "read_only": committer.read_only_errno,
            "damage": len(self.damage),
            "rotations": self._log.rotations,
            "lsn": self._log.lsn,
            "synced_lsn": self._log.synced_lsn,
            "ring_used": [ring.used for ring in self._rings],
            "ring_capacity": self._rings[0].capacity,
            "waited_s": committer.waited_s,
            "sync_seconds_total": committer.sync_latency.total_s,
            "sync_histogram": committer.sync_latency.counts,
            "sync_us_histogram": committer.sync_latency.by_us,
        }
        self._shard.stats.publish(values)
