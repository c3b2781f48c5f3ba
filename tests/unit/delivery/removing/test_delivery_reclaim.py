"""Disk space back: whole dead segments by unlink, half-dead ones by a rewrite, and only after a durable snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.machine import Inline
from tests.unit.delivery.desk import Desk
from topicd.frames import core
from topicd.model import TagMatch
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve

DEAD = TagMatch(b"dead")


@pytest.fixture
def topic(desk: Desk) -> Topic:
    """Segments of eight: 1..8, 9..16, 17..24, all sealed; the first six records of the second carry a tag."""
    desk.serve()
    made = desk.topic(durability="memory")
    for seq in range(1, 25):
        desk.write(made, [b"%d" % seq], tags=b"dead" if 9 <= seq <= 14 else None)
    desk.checkpoint()
    desk.snapshot()
    assert [info.sealed for info in made.contents.segments] == [True] * 3
    return made


def data_files(desk: Desk, topic: Topic) -> list[str]:
    return sorted(name for name in desk.disk.listdir(desk.parts.place.topic_dir(topic.id)) if name.endswith(DATA))


def size(desk: Desk, topic: Topic, first_seq: int) -> int:
    return desk.disk.size(resolve(desk.parts.place.topic_dir(topic.id), first_seq).file(DATA))


def delete(desk: Desk, topic: Topic, before: int | None, match: TagMatch | None = None) -> None:
    desk.parts.deletion.delete(topic, before, match, lambda body, error: None)
    desk.settle()


def read(desk: Desk, topic: Topic) -> list[bytes]:
    found, at = [], 0
    while at < topic.seqs.visible:
        answer = desk.parts.reader.fetch(topic, at, 1000, 1 << 20, NO_FILTER)
        found += [bytes(row[5]) for part in answer.parts for row in core.decode_frames(part, 0, len(part))]
        at = answer.next_from
    return found


def urgent(desk: Desk) -> bool:
    reclaimer = desk.parts.snapshots._reclaimer
    assert list(reclaimer.look()) == []
    return reclaimer.urgent


def test_with_nothing_dead_nothing_is_urgent_and_nothing_goes(desk: Desk, topic: Topic) -> None:
    reclaimer = desk.parts.snapshots._reclaimer
    desk.parts.backlog.note_reclaimable(topic)
    assert not urgent(desk)
    assert list(reclaimer.plan()) == []  # not so many that others had to have a turn
    assert len(topic.contents.segments) == 3
    assert desk.parts.backlog.reclaimable == {}


def test_a_segment_below_the_floor_goes_after_the_snapshot(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, 10)
    assert urgent(desk)
    assert len(data_files(desk, topic)) == 3
    desk.snapshot()
    assert len(data_files(desk, topic)) == 2
    assert [info.first_seq for info in topic.contents.segments] == [9, 17]
    assert read(desk, topic) == [b"%d" % seq for seq in range(10, 25)]


def test_without_its_snapshot_no_file_goes(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, 10)
    desk.fail_disk(lambda name, path: "meta" in path.parts)
    desk.snapshot()
    assert desk.parts.snapshots.failures == 1
    assert len(data_files(desk, topic)) == 3
    desk.mend_disk()
    desk.snapshot()
    assert len(data_files(desk, topic)) == 2  # a disk that was full is not full for ever
    assert read(desk, topic) == [b"%d" % seq for seq in range(10, 25)]


def test_a_file_that_could_not_go_goes_with_the_next_snapshot(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, 20)
    desk.fail_disk(lambda name, path: name == "unlink" and "topics" in path.parts)
    desk.snapshot()
    assert (desk.fs.failures > 0, len(data_files(desk, topic))) == (True, 3)
    desk.mend_disk()
    desk.snapshot()
    assert len(data_files(desk, topic)) == 1


def test_what_waits_for_a_topic_that_is_gone_harms_nobody(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, 10)
    desk.fail_disk(lambda name, path: "meta" in path.parts)
    desk.snapshot()
    desk.mend_disk()
    desk.parts.catalog.delete(topic, if_empty=False, done=lambda topic, error: None)
    desk.settle()
    desk.snapshot()
    assert desk.parts.snapshots.failures == 1
    assert desk.disk.listdir(desk.parts.place.data.topics) == []


def test_a_half_dead_segment_is_rewritten_when_its_marks_are_stored(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, None, DEAD)
    before = size(desk, topic, 9)
    desk.snapshot()
    assert size(desk, topic, 9) == before  # its marks are not in their file yet
    desk.checkpoint()
    desk.snapshot()
    assert size(desk, topic, 9) < before / 2
    [_, info, _] = topic.contents.segments
    assert (info.count, info.dead, info.dead_bytes) == (8, 6, 0)
    expected = [b"%d" % seq for seq in range(1, 25) if not 9 <= seq <= 14]
    assert read(desk, topic) == expected
    assert not urgent(desk)


def test_a_rewrite_that_fails_leaves_the_segment(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, None, DEAD)
    desk.checkpoint()
    before = size(desk, topic, 9)
    desk.fail_disk(lambda name, path: "topics" in path.parts and name == "create")
    desk.snapshot()
    assert (desk.fs.failures > 0, size(desk, topic, 9)) == (True, before)
    assert len(read(desk, topic)) == 18
    desk.mend_disk()
    desk.snapshot()
    assert size(desk, topic, 9) < before


def test_marks_that_come_during_the_rewrite_are_not_lost(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, None, DEAD)
    desk.checkpoint()
    reclaimer, [_, info, _] = desk.parts.snapshots._reclaimer, topic.contents.segments
    run = desk.loop.create_task(reclaimer._rewrite(topic, info))
    # The thread works on a copy of the marks; meanwhile another record dies.
    reclaimer._pool = Late(lambda: topic.contents.mark(info, [(15, 15)], 48))  # type: ignore[assignment]
    desk.settle()
    assert run.done()
    [_, new, _] = topic.contents.segments
    assert new is not info
    assert (new.dead, new.dead_bytes > 0) == (7, True)
    assert 15 in topic.contents.marks[9]


class Late:
    """A pool whose work is overtaken."""

    def __init__(self, meanwhile: object) -> None:
        self._meanwhile = meanwhile

    def submit(self, fn: object, *args: object) -> object:
        done = Inline().submit(fn, *args)  # type: ignore[arg-type]
        self._meanwhile()  # type: ignore[operator]
        return done


def test_a_segment_whose_records_were_all_deleted_goes_and_its_seqs_are_remembered(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, None, DEAD)
    desk.parts.deletion._mark_segment(
        topic, topic.contents.segments[1], [15, 16], desk.parts.live.sizes(topic, topic.contents.segments[1])
    )
    desk.checkpoint()
    desk.snapshot()
    assert [info.first_seq for info in topic.contents.segments] == [1, 17]
    assert list(topic.contents.gone) == [(9, 16)]


def test_the_active_segment_stays(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"25"])
    desk.checkpoint()
    delete(desk, topic, 100)
    desk.snapshot()
    assert [info.first_seq for info in topic.contents.segments] == [25]


def test_the_directory_of_a_deleted_topic_goes_and_may_go_again(desk: Desk, topic: Topic) -> None:
    place: Path = desk.parts.place.topic_dir(topic.id)
    reclaimer = desk.parts.snapshots._reclaimer
    desk.fail_disk(lambda name, path: name == "unlink")
    reclaimer.remove_topic(topic.id)
    assert not desk.disk.exists(place)  # out of the way at once
    assert desk.disk.listdir(place.parent) != []
    desk.mend_disk()
    for _ in range(2):
        reclaimer.remove_topic(topic.id)
        assert desk.disk.listdir(place.parent) == []
