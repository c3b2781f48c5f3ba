"""The way out of a connection: what is gathered, when it goes, and that one that does not read is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.errors import Conflict, Throttled
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import (
    ANSWER,
    APPENDED,
    FETCHED,
    FLAG_CAUGHT_UP,
    FLAG_DEDUPED,
    FLAG_PERFORMANCE,
    FLAG_TOMBSTONE,
    PERFORMANCE,
    performance_map,
    unpack_map,
)
from topicd.limits import KIB
from topicd.model import Tombstone
from topicd.shards.delivery.reading.reading import ReadAnswer
from topicd.shards.delivery.sessions.outbox import Outbox
from topicd.shards.delivery.topic.flight import InFlight, Waiter
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.in_flight import AppendEntry


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.line()


@pytest.fixture
def outbox(line: Line) -> Outbox:
    return line.session


def test_answers_are_gathered_until_the_turn_flushes_them(desk: Desk, line: Line, outbox: Outbox) -> None:
    outbox.answer(Op.PING, 1, {"a": 1})
    outbox.refused(2, Conflict("no"))
    outbox.notice(3, {"event": "x"})
    assert line.answers == []
    desk.turn()
    assert [(one.op, one.request_id) for one in line.answers] == [
        (Op.PING | ANSWER, 1),
        (Op.ERROR, 2),
        (Op.NOTICE, 3),
    ]
    assert not outbox.write_blocked


def test_only_throttling_is_counted_as_such(desk: Desk, outbox: Outbox) -> None:
    outbox.refused(1, Conflict("no"))
    outbox.refused(2, Throttled("later", limit="x", retry_after_ms=1))
    assert desk.parts.counters.throttled == 1


def test_one_that_does_not_read_is_noticed(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(outbox_bytes=1000)
    outbox = desk.line().session
    outbox.write(bytes(1000))
    assert not outbox.write_blocked
    outbox.write(b"x")
    assert outbox.write_blocked


def test_without_a_transport_everything_waits_and_nothing_is_kept(line: Line, outbox: Outbox) -> None:
    line.session.connection_lost(None)
    assert outbox.write_blocked
    outbox.write(b"x")
    outbox.flush()
    assert outbox._out == []


def test_a_transport_that_closes_gets_nothing(line: Line, outbox: Outbox) -> None:
    line.closing = True
    outbox.notice(1, {})
    outbox.flush()
    assert (line.answers, outbox._out_bytes) == ([], 0)


def test_closing_sends_what_is_there(line: Line, outbox: Outbox) -> None:
    outbox.notice(1, {})
    outbox.close()
    assert [one.op for one in line.answers] == [Op.NOTICE]
    assert line.closing


# ---- appends ----


def entry(need: Need = Need.WRITTEN) -> InFlight:
    made = InFlight(need, 5, 0)
    made.started_at = 1.0
    return made


@pytest.mark.parametrize("flags", [0, FLAG_DEDUPED, FLAG_PERFORMANCE])
def test_an_append_is_answered_in_one_layout(desk: Desk, line: Line, outbox: Outbox, flags: int) -> None:
    outbox.in_flight = 1
    desk.clock.advance(3000)
    outbox.appended(Waiter(outbox, 9, flags, 5, 2), 6, entry())
    outbox.flush()
    [answer] = line.answers
    assert (answer.op, answer.request_id, outbox.in_flight) == (Op.APPEND | ANSWER, 9, 0)
    assert answer.flags == flags & FLAG_DEDUPED
    assert APPENDED.unpack_from(answer.body) == (5, 2, 6)
    assert len(answer.body) == APPENDED.size + (PERFORMANCE.size if flags & FLAG_PERFORMANCE else 0)


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        (Need.PLACED, (2000.0, 0.0, 7.0)),
        (Need.WRITTEN, (0.25, 0.0, 8.5)),
        (Need.SYNCED, (0.25, 4.0, 8.5)),
    ],
)
def test_the_times_are_those_of_the_log_and_of_waiting(
    desk: Desk, line: Line, outbox: Outbox, need: Need, expected: tuple[float, float, float]
) -> None:
    """What the WAL shard says of the group, and for how long the connection was not read from; told once."""
    desk.wal.ring.set_write_took(1_500, 250)
    desk.wal.ring.set_sync_took(4_000)
    found = AppendEntry(desk.parts.appender._commits, desk.topic(), need, 0)
    found.started_at = 1.0
    desk.clock.advance(3000)
    outbox.held_ms = 7.0
    for _ in range(2):
        outbox.in_flight = 1
        outbox.appended(Waiter(outbox, 9, FLAG_PERFORMANCE, 5, 2), 6, found)
    outbox.flush()
    first, second = (performance_map(answer.body[APPENDED.size :]) for answer in line.answers)
    assert (first["wal_append_ms"], first["fsync_ms"], first["throttle_wait_ms"]) == expected
    assert first["server_total_ms"] == 2007
    assert (second["server_total_ms"], second["throttle_wait_ms"]) == (2000, expected[2] - 7)


def test_an_answer_that_is_a_map_says_how_long_it_took(desk: Desk, line: Line, outbox: Outbox) -> None:
    desk.clock.advance(3000)
    outbox.held_ms = 7.0
    outbox.answer(Op.DELETE_RECORDS, 1, {"examined": 12}, 1.0)
    outbox.answer(Op.PING, 2, {})
    outbox.flush()
    told, plain = line.answers
    performance = {"server_total_ms": 2000.0, "throttle_wait_ms": 7.0, "records_scanned": 12}
    assert (told.flags, told.map()) == (FLAG_PERFORMANCE, {"examined": 12, "performance": performance})
    assert (plain.flags, plain.map()) == (0, {})


def test_one_that_takes_nothing_is_noticed_and_one_that_is_slow_is_not(line: Line, outbox: Outbox) -> None:
    waiting = [5_000]
    line.get_write_buffer_size = lambda: waiting[0]  # type: ignore[method-assign]
    assert outbox.unread_s(0.0) == 0  # it may be written to
    line.session.pause_writing()
    found = []
    for now, left in ((1.0, 5_000), (11.0, 5_000), (12.0, 4_999), (20.0, 4_999), (50.0, 5_100)):
        waiting[0] = left
        found.append(outbox.unread_s(now))
    assert found == [0, 10, 0, 8, 38]
    line.session.resume_writing()
    assert outbox.unread_s(51.0) == 0


def test_a_retry_is_answered_as_one(line: Line, outbox: Outbox) -> None:
    outbox.in_flight = 1
    outbox.deduped(Waiter(outbox, 9, FLAG_DEDUPED | FLAG_PERFORMANCE, 5, 2), 6)
    outbox.flush()
    [answer] = line.answers
    assert (answer.flags, APPENDED.unpack_from(answer.body), outbox.in_flight) == (FLAG_DEDUPED, (5, 2, 6), 0)
    assert performance_map(answer.body[APPENDED.size :])["server_total_ms"] == 0


def test_a_run_is_answered_record_by_record(line: Line, outbox: Outbox) -> None:
    outbox.in_flight = 3
    outbox.run_appended(b"".join(n.to_bytes(4, "little") for n in (7, 8)), 5, 6)
    outbox.flush()
    assert [(one.request_id, APPENDED.unpack_from(one.body)) for one in line.answers] == [
        (7, (5, 1, 6)),
        (8, (6, 1, 6)),
    ]
    assert outbox.in_flight == 1


def test_a_refused_append_is_no_longer_under_way(outbox: Outbox) -> None:
    outbox.in_flight = 2
    outbox.append_refused(1, Conflict("no"))
    assert outbox.in_flight == 1


# ---- records ----


def test_records_are_written_behind_their_numbers(desk: Desk, line: Line, outbox: Outbox) -> None:
    topic = desk.topic(durability="memory")
    desk.write(topic, [b"a", b"b", b"c"])
    answer = desk.parts.reader.newest(topic, 0, 1000)
    assert answer is not None
    outbox.fetched(9, topic, answer, None)
    outbox.fetched(10, topic, ReadAnswer(next_from=1), desk.clock.monotonic() - 2)
    gap = Tombstone(1, 2, "cap", 2, 3, 3)
    outbox.push(11, topic, ReadAnswer(next_from=3, tombstone=gap))
    desk.turn()
    whole, slow, lost = line.answers
    assert (whole.flags, whole.datas()) == (FLAG_CAUGHT_UP, [b"a", b"b", b"c"])
    assert FETCHED.unpack_from(whole.body)[:5] == (topic.id, 3, 3, 1, 3)
    assert slow.flags == FLAG_PERFORMANCE
    assert unpack_map(slow.body[FETCHED.size :])["performance"]["server_total_ms"] == 2000
    assert (lost.op, lost.flags) == (Op.PUSH, FLAG_TOMBSTONE | FLAG_CAUGHT_UP)
    assert unpack_map(lost.body[FETCHED.size :])["tombstone"] == gap.to_wire()
    assert desk.parts.counters.tombstones == 1


def test_large_pushes_do_not_pile_up(desk: Desk, line: Line, outbox: Outbox) -> None:
    topic = desk.topic(durability="memory")
    desk.write(topic, [bytes(10 * KIB)] * 4)
    answer = desk.parts.reader.newest(topic, 0, 1 << 20)
    assert answer is not None
    outbox.push(1, topic, answer)
    assert line.answers == []
    outbox.push(1, topic, answer)
    assert [len(one.datas()) for one in line.answers] == [4, 4]
