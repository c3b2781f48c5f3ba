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
    ("need", "where"), [(Need.WRITTEN, "wal_append_ms"), (Need.SYNCED, "fsync_ms"), (Need.STORED, "fsync_ms")]
)
def test_the_time_is_that_of_what_was_waited_for(
    desk: Desk, line: Line, outbox: Outbox, need: Need, where: str
) -> None:
    desk.clock.advance(3000)
    outbox.appended(Waiter(outbox, 9, FLAG_PERFORMANCE, 5, 2), 6, entry(need))
    outbox.flush()
    told = performance_map(line.answers[0].body[APPENDED.size :])
    assert (told["server_total_ms"], told[where], told["wal_append_ms"] + told["fsync_ms"]) == (2000, 2000, 2000)


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
