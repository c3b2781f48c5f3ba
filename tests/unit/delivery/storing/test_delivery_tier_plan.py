"""Where segments are to lie, without anything that moves them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.shards.delivery.storing.tier_plan import Kept, half_dead, kept, misplaced
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import Lies


@pytest.fixture
def topic(desk: Desk) -> Topic:
    """Three sealed segments of eight records and one that grows."""
    desk.serve()
    made = desk.topic("orders", durability="memory")
    for seq in range(1, 28):
        desk.write(made, [b"%d " % seq * 9], tags=b"dead" if (seq - 1) % 8 < 6 else None)
    desk.checkpoint()
    assert [info.sealed for info in made.contents.segments] == [True, True, True, False]
    return made


def plan(topic: Topic, keep: Kept, *, away: bool = True) -> dict[int, Lies]:
    return {info.first_seq: to for info, to in misplaced(topic, keep, away=away)}


@pytest.mark.parametrize(
    ("keep", "away", "expected"),
    [
        (Kept(1, 0, False), True, {9: Lies.COLD, 1: Lies.COLD}),
        (Kept(1, 0, True), True, {9: Lies.COLD_PACKED, 1: Lies.COLD_PACKED}),
        (Kept(2, 0, True), False, {1: Lies.PACKED}),
        (Kept(2, 0, False), False, {}),  # nowhere to go, and as it is
        (Kept(0, 1, False), True, {17: Lies.COLD, 9: Lies.COLD, 1: Lies.COLD}),
        (Kept(3, 1 << 30, False), True, {}),
        (Kept(0, 0, True), True, {}),  # keeps all
    ],
)
def test_what_lies_beyond_goes_newest_first(topic: Topic, keep: Kept, away: bool, expected: dict[int, Lies]) -> None:
    assert list(plan(topic, keep, away=away).items()) == list(expected.items())


def test_what_was_moved_is_not_moved_again_for_its_form_and_comes_back_when_all_is_kept(topic: Topic) -> None:
    topic.contents.segments[0].lies = Lies.COLD
    assert plan(topic, Kept(2, 0, True)) == {}
    assert plan(topic, Kept(0, 0, True)) == {1: Lies.HERE}


def test_half_dead_ones_come_back_to_be_rewritten(desk: Desk, topic: Topic) -> None:
    first = topic.contents.segments[0]
    first.lies = Lies.COLD
    assert not half_dead(topic, first)
    topic.contents.marks[first.first_seq] = Ranges([(1, 6)])
    first.dead_bytes = first.data_bytes // 2 + 1
    assert half_dead(topic, first)
    assert plan(topic, Kept(2, 0, False)) == {1: Lies.HERE}
    topic.contents.unmarked[first.first_seq] = Ranges([(1, 1)])
    assert not half_dead(topic, first)  # its marks are still to be written


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Kept(4, 7, True)),
        ({"hot_retain_segments": 9, "hot_retain_bytes": 0}, Kept(9, 0, True)),
        ({"compress": "none"}, Kept(4, 7, False)),
    ],
)
def test_the_topic_goes_before_the_settings(desk: Desk, config: dict[str, Any], expected: Kept) -> None:
    settings = desk.parts.place.settings.replace(hot_retain_segments=4, hot_retain_bytes=7, compress="zstd")
    assert kept(settings, desk.topic("orders", durability="memory", **config)) == expected
