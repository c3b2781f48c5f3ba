"""One topic as its owner sees it: configuration, seqs, floors, where its records are. State only; policy lives in
append, retention, reading, deletion and checkpoint. The actor's thread only.

Seqs: 1 <= evict_floor <= earliest <= visible + 1; stored <= visible <= head. Records up to `stored` are in segments,
those above up to `visible` in the tail; what lies above `visible` is under way to the WAL.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from topicd.limits import MAX_SEQ
from topicd.model import Durability, GapReason, Tombstone, TopicConfig, is_internal
from topicd.shards.delivery.topic.producers import ProducerTable
from topicd.shards.delivery.topic.tail import Tail
from topicd.shards.delivery.writing.outlet import NEED_OF, Need
from topicd.shards.storage.ranges import Ranges

if TYPE_CHECKING:
    from topicd.shards.delivery.reading.subscriptions import Follower
    from topicd.shards.delivery.topic.consumers import Cursor
    from topicd.shards.delivery.writing.in_flight import AppendEntry
    from topicd.shards.storage.segment.info import SegmentInfo

_LOSSES_KEPT = 64


class Loss(NamedTuple):
    """Involuntary removal: seqs from the previous loss's floor up to below `floor` went for this reason."""

    floor: int
    reason: str
    records: int


@dataclass(slots=True)
class Damaged:
    """Seqs that were stored once and cannot be read any more."""

    first_seq: int
    last_seq: int
    where: str


class Topic:
    def __init__(self, topic_id: int, name: str, config: TopicConfig, outlet: int, created_ms: int) -> None:
        self.id = topic_id
        self.name = name
        self.outlet = outlet
        self.created_ms = created_ms
        self.live = True
        self.internal = is_internal(name)
        self.next_config: TopicConfig | None = None  # the newest change under way
        self.change_no = 0  # of the newest change of configuration or consumers, stored or under way
        self.changes_under_way: set[int] = set()
        # seqs
        self.head = 0
        self.visible = 0
        self.stored = 0
        self.reserved = 0  # a mark in the log says: seqs up to here may have been given out (disk, ephemeral)
        self.reserving = 0  # the mark under way
        self.reserve_block = 512
        self.last_ts = 0
        # floors
        self.earliest = 1
        self.evict_floor = 1
        self.losses: list[Loss] = []
        self.delete_below = 0
        # content
        self.count = 0
        self.bytes = 0
        self.tail = Tail()
        self.segments: list[SegmentInfo] = []
        self.marks: dict[int, Ranges] = {}  # dead seqs by segment
        self.tail_dead = Ranges()
        self.gone = Ranges()  # seqs of segments that were dropped whole because every record was deleted
        self.lost = Ranges()  # seqs that power loss took before they were synced
        self.unmarked: dict[int, Ranges] = {}  # dead seqs by segment that are not in its .del file yet
        self.recent_tags: dict[bytes, list[int]] = {}  # seqs of tagged records that are in no sealed segment
        self.damaged: list[Damaged] = []
        # under way
        self.pending_count = 0
        self.pending_bytes = 0
        self.pending_synced = 0
        self.under_way: deque[AppendEntry] = deque()  # oldest first
        self.lane: deque[AppendEntry] = deque()  # of these, the oldest direct write and all behind it
        self.debris = False  # a direct write failed and may have left bytes behind the last record
        # others
        self.producers = ProducerTable()
        self.consumers: dict[str, Cursor] = {}
        self.followers: set[Follower] = set()
        self.last_write_ms = 0
        self.last_read_ms = 0
        self.ephemeral = False
        self.set_config(config)

    def set_config(self, config: TopicConfig) -> None:
        self.config = config
        # Asked once per write, so not looked up each time.
        was_ephemeral, self.ephemeral = self.ephemeral, config.durability == Durability.EPHEMERAL
        if self.ephemeral and not was_ephemeral:
            self.reserved = self.reserving = 0  # nothing was given out yet, or it could not change
        self.capped = bool(config.cap_records or config.cap_bytes)
        self.reserves = config.durability == Durability.DISK
        self.synced = config.durability == Durability.FSYNC
        self._need = NEED_OF[Durability(config.durability)]

    def begin_change(self) -> int:
        """Changes are numbered, so that replay knows which of them a snapshot holds already."""
        self.change_no += 1
        self.changes_under_way.add(self.change_no)
        return self.change_no

    def end_change(self, number: int) -> None:
        self.changes_under_way.discard(number)

    @property
    def settled_changes(self) -> int:
        """Every change up to this number is done, or was refused."""
        return min(self.changes_under_way, default=self.change_no + 1) - 1

    @property
    def oldest_end_ms(self) -> int:
        """When the newest record of the oldest segment or blob was written; now or later if there is none."""
        if self.segments:
            return self.segments[0].last_ts
        blob = self.tail.first()
        return MAX_SEQ if blob is None else blob.last_ts

    def need_for(self, last_seq: int) -> Need:
        """The class of the next write. It never overtakes a stricter one under way, nor the mark of reserved seqs."""
        if self.pending_synced or (self.reserves and last_seq > self.reserved):
            return Need.SYNCED
        return self._need

    def note_loss(self, floor: int, reason: str, records: int) -> None:
        """Cap or TTL removed everything below floor. Old entries merge, so the list stays short."""
        if floor <= self.evict_floor:
            return
        self.evict_floor = floor
        if self.losses and self.losses[-1].reason == reason:
            self.losses[-1] = Loss(floor, reason, self.losses[-1].records + records)
        else:
            self.losses.append(Loss(floor, reason, records))
        if len(self.losses) > _LOSSES_KEPT:
            first, second = self.losses[:2]
            reason = first.reason if first.reason == second.reason else GapReason.MIXED.value
            self.losses[:2] = [Loss(second.floor, reason, first.records + second.records)]

    def tombstone(self, from_seq: int) -> Tombstone | None:
        """What a reader behind the evict floor has missed."""
        if from_seq + 1 >= self.evict_floor:
            return None
        reasons = {loss.reason for loss in self.losses if loss.floor > from_seq + 1}
        reason = reasons.pop() if len(reasons) == 1 else GapReason.MIXED.value
        gap_to = self.evict_floor - 1
        return Tombstone(from_seq + 1, gap_to, reason, gap_to - from_seq, self.earliest, self.visible)
