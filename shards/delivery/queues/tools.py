"""What every queue of the shard uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.damage import DamageLog
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.queues.ahead import ReadAhead
from topicd.shards.delivery.queues.crons import Cron
from topicd.shards.delivery.queues.deadlines import Deadlines
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.writing.log import Log


class Tools:
    def __init__(
        self,
        place: Place,
        log: Log,
        agenda: Agenda,
        live: LiveRecords,
        retention: Retention,
        reader: Reader,
        deletion: Deletion,
        damage: DamageLog,
        deadlines: Deadlines,
    ) -> None:
        self.place = place
        self.clock = place.clock
        self.log = log
        self.agenda = agenda
        self.live = live
        self.retention = retention
        self.reader = reader
        self.ahead = ReadAhead(reader)
        self.deletion = deletion
        self.damage = damage
        self.deadlines = deadlines
        # Set by those who do it. (They know queues; a queue knows these only.)
        self.bury: Callable[[Any], None] = lambda service: None
        self.tick: Callable[[Any, Cron, int], None] = lambda service, cron, now_ms: None
        self.draining = False  # the shard is on its way out: nothing is handed out
