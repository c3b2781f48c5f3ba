"""Large writes past the log: claimed, stored, committed, in this order; and what waits behind them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, Writer
from topicd.frames import FrameType
from topicd.shards.delivery.topic.topic import Topic

LARGE = 2_000


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    made = open_desk(direct_bytes=LARGE, direct_writes="synced")
    made.serve()
    return made


@pytest.fixture
def topic(desk: Desk) -> Topic:
    made = desk.topic(durability="fsync")
    desk.wal.log = b""
    return made


def large(desk: Desk, topic: Topic, number: int, **more: Any) -> Writer:
    return desk.append(topic, [bytes(LARGE)], producer=7, number=number, request_id=number, **more)


def held(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[Topic]:
    """No checkpoint happens by itself; the list says which topics are ready for one."""
    ready: list[Topic] = []
    monkeypatch.setattr(desk.parts.backlog, "on_direct", ready.append)
    return ready


# ---- which ----


@pytest.mark.parametrize(
    ("size", "count", "direct"), [(LARGE - 1, 1, False), (LARGE, 1, True), (LARGE, 8, True), (LARGE, 9, False)]
)
def test_a_write_that_is_large_and_fits_one_segment_goes_past_the_log(
    desk: Desk, topic: Topic, size: int, count: int, direct: bool
) -> None:
    assert desk.parts.direct.takes(topic, size, count, copied=False) is direct


def test_more_bytes_than_a_segment_holds_go_through_the_log(desk: Desk, topic: Topic) -> None:
    most = desk.parts.place.settings.segment_max_bytes
    assert desk.parts.direct.takes(topic, most, 1, copied=False)
    assert not desk.parts.direct.takes(topic, most + 1, 1, copied=False)


def test_while_checkpoints_fail_the_log_takes_them(desk: Desk, topic: Topic) -> None:
    desk.parts.pressure.failing = errno.EIO
    assert not desk.parts.direct.takes(topic, LARGE, 1, copied=False)


# ---- the way ----


def test_it_is_visible_only_in_a_synced_segment_and_the_log_has_its_claim(
    desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = held(desk, monkeypatch)
    writer = large(desk, topic, 1)
    assert desk.parts.direct.bytes > LARGE
    assert desk.parts.direct.storable(topic) == []  # not before its claim is synced
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert (ready, desk.parts.direct.storable(topic)) == ([], [])
    desk.settle()
    assert [kind for kind, _ in desk.wal.frames()] == [FrameType.DIRECT]
    [entry] = desk.parts.direct.storable(topic)
    assert ready == [topic]
    outlet = desk.parts.outlets[0]
    assert outlet.settled_pos == entry.pin < outlet.placed_pos  # the WAL may not forget the claim
    assert (writer.told, topic.seqs.visible) == ([], 0)
    desk.checkpoint()
    assert ([told.how for told in writer.told], topic.seqs.visible, topic.seqs.stored) == (["appended"], 1, 1)
    assert (desk.parts.direct.bytes, outlet.pins) == (0, set())
    assert desk.parts.direct.stored_bytes > LARGE


def test_what_comes_behind_waits_and_keeps_its_order(desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    held(desk, monkeypatch)
    writer = large(desk, topic, 1)
    desk.append(topic, [b"small"], writer=writer, producer=7, number=2, request_id=2)
    desk.parts.turn.end()
    large(desk, topic, 3, writer=writer)
    desk.settle()
    kinds = [kind for kind, _ in desk.wal.frames()]
    assert kinds == [FrameType.DIRECT]  # neither the small one nor a second claim overtakes
    assert writer.told == []
    desk.checkpoint()
    desk.checkpoint()
    assert [(told.how, told.request_id, told.first_seq) for told in writer.told] == [
        ("appended", 1, 1),
        ("appended", 2, 2),
        ("appended", 3, 3),
    ]
    kinds = [kind for kind, _ in desk.wal.frames()]
    assert kinds.index(FrameType.APPEND) < len(kinds) - 1 - kinds[::-1].index(FrameType.DIRECT)


def test_neighbours_are_claimed_together(desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    held(desk, monkeypatch)
    writer = large(desk, topic, 1)
    large(desk, topic, 2, writer=writer)
    desk.settle()
    assert len(desk.parts.direct.storable(topic)) == 2
    desk.checkpoint()
    assert len(writer.told) == 2


def test_records_of_the_log_before_it_are_committed_first(
    desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(desk, monkeypatch)
    desk.append(topic, [b"small"])
    large(desk, topic, 1)
    assert not topic.flight.direct_is_next
    desk.settle()
    assert (topic.seqs.visible, topic.flight.direct_is_next) == (1, True)


# ---- failure ----


def test_a_claim_that_fails_fails_its_write_and_all_behind_it(desk: Desk, topic: Topic) -> None:
    writer = large(desk, topic, 1)
    desk.append(topic, [b"small"], writer=writer, producer=7, number=2, request_id=2)
    desk.parts.turn.end()
    desk.fail_wal(errno.EIO)
    assert sorted((told.how, told.request_id) for told in writer.told) == [("storage_failed", 1), ("storage_failed", 2)]
    assert (topic.seqs.head, topic.flight.count, desk.parts.direct.bytes) == (0, 0, 0)
    assert topic.producers.expected(7, 0) == 1


def test_a_disk_that_refuses_leaves_debris_until_it_is_cleared(
    desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(desk, monkeypatch)
    writer = large(desk, topic, 1)
    desk.settle()
    desk.parts.direct.refuse(topic, errno.ENOSPC, debris=True)
    assert [told.how for told in writer.told] == ["storage_failed"]
    assert topic.flight.debris
    assert desk.parts.admission.refusal(topic, 10, 1) is not None
    assert list(desk.parts.backlog.debris) == [topic.id]
    desk.parts.direct.cleared(topic.id)
    assert (topic.flight.debris, desk.parts.backlog.debris) == (False, {})
    assert desk.parts.admission.refusal(topic, 10, 1) is None


def test_of_a_topic_that_is_gone_nothing_is_kept(desk: Desk, topic: Topic) -> None:
    topic.live = False
    desk.parts.direct.refuse(topic, errno.EIO, debris=True)
    assert desk.parts.backlog.debris == {}
    desk.parts.direct.cleared(topic.id)


def test_a_deleted_topic_fails_what_waits(desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    held(desk, monkeypatch)
    writer = large(desk, topic, 1)
    desk.parts.catalog.delete(topic, if_empty=False, done=lambda topic, error: None)
    desk.settle()
    assert [told.how for told in writer.told] == ["topic_not_found"]
    assert (desk.parts.direct.bytes, desk.parts.outlets[0].pins) == (0, set())
