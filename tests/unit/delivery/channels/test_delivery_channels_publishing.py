"""Messages into the log and out of it: rows C8, C25 and C27."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd import errors
from topicd.ipc.protocol.messages import Op


def room(desk: Desk, **config: object) -> Line:
    line = desk.serve().line()
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True, **config})
    return line


def publish(line: Line, count: int) -> None:
    for n in range(count):
        line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"%d" % n)


def history(line: Line, **more: object) -> list[int]:
    return [message["seq"] for message in line.ask(Op.CHANNEL_HISTORY, channel="lobby", **more)["messages"]]


def test_c27_history_is_clamped(desk: Desk) -> None:
    line = room(desk, max_persist_messages=120)
    publish(line, 150)
    assert history(line, from_seq=1, limit=10) == list(range(31, 41))
    assert history(line, from_seq=50, limit=10) == list(range(50, 60))
    assert history(line, from_seq=31, limit=4_000) == list(range(31, 131))
    assert history(line, from_seq=151) == []
    assert line.ask(Op.CHANNEL_SEQ, channel="lobby") == {"first_seq": 31, "last_seq": 150}
    with pytest.raises(errors.InvalidRequest):
        history(line, from_seq=0)


def test_c8_a_message_that_could_not_be_stored_is_not_there(desk: Desk) -> None:
    line = room(desk)
    publish(line, 1)
    asked = line.send(Op.CHANNEL_PUBLISH, {"channel": "lobby", "user": "ann", "data": b"x"})
    desk.turn()
    desk.fail_wal(5)
    with pytest.raises(errors.StorageFailed):
        line.result(asked)
    assert history(line) == [1]


def test_c25_without_an_interval_a_message_waits_for_the_sync(desk: Desk) -> None:
    line = room(desk)
    asked = line.send(Op.CHANNEL_PUBLISH, {"channel": "lobby", "user": "ann", "data": b"x"})
    desk.turn()
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert [answer for answer in line.answers if answer.request_id == asked] == []
    desk.wal.sync()
    desk.parts.turn.doorbell()
    assert line.result(asked).map()["seq"] == 1


def test_c25_with_an_interval_it_is_answered_at_once_and_synced_within_it(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(disk_sync_ms=60_000)
    line = room(desk, message_flush_interval=1)
    due: list[object] = []
    desk.parts.outlets[0].when_synced = lambda told: bool(due.append(told))  # type: ignore[method-assign]
    publish(line, 1)
    while not due:
        desk.turn()
    assert desk.parts.channels.registry.get("lobby")[0].flush_due is None


def test_a_queue_without_one_is_an_error_of_ours(desk: Desk) -> None:
    line = room(desk)
    line.ask(Op.CHANNEL_TYPE, channel="lobby", type="fifo")
    desk.parts.channels.registry.get("lobby")[0].queue = None
    for op, body in ((Op.CHANNEL_PUSH, {"data": b"x"}), (Op.CHANNEL_POP, {}), (Op.CHANNEL_CLEAR, {})):
        with pytest.raises(errors.TopicdError) as refused:
            line.ask(op, channel="lobby", **body)
        assert refused.value.code == "internal"
