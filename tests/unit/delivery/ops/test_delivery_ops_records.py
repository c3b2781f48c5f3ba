"""Records fetched and deleted by request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from tests.unit.delivery.desk import Answer, Desk, Line
from tests.unit.delivery.kit import TS
from topicd import limits
from topicd.errors import Forbidden, InvalidRequest, Throttled, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCH, FETCHED, MessageFlag, unpack_map
from topicd.shards.delivery.topic.topic import Topic
from topicd.tokens import Rights


@pytest.fixture
def topic(desk: Desk) -> Topic:
    made = desk.topic(durability="memory")
    for n in range(1, 6):
        desk.clock.set_wall(TS + n)
        desk.write(made, [b"%d" % n], tags=b"odd" if n % 2 else b"even")
    return made


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.line()


def fetch(line: Line, topic_id: int, *fixed: int, filter: Any = None, flags: int = 0, more: bytes = b"") -> Answer:
    """fixed: from_seq, limit, max_bytes, wait_ms"""
    body = FETCH.pack(topic_id, *(*fixed, 0, 0, 0, 0)[:4]) + more
    if filter is not None:
        body, flags = body + msgpack.packb(filter), flags | int(MessageFlag.FILTER)
    return line.result(line.send(Op.FETCH, body, flags))


def test_records_from_a_seq_on(topic: Topic, line: Line) -> None:
    assert fetch(line, topic.id, 2).datas() == [b"3", b"4", b"5"]
    assert fetch(line, topic.id, 2, 1).datas() == [b"3"]
    assert fetch(line, topic.id, 0, 0, 1).datas() == [b"1"]


def test_a_fetch_counts_as_a_read(desk: Desk, topic: Topic, line: Line) -> None:
    fetch(line, topic.id)
    assert topic.last_read_ms == desk.clock.now_ms()


def test_filters_and_times(topic: Topic, line: Line) -> None:
    assert fetch(line, topic.id, filter={"match": "odd"}).datas() == [b"1", b"3", b"5"]
    assert fetch(line, topic.id, filter={"from_ts": TS + 3}).datas() == [b"3", b"4", b"5"]
    bare = fetch(line, topic.id, flags=int(MessageFlag.METADATA_ONLY))
    assert bare.datas() == [b""] * 5


def test_a_cursor_of_an_older_topic_begins_again_and_says_so(topic: Topic, line: Line) -> None:
    assert fetch(line, topic.id, 3, filter={"epoch": topic.id}).datas() == [b"4", b"5"]
    answer = fetch(line, topic.id, 3, filter={"epoch": topic.id + 1})
    assert answer.datas() == [b"1", b"2", b"3", b"4", b"5"]
    extra = FETCHED.unpack_from(answer.body)[5]
    told = unpack_map(answer.body[FETCHED.size : FETCHED.size + extra])["tombstone"]
    assert (told["reason"], told["gap_from"], told["gap_to"]) == ("recreated", 1, 0)


def test_bad_requests_are_refused(topic: Topic, line: Line) -> None:
    with pytest.raises(InvalidRequest, match="fixed fields"):
        line.result(line.send(Op.FETCH, bytes(FETCH.size - 1)))
    with pytest.raises(InvalidRequest, match="no FILTER"):
        fetch(line, topic.id, more=b"x")
    with pytest.raises(InvalidRequest, match="from_seq"):
        fetch(line, topic.id, limits.MAX_SEQ + 1)
    with pytest.raises(InvalidRequest, match="wait_ms"):
        fetch(line, topic.id, 0, 0, 0, limits.LONG_POLL_MS_MAX + 1)
    with pytest.raises(InvalidRequest):
        fetch(line, topic.id, filter={"no_such": 1})
    with pytest.raises(TopicNotFound):
        fetch(line, 99)


def test_a_token_reads_what_it_may(topic: Topic, line: Line) -> None:
    line.session.rights = Rights("token", frozenset({"write"}))
    with pytest.raises(Forbidden):
        fetch(line, topic.id)


def test_long_polls_of_one_connection_are_bounded(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_inflight_per_connection=2)
    topic, line = desk.topic(), desk.line()
    for _ in range(2):
        line.send(Op.FETCH, FETCH.pack(topic.id, 0, 0, 0, 1000))
    with pytest.raises(Throttled):
        fetch(line, topic.id, 0, 0, 0, 1000)
    assert len(line.session.long_polls) == 2


def test_deletes(topic: Topic, line: Line) -> None:
    with pytest.raises(InvalidRequest):
        line.ask(Op.DELETE_RECORDS, topic="orders")
    assert line.ask(Op.DELETE_RECORDS, topic="orders", match="odd", before_seq=4)["deleted"] == 2
    assert line.ask(Op.DELETE_RECORDS, topic="orders", before_seq=3)["deleted"] == 1
    assert fetch(line, topic.id).datas() == [b"4", b"5"]
    with pytest.raises(TopicNotFound):
        line.ask(Op.DELETE_RECORDS, topic="other", before_seq=3)


def test_a_cut_deletes_what_is_newest_and_gives_no_seq_twice(desk: Desk) -> None:
    topic, line = desk.topic("orders", durability="memory"), desk.line()
    desk.write(topic, [b"1", b"2", b"3"])
    later = desk.clock.now_ms()
    desk.clock.advance(10)
    desk.write(topic, [b"4", b"5"])
    assert line.ask(Op.CUT_TOPIC, topic="orders", after_seq=9) == {"deleted": 0, "last_seq": 5}
    assert line.ask(Op.CUT_TOPIC, topic="orders", after_seq=4) == {"deleted": 1, "last_seq": 4}
    assert line.ask(Op.CUT_TOPIC, topic="orders", after_ts=later) == {"deleted": 1, "last_seq": 3}
    assert (topic.seqs.head, topic.contents.count) == (5, 3)
    assert line.ask(Op.CUT_TOPIC, topic="orders", after_seq=0)["deleted"] == 3
    assert topic.floors.earliest == 6
    for wrong in ({}, {"after_seq": 1, "after_ts": 1}):
        with pytest.raises(InvalidRequest):
            line.ask(Op.CUT_TOPIC, topic="orders", **wrong)
