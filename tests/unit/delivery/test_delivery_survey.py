"""The look at every topic: what it finds, and that topics may come and go under it."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.shards.delivery import slices


@pytest.mark.parametrize("slice_s", [0.0, 10.0])
def test_topics_may_go_while_it_looks(desk: Desk, monkeypatch: pytest.MonkeyPatch, slice_s: float) -> None:
    monkeypatch.setattr(slices, "SLICE_S", slice_s)
    topics = [desk.topic(f"t{number}", durability="memory") for number in range(4)]
    for topic in topics:
        desk.write(topic, [bytes(10)])
    work = desk.parts.survey.run()
    next(work, None)
    desk.parts.catalog.forget(topics[3])
    for _ in work:
        pass
    expected = {"t0", "t1", "t2"}
    assert {topic.name for topic in desk.parts.survey.top if topic.live} == expected
    assert desk.parts.backlog.total_bytes == 40


def test_one_that_expires_loses_its_records_though_nobody_asks(desk: Desk) -> None:
    topic = desk.topic(durability="memory", ttl_ms=1000)
    desk.write(topic, [b"x"])
    desk.clock.advance(2_000)
    assert list(desk.parts.survey.run()) == []
    assert topic.contents.count == 0


def test_a_second_look_waits_for_the_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr("topicd.shards.delivery.parts.PAUSE_S", 0.0)
    for number in range(3):
        desk.topic(f"t{number}")
    looks: list[int] = []
    run = desk.parts.survey.run
    monkeypatch.setattr(desk.parts.survey, "run", lambda: looks.append(1) or run())  # type: ignore[func-returns-value]
    desk.parts.tick()
    desk.turn()
    desk.parts.tick()
    desk.settle()
    desk.parts.tick()
    desk.settle()
    assert len(looks) == 2
