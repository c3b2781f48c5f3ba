"""What caps and TTL remove. Promise: floors move at once and only forward, every record removed is counted, and the new
floor goes to the log with the write that caused it. Files go later, by whole segments.
"""

from __future__ import annotations

from topicd.frames import FrameType
from topicd.model import GapReason
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.live import LiveRecords, Sizes
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.log import Log


class Retention:
    def __init__(self, place: Place, live: LiveRecords, log: Log, counters: Counters, backlog: Backlog) -> None:
        self._clock = place.clock
        self._live = live
        self._log = log
        self._counters = counters
        self._backlog = backlog

    def expire(self, topic: Topic) -> None:
        """TTL, judged by the clock now: a record is expired when now - ts > ttl."""
        ttl, earliest = topic.config.ttl_ms, topic.floors.earliest
        if not ttl or earliest > topic.seqs.visible:
            return
        oldest_kept = self._clock.now_ms() - ttl
        if self._live.ts_of(topic, earliest) >= oldest_kept:
            return
        floor = max(self._live.seq_before(topic, oldest_kept) + 1, earliest)
        self._remove_below(topic, min(floor, topic.seqs.visible + 1), GapReason.TTL)

    def is_due(self, topic: Topic, now_ms: int) -> bool:
        """Has its oldest segment or blob outlived the TTL? Costs a look, so that every topic can be asked."""
        ttl = topic.config.ttl_ms
        return bool(ttl) and topic.contents.oldest_end_ms < now_ms - ttl

    def enforce(self, topic: Topic) -> None:
        """Caps, after records became visible or a cap was tightened. TTL first: what it takes is not the cap's."""
        self.expire(topic)
        contents, policy = topic.contents, topic.policy
        if policy.kept_records and contents.count > policy.kept_records:
            self._remove_oldest(topic, records=contents.count - policy.kept_records, content=0)
        kept_bytes = policy.kept_bytes
        if kept_bytes and contents.bytes > kept_bytes:
            self._remove_oldest(topic, records=0, content=contents.bytes - kept_bytes)

    # ---- removal ----

    def _remove_oldest(self, topic: Topic, *, records: int, content: int) -> None:
        """Remove from the front until so many live records or bytes are gone."""
        floor = earliest = topic.floors.earliest
        for stretch in self._live.stretches(topic, earliest, topic.seqs.visible):
            for a, b in stretch.live(max(stretch.first, earliest), stretch.last):
                if records > 0:
                    taken = min(records, b - a + 1)
                    records -= taken
                    floor = a + taken
                elif content > 0:
                    floor, freed = _until_freed(stretch.sizes, a, b, content)
                    content -= freed
                if records <= 0 and content <= 0:
                    self._remove_below(topic, floor, GapReason.CAP)
                    return
        self._remove_below(topic, floor, GapReason.CAP)

    def _remove_below(self, topic: Topic, floor: int, reason: GapReason) -> None:
        floors = topic.floors
        if floor <= floors.earliest:
            return
        records = content = behind = 0
        for a, b, sizes in self._live.runs(topic, floors.earliest, floor - 1):
            records += b - a + 1
            content += sizes.content(a, b)
            behind = b + 1
        topic.contents.remove(records, content)
        note_removed(topic)
        if records:
            # Not the floor itself: what was deleted just below it is no loss.
            floors.note_loss(behind, reason.value, records)
            self._counters.evicted += records
            self._log_floor(topic)
        floors.advance(self._live.first_from(topic, floor))
        self.give_back(topic)

    def give_back(self, topic: Topic) -> None:
        """What nobody can read any more: memory at once where it is all there is, segments in time."""
        if topic.policy.logged:
            self._backlog.note_reclaimable(topic)
            return
        contents, earliest = topic.contents, topic.floors.earliest
        blobs = len(contents.tail)
        contents.tail.drop_through(earliest - 1)
        topic.seqs.store(earliest - 1)
        if len(contents.tail) < blobs:
            contents.recent_tags.forget(topic.seqs.stored)
            contents.keep_tail_dead(earliest, topic.seqs.head)

    def _log_floor(self, topic: Topic) -> None:
        """Not waited for: caps and TTL give the same floor again at recovery; the frame keeps its reason."""
        if topic.policy.logged:
            floors = topic.floors
            body = {"evict_floor": floors.evict_floor, "losses": [list(loss) for loss in floors.losses]}
            self._log.change(topic, FrameType.EVICT_WATERMARK, body, seq=floors.evict_floor, need=Need.PLACED)


def note_removed(topic: Topic) -> None:
    """Records went, and some of them may have been jobs."""
    if topic.queue is not None:
        topic.queue.stale = True


def _until_freed(sizes: Sizes, first: int, last: int, content: int) -> tuple[int, int]:
    """(floor, freed): the fewest records from first on whose content reaches the wanted bytes."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if sizes.content(first, middle) >= content:
            high = middle
        else:
            low = middle + 1
    return low + 1, sizes.content(first, low)
