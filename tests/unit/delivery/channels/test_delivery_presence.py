"""Watches: what a slow one misses is told."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.channel import is_channel_log
from topicd.ipc.protocol.messages import Op


@pytest.fixture
def line(desk: Desk) -> Line:
    line = desk.serve().line()
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    return line


def watch(line: Line, **more: object) -> int:
    request = line.send(Op.CHANNEL_WATCH, {"channel": "lobby", "user": "ann", **more})
    line.result(request)
    return request


def kinds(line: Line) -> list[tuple[str, object]]:
    return [
        (found["kind"], found.get("user") or found.get("events")) for found in (n.map() for n in line.take(Op.NOTICE))
    ]


def test_events_for_who_wants_them(desk: Desk, line: Line) -> None:
    watch(line, events=True)
    quiet = desk.line()
    watch(quiet)
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")
    line.ask(Op.CHANNEL_LEAVE, channel="lobby", user="ann")
    assert kinds(line) == [("connected", "ann"), ("joined", "bob"), ("left", "ann")]
    assert kinds(quiet) == [("left", "ann")]  # the end of its own watch


def test_whoever_is_taken_from_the_list_of_readers_hears_no_more(desk: Desk, line: Line) -> None:
    others = {user: desk.line() for user in ("bob", "eve")}
    for user, other in others.items():
        line.ask(Op.CHANNEL_JOIN, channel="lobby", user=user)
        other.result(other.send(Op.CHANNEL_WATCH, {"channel": "lobby", "user": user}))
    watch(line)
    for users in (["bob", "eve"], ["bob"]):
        line.ask(Op.CHANNEL_ACL, channel="lobby", user="ann", access="read", users=users)
    assert [notice.map() for notice in others["eve"].take(Op.NOTICE)] == [
        {"event": "channel", "kind": "forbidden", "ends": True, "user": "eve"}
    ]
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="eve", data=b"not for me")
    assert [len(one.take(Op.PUSH)) for one in (line, others["bob"], others["eve"])] == [1, 1, 0]
    assert line.ask(Op.CHANNEL_STATE, channel="lobby")["connected"] == ["ann", "bob"]


def test_a_reader_that_does_not_read_hears_how_much_it_missed(desk: Desk, line: Line) -> None:
    watch(line, events=True)
    kinds(line)
    line.session.pause_writing()
    other = desk.line()
    for n in range(5):
        other.ask(Op.CHANNEL_JOIN, channel="lobby", user=f"u{n}")
    line.session.resume_writing()
    other.ask(Op.CHANNEL_JOIN, channel="lobby", user="last")
    assert kinds(line) == [("missed", 5), ("joined", "last")]


def test_credit_bounds_what_is_pushed(desk: Desk, line: Line) -> None:
    watch(line, credit=1)
    for _ in range(3):
        line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"x")
    assert len(line.take(Op.PUSH)) == 1


def test_a_connection_that_breaks_is_connected_no_more(desk: Desk, line: Line) -> None:
    other = desk.line()
    watch(other)
    assert line.ask(Op.CHANNEL_STATE, channel="lobby")["connected"] == ["ann"]
    other.session.connection_lost(None)
    assert line.ask(Op.CHANNEL_STATE, channel="lobby")["connected"] == []
    assert desk.parts.channels.tallies.connected == 0


def test_whoever_comes_back_to_another_log_hears_of_it_and_gets_all_of_it(desk: Desk, line: Line) -> None:
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    before = watch(line)
    (topic,) = (found for found in desk.parts.catalog.by_name.values() if is_channel_log(found.name))
    for _ in range(3):
        line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"old")
    line.ask(Op.UNSUBSCRIBE, subscription=before)
    for persist in (False, True):
        line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": persist})
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"new")
    line.take(Op.PUSH)
    line.take(Op.NOTICE)
    for more in ({"epoch": topic.id, "from_seq": 1}, {"from_seq": 3}):
        watch(line, **more)
        assert [notice.map() for notice in line.take(Op.NOTICE)] == [{"event": "channel", "kind": "log"}]
        assert [push.datas() for push in line.take(Op.PUSH)] == [[b"new"]]


def test_whoever_comes_back_to_the_same_log_hears_nothing_of_it(line: Line) -> None:
    for _ in range(2):
        line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"x")
    watch(line, from_seq=2)
    assert (kinds(line), line.take(Op.PUSH)) == ([], [])


def test_what_a_move_leaves_unread_is_told(desk: Desk, line: Line) -> None:
    watch(line, credit=1)
    for _ in range(4):
        line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"x")
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    found = [notice.map() for notice in line.take(Op.NOTICE)]
    assert [(one["event"], one.get("missed")) for one in found] == [("topic", None), ("channel", 3)]
