"""What hangs on a topic: every part has what recovery, snapshots and the stats page ask for."""

from __future__ import annotations

import msgpack
import pytest

from tests.unit.delivery.kit import make_topic
from topicd import metrics
from topicd.frames import FrameType
from topicd.shards.delivery.topic.part import TopicPart


def parts() -> list[TopicPart]:
    return make_topic(type="queue").parts()


def test_keys_differ_and_no_frame_belongs_to_two() -> None:
    keys = [part.KEY for part in parts()]
    frames = [frame for part in parts() for frame in part.FRAMES]
    assert len(set(keys)) == len(keys)
    assert len(set(frames)) == len(frames)


def test_an_empty_part_survives_a_snapshot() -> None:
    for part, other in zip(parts(), parts(), strict=True):
        body = msgpack.unpackb(msgpack.packb(part.to_snapshot(0)))
        other.restore(body)
        assert other.to_snapshot(0) == body


def test_the_figures_of_all_parts_have_a_metric_each() -> None:
    """Behind newest seq, records, bytes and priority, which are the topic's own."""
    assert sum(len(part.figures(0, 1)) for part in parts()) == len(metrics.TOPIC) - 4


def test_a_part_that_forgets_a_duty_is_noticed() -> None:
    part = TopicPart()
    assert part.figures(1, 1) == ()
    for duty in (lambda: part.to_snapshot(0), lambda: part.restore([]), lambda: part.replay(FrameType.CURSOR, {}, 0)):
        with pytest.raises(NotImplementedError):
            duty()
