"""Frames of the WAL back into tails: whole batches only, nothing twice, and holes are noted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import TOPIC_ID, TS, make_topic, seqs_of, stamped
from topicd.frames import Direct, FrameType, core, direct_frame, frame_checksum, producer_frame
from topicd.model import TagMatch
from topicd.shards.delivery.starting.replay import AppendReplay
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.topic import Topic


class Replay:
    def __init__(self, topic: Topic | None = None, desk: Desk | None = None) -> None:
        self.topic = topic or make_topic()
        self.backlog = Backlog()
        self.appends = AppendReplay(desk.parts.segments if desk else None, self.backlog)  # type: ignore[arg-type]

    def log(self, *frames: bytes) -> Replay:
        """One group of the log."""
        view = memoryview(b"".join(frames))
        scan = core.scan_frames(view, 0, len(view))
        assert not scan.problem
        for run in scan.runs:
            if run.type == FrameType.APPEND:
                self.appends.take(self.topic, view, run)
            elif run.type == FrameType.PRODUCER:
                self.appends.announce(self.topic, view, run)
            else:
                self.appends.claim(self.topic, view, run)
        return self

    @property
    def seqs(self) -> list[int]:
        return seqs_of(self.topic.contents.tail)


def batch(first: int, count: int) -> bytes:
    return bytes(stamped([b"r%d" % n for n in range(first, first + count)], first).view())


def halves(first: int, count: int, at: int) -> tuple[bytes, bytes]:
    """One batch, cut between two of its frames."""
    blob = stamped([b"r"] * count, first)
    frames, cut = bytes(blob.view()), blob.offsets[at]
    return frames[:cut], frames[cut:]


def test_batches_come_back_in_order() -> None:
    replay = Replay().log(batch(1, 2), batch(3, 1)).log(batch(4, 3))
    assert (replay.seqs, replay.topic.seqs.visible, replay.appends.records) == ([1, 2, 3, 4, 5, 6], 6, 6)
    assert replay.backlog.tail_bytes == replay.topic.contents.tail.bytes
    assert replay.topic.seqs.last_ts == replay.topic.last_write_ms == TS
    assert replay.appends.holes == {}


def test_what_is_sent_again_counts_once() -> None:
    replay = Replay().log(batch(1, 3)).log(batch(1, 3)).log(batch(2, 1))
    assert (replay.seqs, replay.appends.records) == ([1, 2, 3], 3)


def test_what_a_segment_has_is_passed_over_and_the_rest_is_not() -> None:
    topic = make_topic()
    topic.seqs.load(2, TS)
    replay = Replay(topic).log(batch(1, 4))
    assert (replay.seqs, replay.topic.seqs.visible) == ([3, 4], 4)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_batch_counts_when_its_last_frame_is_there(at: int) -> None:
    first, second = halves(1, 4, at)
    replay = Replay().log(first)
    assert (replay.seqs, replay.topic.seqs.head) == ([], 0)
    replay.log(second)
    assert (replay.seqs, replay.topic.seqs.head, len(list(replay.topic.contents.tail))) == ([1, 2, 3, 4], 4, 1)


def test_a_whole_batch_before_half_a_one_counts() -> None:
    first, second = halves(3, 3, 1)
    replay = Replay().log(batch(1, 2), first)
    assert replay.seqs == [1, 2]
    assert replay.log(second).seqs == [1, 2, 3, 4, 5]


def test_half_a_batch_whose_rest_never_came_is_no_batch() -> None:
    """Its writer was told that it failed; the same seqs went to another."""
    first, _ = halves(1, 4, 2)
    replay = Replay().log(first).log(batch(1, 2))
    assert (replay.seqs, replay.appends.holes) == ([1, 2], {})
    rows = [
        row[5] for blob in replay.topic.contents.tail for row in core.decode_frames(blob.data, blob.start, blob.end)
    ]
    assert rows == [b"r1", b"r2"]


def test_a_hole_is_noted_and_its_seqs_are_not_given_out() -> None:
    replay = Replay().log(batch(1, 2)).log(batch(5, 1)).log(batch(8, 1))
    assert replay.appends.holes == {TOPIC_ID: [(3, 4), (6, 7)]}
    assert (replay.seqs, replay.topic.seqs.head) == ([1, 2, 5, 8], 8)


# ---- producers ----


def announced(number: int, first: int, count: int) -> bytes:
    return producer_frame(TOPIC_ID, first, TS, 7, number, count)


def expected(replay: Replay) -> int:
    return replay.topic.producers.expected(7, replay.topic.seqs.visible)


def test_a_producers_number_counts_with_its_batch() -> None:
    replay = Replay().log(announced(1, 1, 2))
    assert expected(replay) == 1
    assert expected(replay.log(batch(1, 2))) == 2
    assert expected(replay.log(announced(2, 3, 1), batch(3, 1))) == 3


def test_a_number_whose_batch_is_not_whole_does_not_count() -> None:
    first, second = halves(1, 3, 1)
    replay = Replay().log(announced(1, 1, 3), first)
    assert expected(replay) == 1
    assert expected(replay.log(second)) == 2


def test_a_number_does_not_count_for_another_batch_with_its_seqs() -> None:
    first, _ = halves(1, 3, 1)
    replay = Replay().log(announced(1, 1, 3), first).log(batch(1, 3))
    assert (expected(replay), replay.seqs) == (1, [1, 2, 3])


def test_a_number_counts_also_where_the_segment_has_its_batch() -> None:
    topic = make_topic()
    topic.seqs.load(2, TS)
    assert expected(Replay(topic).log(announced(1, 1, 2), batch(1, 2))) == 2


# ---- direct writes ----


@pytest.fixture
def stored(desk: Desk) -> Topic:
    desk.serve()
    topic = desk.topic(durability="memory")
    desk.write(topic, [b"a", b"b", b"c"])
    desk.checkpoint()
    return topic


def claim(topic: Topic, first: int, count: int, checksum: int) -> bytes:
    return direct_frame(topic.id, TS, Direct(7, 1, first, count, checksum))


def checksum(desk: Desk, topic: Topic, seq: int) -> int:
    return frame_checksum(desk.parts.segments.reader(topic, topic.contents.segments[0]).read(seq, seq))


@pytest.mark.parametrize(
    ("first", "count", "of", "counts"),
    [(1, 3, 3, True), (1, 3, 2, False), (2, 3, 3, False)],
    ids=["it is there", "another is there", "not all of it is there"],
)
def test_a_direct_write_counts_if_the_segments_hold_it(
    desk: Desk, stored: Topic, first: int, count: int, of: int, counts: bool
) -> None:
    replay = Replay(stored, desk).log(claim(stored, first, count, checksum(desk, stored, of)))
    assert expected(replay) == (2 if counts else 1)
    assert list(replay.appends.claims[stored.id]) == [(first, first + count - 1)]


def test_a_direct_write_whose_segment_is_gone_is_no_error(desk: Desk, stored: Topic) -> None:
    found = checksum(desk, stored, 3)
    stored.contents.segments.clear()
    assert expected(Replay(stored, desk).log(claim(stored, 1, 3, found))) == 1


def test_tags_come_back_too() -> None:
    replay = Replay().log(bytes(stamped([b"x", b"y"], 1, tags=[b"t", None]).view()))
    found: Sequence[int] = replay.topic.contents.recent_tags.matching(TagMatch(b"t"), 1, 9)
    assert found == [1]
