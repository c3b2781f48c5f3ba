"""Records that should be there and are not: what took them? Promise: a seq that was given out is not given out again;
what nobody removed is reported as damage, what its class may lose as a gap, and neither is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from topicd.disk.refusal import raise_refusal
from topicd.errors import TopicdError
from topicd.limits import MAX_SEQ
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.topic.contents import Damaged
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.debris import cut_open_batch
from topicd.shards.storage.segment.info import Cut
from topicd.shards.storage.segment.names import DATA, DEL
from topicd.shards.storage.segment.places import resolve

log = logging.getLogger(__name__)

Hole = tuple[int, int]


class Holes:
    """By topic: what loading and replay have noted."""

    def __init__(self, place: Place, segments: Segments, live: LiveRecords, note_damage: Callable[[str], None]) -> None:
        self._place = place
        self._segments = segments
        self._live = live
        self._note_damage = note_damage
        self.heads: dict[int, int] = {}  # newest seq by snapshot
        self.between_segments: dict[int, list[Hole]] = {}
        self.cuts: dict[int, list[Cut]] = {}  # tails of active segments that replay should bring back

    def judge(self, topic: Topic, in_log: list[Hole], claims: Ranges | None) -> None:
        """At the end of the log. in_log: seqs that no frame of it has. claims: seqs of direct writes."""
        if claims is not None:
            self._cut_open_batch(topic, claims)
        between = self.between_segments.pop(topic.id, [])
        if topic.id in self.heads:
            # Only a snapshot knows which segments were dropped because all their records were deleted.
            between += _before_all(topic)
        self._check_holes(topic, between, "are in no segment", "missing segment")
        self._check_holes(topic, in_log, "are missing in the WAL", "WAL")
        if topic.inflows.derived is not None:
            claims = Ranges([(1, MAX_SEQ)])  # no log has them: what was stored counts when the index names it
        self._check_cuts(topic, claims or Ranges())
        self._check_head(topic)

    def forget_healed(self, topic: Topic) -> None:
        """What a snapshot calls damaged, and can be read now: its file was put back. Not so records that cannot be told
        from deleted ones: all of them can be read."""
        if not topic.contents.damaged:
            return
        left = [
            place for place in topic.contents.damaged if place.where.endswith(DEL) or not self._readable(topic, place)
        ]
        if len(left) < len(topic.contents.damaged):
            log.info("damage is mended", extra={"topic": topic.name, "places": len(topic.contents.damaged) - len(left)})
            topic.contents.damaged = left

    def _readable(self, topic: Topic, place: Damaged) -> bool:
        for info in topic.contents.segments:
            if info.first_seq <= place.first_seq and place.last_seq <= info.last_seq:
                try:
                    self._segments.reader(topic, info).verify(place.first_seq, place.last_seq)
                except (OSError, TopicdError) as exc:
                    raise_refusal(exc)
                    return False
                return True
        return False

    def index_active_tags(self, topic: Topic) -> None:
        info = topic.contents.active
        if info is not None and info.count:
            covered = 0
            for data in self._segments.reader(topic, info).readable(info.first_seq, info.last_seq):
                topic.contents.recent_tags.note(data, 0, len(data))
                covered += len(data)
            if covered < info.data_bytes:
                # Where exactly a reader is told; the neighbours are served.
                where = resolve(self._place.data.topic(topic.id), info.first_seq).file(DATA)
                self._note_damage(f"topic {topic.name}: {info.data_bytes - covered} bytes of {where} cannot be read")

    def _check_holes(self, topic: Topic, holes: list[Hole], how: str, where: str) -> None:
        """Damage is what nobody removed by the end of the log: files go when their records or their topic did, and
        the frame that says so may stand behind the hole."""
        for first, last in holes:
            for a, b in _unexplained(topic, max(first, topic.floors.missed_from), last):
                self._note_damage(f"topic {topic.name}: seqs {a} to {b} {how}")
                topic.contents.note_damaged(a, b, where)

    def _cut_open_batch(self, topic: Topic, claims: Ranges) -> None:
        """A direct write that was stored in part was not acknowledged. One of the log goes on in the tail."""
        seqs, contents, active = topic.seqs, topic.contents, topic.contents.active
        if active is None or active.last_seq != seqs.head or seqs.head not in claims:
            return
        first_seq, had = active.first_seq, active.last_seq
        left = cut_open_batch(self._place.fs, self._place.data.topic(topic.id), active)
        if left is None:
            contents.segments.pop()
        seqs.load(first_seq - 1 if left is None else left.last_seq, 0)
        if seqs.head < had:
            log.info("unfinished write cut", extra={"topic": topic.name, "first_seq": seqs.head + 1, "last_seq": had})
            contents.recent_tags.clear()
            self._segments.drop(topic)
            self.index_active_tags(topic)

    def _check_cuts(self, topic: Topic, claims: Ranges) -> None:
        """A tail that was cut and did not come back from the WAL had been durable: it is damage. Not so what was on its
        way past the log: it is durable, and acknowledged, when the index names it."""
        for cut in self.cuts.pop(topic.id, []):
            first = max(cut.first_seq, topic.seqs.head + 1)
            last = cut.indexed if first in claims else cut.last_seq
            if first <= last:
                self._note_damage(f"topic {topic.name}: seqs {first} to {last} were cut, see {cut.kept}")
                topic.contents.note_damaged(first, last, cut.kept.name)
                topic.seqs.reach(last)

    def _check_head(self, topic: Topic) -> None:
        """A seq that was given out is not given out again, whatever became of its record."""
        seqs, contents, policy = topic.seqs, topic.contents, topic.policy
        known = self.heads.get(topic.id, 0)
        derived = topic.inflows.derived is not None
        if derived:
            known = max(known, topic.inflows.mark.seq)
        power_lost = self._place.power_lost and policy.waits_for_marks and not derived
        if power_lost:
            known = max(known, seqs.reserved)
        if known <= seqs.head:
            return
        # A class that waits for no sync may lose its tail; then it is a gap, not damage.
        may_be_lost = power_lost or (policy.may_lose_tail and not derived)
        recent = self._came_lately(topic) if may_be_lost else 0
        for first, last in _unexplained(topic, max(seqs.head + 1, topic.floors.missed_from), known):
            if may_be_lost:
                log.warning(
                    "unsynced tail may be lost",
                    extra={"topic": topic.name, "first_seq": first, "last_seq": last, "about": recent},
                )
                contents.lose(first, last, min(recent, last - first + 1))
                recent = max(0, recent - (last - first + 1))
            else:
                self._note_damage(f"topic {topic.name}: seqs {first} to {last} are neither in segments nor in the WAL")
                contents.note_damaged(first, last, "WAL")
        seqs.reach(known)

    def _came_lately(self, topic: Topic) -> int:
        """How many records came within the time that may pass until a write is synced, as far as they are still there:
        the best guess at how many more came in the next."""
        seqs = topic.seqs
        if not seqs.head:
            return 0
        try:
            before = self._live.seq_before(topic, seqs.last_ts - self._place.settings.disk_sync_ms)
        except (OSError, TopicdError):
            return 0
        return max(0, seqs.head - before)


def _unexplained(topic: Topic, first: int, last: int) -> list[Hole]:
    """What neither the topic itself nor the routers that feed it account for."""
    return [part for a, b in topic.contents.unexplained(first, last) for part in topic.inflows.trimmed.missing(a, b)]


def _before_all(topic: Topic) -> list[Hole]:
    """Seqs in front of the first that is there."""
    contents = topic.contents
    blob = contents.tail.first()
    first = contents.segments[0].first_seq if contents.segments else blob.first_seq if blob is not None else 1
    return [(1, first - 1)] if first > 1 else []
