"""Every limit that refuses a write, and that nothing else does."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk
from topicd.limits import FRAME_OVERHEAD, MAX_BATCH_RECORDS, MIB
from topicd.shards.delivery.topic.topic import Topic


def code(desk: Desk, topic: Topic, size: int = 100, count: int = 1) -> str | None:
    refusal = desk.parts.admission.refusal(topic, size, count)
    return None if refusal is None else refusal.detail.get("limit") or refusal.code


def test_a_plain_write_is_taken(desk: Desk) -> None:
    assert code(desk, desk.topic()) is None


@pytest.mark.parametrize(
    ("count", "refusal"),
    [(0, "invalid_request"), (1, None), (MAX_BATCH_RECORDS, None), (MAX_BATCH_RECORDS + 1, "batch_too_large")],
)
def test_the_number_of_records(desk: Desk, count: int, refusal: str | None) -> None:
    assert code(desk, desk.topic(), count=count) == refusal


def test_a_daemon_that_stops_takes_nothing(desk: Desk) -> None:
    topic = desk.topic(durability="ephemeral")
    desk.parts.admission.draining = True
    assert code(desk, topic) == "not_ready"


def test_a_read_only_log_takes_nothing_that_goes_there(desk: Desk) -> None:
    logged, ephemeral = desk.topic("a"), desk.topic("b", durability="ephemeral")
    desk.wal.ring.set_read_only(errno.ENOSPC)
    assert (code(desk, logged), code(desk, ephemeral)) == ("storage_failed", None)


def test_a_topic_with_debris_takes_nothing(desk: Desk) -> None:
    topic = desk.topic()
    topic.flight.debris = True
    assert code(desk, topic) == "storage_failed"


def test_bytes_under_way_are_bounded_but_one_write_always_goes(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_inflight_bytes=1000)
    topic = desk.topic(durability="fsync")
    assert code(desk, topic, 5000) is None
    desk.append(topic, [bytes(500)])
    desk.parts.turn.end()
    under_way = desk.parts.outlets[0].in_flight_bytes
    assert code(desk, topic, 1000 - under_way) is None
    assert code(desk, topic, 1001 - under_way) == "max_inflight_bytes"
    desk.settle()
    assert code(desk, topic, 5000) is None


def test_direct_writes_count_as_under_way(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_inflight_bytes=1000)
    topic = desk.topic()
    desk.parts.direct.bytes = 900
    assert (code(desk, topic, 100), code(desk, topic, 101)) == (None, "max_inflight_bytes")


@pytest.mark.parametrize(
    ("times", "failing", "refusal"),
    [
        (3, 0, None),
        (5, 0, None),  # its connection waits
        (9, 0, "checkpoint_bytes"),
        (3, errno.EIO, None),
        (5, errno.EIO, "storage_failed"),
    ],
)
def test_memory_that_the_disk_does_not_empty(
    open_desk: Callable[..., Desk], times: int, failing: int, refusal: str | None
) -> None:
    desk = open_desk(checkpoint_bytes=MIB)
    topic = desk.topic()
    desk.parts.backlog.tail_bytes = times * MIB
    desk.parts.pressure.failing = failing
    assert code(desk, topic) == refusal


def test_what_is_not_stored_minds_no_failing_disk(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(checkpoint_bytes=MIB)
    topic = desk.topic(durability="ephemeral")
    desk.parts.backlog.tail_bytes, desk.parts.pressure.failing = 5 * MIB, errno.EIO
    assert code(desk, topic) is None


def test_the_total_of_all_topics(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_total_bytes=1000)
    topic = desk.topic()
    desk.parts.backlog.total_bytes = 900
    assert (code(desk, topic, 100), code(desk, topic, 101)) == (None, "max_total_bytes")


# ---- caps ----


def sized(content: int, count: int = 1) -> int:
    return content + FRAME_OVERHEAD * count


def test_one_write_larger_than_all_that_a_rejecting_topic_may_hold_is_refused(desk: Desk) -> None:
    topic = desk.topic(cap_records=2, cap_bytes=100, discard="reject")
    assert code(desk, topic, sized(100, 2), 2) is None
    assert code(desk, topic, sized(3, 3), 3) == "record_too_large"
    assert code(desk, topic, sized(101)) == "record_too_large"


def test_one_write_larger_than_the_whole_cap_is_taken_where_the_old_goes(desk: Desk) -> None:
    topic = desk.topic(cap_records=2, cap_bytes=100)
    assert code(desk, topic, sized(3, 3), 3) is None
    assert code(desk, topic, sized(101, 1), 1) is None


def test_a_topic_that_rejects_is_full_with_what_is_under_way(desk: Desk) -> None:
    topic = desk.topic(cap_records=3, cap_bytes=100, discard="reject", durability="fsync")
    desk.write(topic, [bytes(40)])
    desk.append(topic, [bytes(40)])
    assert code(desk, topic, sized(20)) is None
    assert code(desk, topic, sized(21)) == "topic_full"
    assert code(desk, topic, sized(2, 2), 2) == "topic_full"
    refusal = desk.parts.admission.refusal(topic, sized(21), 1)
    assert refusal is not None
    assert (refusal.detail["cap"], refusal.detail["used"], refusal.detail["what"]) == (100, 80, "bytes")


def test_what_has_expired_does_not_fill_a_topic(desk: Desk) -> None:
    topic = desk.topic(cap_records=1, discard="reject", ttl_ms=1000)
    desk.write(topic, [b"x"])
    assert code(desk, topic) == "topic_full"
    desk.clock.advance(1001)
    assert code(desk, topic) is None


def test_a_topic_that_evicts_is_never_full(desk: Desk) -> None:
    topic = desk.topic(cap_records=1)
    desk.write(topic, [b"x"])
    assert code(desk, topic) is None


def test_under_full_pressure_a_write_whose_ring_is_full_is_refused(desk: Desk) -> None:
    topic, ephemeral = desk.topic(durability="disk"), desk.topic("b", durability="ephemeral")
    desk.append(topic, [bytes(desk.parts.place.settings.ring_bytes - 200)])
    desk.parts.turn.end()
    assert code(desk, topic) is None  # there is room in memory, and no pressure
    desk.parts.board.say(0.96, 0b1111, 0, 0, watching=True)
    refusal = desk.parts.admission.refusal(topic, 100, 1)
    assert refusal is not None
    assert (refusal.code, refusal.detail["limit"], refusal.detail["retry_after_ms"]) == ("throttled", "pressure", 200)
    assert code(desk, ephemeral) is None  # does not go there
    desk.settle()
    assert code(desk, topic) is None  # the ring has room again
