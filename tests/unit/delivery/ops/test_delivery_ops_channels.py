"""The operations on channels, over a connection of a shard whose disk is in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd import errors
from topicd.ipc.protocol.messages import Op
from topicd.tokens import Rights


def persistent(line: Line, channel: str = "lobby", user: str = "ann", **config: object) -> None:
    line.ask(Op.CHANNEL_JOIN, channel=channel, user=user)
    line.ask(Op.CHANNEL_CONFIG, channel=channel, user=user, config={"persist": True, **config})


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.serve().line()


def test_whoever_joins_first_owns_it(line: Line) -> None:
    made = line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    assert (made["created"], made["owner"], made["members"]) == (True, "ann", 1)
    second = line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")
    assert (second["created"], second["joined"], second["owner"], second["members"]) == (False, True, "ann", 2)
    assert line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")["joined"] is False


def test_the_next_in_order_owns_it_when_the_owner_leaves(line: Line) -> None:
    for user in ("mia", "zoe", "bob"):
        line.ask(Op.CHANNEL_JOIN, channel="lobby", user=user)
    assert line.ask(Op.CHANNEL_LEAVE, channel="lobby", user="mia") == {
        "channel": "lobby",
        "gone": False,
        "owner": "bob",
    }
    line.ask(Op.CHANNEL_LEAVE, channel="lobby", user="zoe")
    assert line.ask(Op.CHANNEL_LEAVE, channel="lobby", user="bob")["gone"] is True
    with pytest.raises(errors.ChannelNotFound):
        line.ask(Op.CHANNEL_STATE, channel="lobby")


def test_messages_go_to_those_who_are_connected(line: Line) -> None:
    for user in ("ann", "bob"):
        line.ask(Op.CHANNEL_JOIN, channel="lobby", user=user)
    watch = line.send(Op.CHANNEL_WATCH, {"channel": "lobby", "user": "bob", "events": True})
    assert len(line.result(watch).map()["topics"]) == 1
    assert line.ask(Op.CHANNEL_STATE, channel="lobby")["connected"] == ["bob"]
    assert line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"hello") == {"seq": 1, "deduped": False}
    assert [push.datas() for push in line.take(Op.PUSH)] == [[b"hello"]]
    line.ask(Op.UNSUBSCRIBE, subscription=watch)
    assert line.ask(Op.CHANNEL_STATE, channel="lobby")["connected"] == []
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"unheard")
    assert line.take(Op.PUSH) == []


def test_a_message_that_is_repeated_is_stored_once(line: Line) -> None:
    persistent(line)
    first = line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"x", key=77)
    again = line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"x", key=77)
    assert (first["seq"], again["seq"], again["deduped"]) == (1, 1, True)


def test_history_is_of_persistent_channels(line: Line) -> None:
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"before")
    with pytest.raises(errors.Conflict):
        line.ask(Op.CHANNEL_HISTORY, channel="lobby", user="ann")
    persistent(line)
    for n in range(5):
        line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"%d" % n)
    found = line.ask(Op.CHANNEL_HISTORY, channel="lobby", user="ann", from_seq=3, limit=2, history_id="h")
    assert [(m["seq"], m["from"], m["data"]) for m in found["messages"]] == [(3, "ann", b"2"), (4, "ann", b"3")]
    assert (found["history_id"], found["first_seq"], found["last_seq"]) == ("h", 1, 5)
    assert line.ask(Op.CHANNEL_HISTORY, channel="lobby", user="ann", from_seq=6)["messages"] == []
    assert line.ask(Op.CHANNEL_SEQ, channel="lobby", user="ann") == {"first_seq": 1, "last_seq": 5}


REFUSED = [
    ("not_member", Op.CHANNEL_PUBLISH, {"user": "eve", "data": b"x"}),
    ("not_member", Op.CHANNEL_WATCH, {"user": "eve"}),
    ("not_member", Op.CHANNEL_LEAVE, {"user": "eve"}),
    ("not_member", Op.CHANNEL_HISTORY, {"user": "eve"}),
    ("not_owner", Op.CHANNEL_CONFIG, {"user": "bob", "config": {"max_clients": 5}}),
    ("not_owner", Op.CHANNEL_ACL, {"user": "bob", "access": "join", "users": []}),
    ("not_owner", Op.CHANNEL_DELETE, {"user": "bob"}),
    ("payload_too_large", Op.CHANNEL_PUBLISH, {"user": "ann", "data": bytes(101)}),
    ("channel_full", Op.CHANNEL_JOIN, {"user": "eve"}),
    ("conflict", Op.CHANNEL_POP, {"user": "ann"}),
    ("conflict", Op.CHANNEL_PUSH, {"user": "ann", "data": b"x"}),
    ("invalid_request", Op.CHANNEL_CONFIG, {"user": "ann", "config": {"colour": 5}}),
    ("invalid_request", Op.CHANNEL_CONFIG, {"user": "ann", "config": {"max_persist_messages": 0}}),
    ("invalid_request", Op.CHANNEL_JOIN, {"user": "no such name"}),
]


@pytest.mark.parametrize(("code", "op", "body"), REFUSED)
def test_what_is_refused_changes_nothing(line: Line, code: str, op: Op, body: dict[str, object]) -> None:
    persistent(line, max_clients=2, max_payload_size=100)
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")
    before = line.ask(Op.CHANNEL_STATE, channel="lobby")
    with pytest.raises(errors.TopicdError) as refused:
        line.ask(op, channel="lobby", **body)
    assert refused.value.code == code
    assert line.ask(Op.CHANNEL_STATE, channel="lobby") == before


def test_lists_say_who_may(line: Line) -> None:
    persistent(line)
    for access in ("join", "publish", "read"):
        line.ask(Op.CHANNEL_ACL, channel="lobby", user="ann", access=access, users=["bob"])
    with pytest.raises(errors.Forbidden):
        line.ask(Op.CHANNEL_JOIN, channel="lobby", user="eve")
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="bob", data=b"x")
    found = line.ask(Op.CHANNEL_ACL, channel="lobby", user="ann", access="publish", mode="allow", users=["eve"])
    assert found["acl"]["publish"] == ["bob", "eve"]
    line.ask(Op.CHANNEL_ACL, channel="lobby", user="ann", access="publish", mode="remove", users=["bob"])
    with pytest.raises(errors.Forbidden):
        line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="bob", data=b"x")
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"the owner may")
    line.ask(Op.CHANNEL_ACL, channel="lobby", user="ann", access="read", mode="remove", users=["bob"])
    line.ask(Op.CHANNEL_HISTORY, channel="lobby", user="bob")  # an empty list: everybody


def test_readers_are_members_on_the_list(line: Line) -> None:
    persistent(line)
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")
    line.ask(Op.CHANNEL_ACL, channel="lobby", user="ann", access="read", users=["eve"])
    for user, code in (("bob", "forbidden"), ("eve", "not_member")):
        for op in (Op.CHANNEL_HISTORY, Op.CHANNEL_SEQ, Op.CHANNEL_WATCH):
            with pytest.raises(errors.TopicdError) as refused:
                line.result(line.send(op, {"channel": "lobby", "user": user}))
            assert refused.value.code == code, op
    line.ask(Op.CHANNEL_HISTORY, channel="lobby", user="ann")


def test_prefixes_of_a_token_hold_for_the_list(line: Line) -> None:
    for channel in ("a/1", "b/1", "b/2"):
        line.ask(Op.CHANNEL_JOIN, channel=channel, user="ann")
    line.session.rights = Rights("token", frozenset({"read", "write"}), ("b/",), "ann")
    assert [row["channel"] for row in line.ask(Op.CHANNEL_LIST)["channels"]] == ["b/1", "b/2"]
    for op, body in ((Op.CHANNEL_STATE, {}), (Op.CHANNEL_PUBLISH, {"data": b"x"}), (Op.CHANNEL_LEAVE, {})):
        with pytest.raises(errors.Forbidden):
            line.ask(op, channel="a/1", **body)


@pytest.mark.parametrize("action", ["reserve", "release", "channels"])
def test_shards_ask_each_other_for_slots_and_nobody_else(line: Line, action: str) -> None:
    line.session.rights = Rights("token", frozenset({"read", "write", "admin"}), (), "ann")
    with pytest.raises(errors.Forbidden):
        line.ask(Op.CHANNEL_SLOTS, action=action, user="bob", channel="lobby")


def test_a_push_that_is_repeated_needs_no_room(line: Line) -> None:
    persistent(line, "jobs", max_persist_messages=1)
    line.ask(Op.CHANNEL_TYPE, channel="jobs", user="ann", type="fifo")
    first = line.ask(Op.CHANNEL_PUSH, channel="jobs", data=b"x", key=7)
    again = line.ask(Op.CHANNEL_PUSH, channel="jobs", data=b"x", key=7)
    assert (first["deduped"], again["deduped"], again["seq"], again["depth"]) == (False, True, first["seq"], 1)
    with pytest.raises(errors.QueueFull):
        line.ask(Op.CHANNEL_PUSH, channel="jobs", data=b"y", key=8)


def test_a_queue_hands_out_each_element_once(line: Line) -> None:
    persistent(line, "jobs", max_persist_messages=3)
    line.ask(Op.CHANNEL_PUBLISH, channel="jobs", user="ann", data=b"no element")
    line.ask(Op.CHANNEL_TYPE, channel="jobs", user="ann", type="fifo")
    with pytest.raises(errors.QueueEmpty):
        line.ask(Op.CHANNEL_POP, channel="jobs", user="ann")
    assert [line.ask(Op.CHANNEL_PUSH, channel="jobs", data=b"%d" % n)["depth"] for n in range(3)] == [1, 2, 3]
    with pytest.raises(errors.QueueFull):
        line.ask(Op.CHANNEL_PUSH, channel="jobs", data=b"too much")
    pops = [line.send(Op.CHANNEL_POP, {"channel": "jobs"}) for _ in range(4)]
    assert [line.result(pop).map()["data"] for pop in pops[:3]] == [b"0", b"1", b"2"]
    with pytest.raises(errors.QueueEmpty):
        line.result(pops[3])
    with pytest.raises(errors.Conflict):
        line.ask(Op.CHANNEL_PUBLISH, channel="jobs", user="ann", data=b"x")
    line.ask(Op.CHANNEL_PUSH, channel="jobs", data=b"last")
    assert line.ask(Op.CHANNEL_CLEAR, channel="jobs")["cleared"] == 1
    with pytest.raises(errors.QueueEmpty):
        line.ask(Op.CHANNEL_POP, channel="jobs")


def test_a_queue_goes_with_its_owner(line: Line) -> None:
    persistent(line, "jobs")
    line.ask(Op.CHANNEL_JOIN, channel="jobs", user="bob")
    line.ask(Op.CHANNEL_TYPE, channel="jobs", user="ann", type="fifo")
    assert line.ask(Op.CHANNEL_LEAVE, channel="jobs", user="ann")["gone"] is True


def test_watchers_follow_a_channel_into_its_new_log(line: Line) -> None:
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    line.result(line.send(Op.CHANNEL_WATCH, {"channel": "lobby", "user": "ann"}))
    persistent(line)
    assert [n.map()["event"] for n in line.take(Op.NOTICE)] == ["topic", "channel"]
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"kept")
    assert [push.datas() for push in line.take(Op.PUSH)] == [[b"kept"]]
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", user="ann", config={"persist": False})
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"not kept")
    assert [push.datas() for push in line.take(Op.PUSH)] == [[b"not kept"]]


def test_channels_are_listed(line: Line) -> None:
    for channel, user in (("a", "ann"), ("b", "bob"), ("c", "ann")):
        line.ask(Op.CHANNEL_JOIN, channel=channel, user=user)
    names = lambda **more: [row["channel"] for row in line.ask(Op.CHANNEL_LIST, **more)["channels"]]  # noqa: E731
    assert names() == ["a", "b", "c"]
    assert names(member="ann") == ["a", "c"]
    assert names(limit=1, after="a") == ["b"]


@pytest.mark.parametrize("fails", ["join", "leave", "acl", "config"])
def test_c8_a_save_that_fails_changes_nothing(desk: Desk, fails: str) -> None:
    line = desk.serve().line()
    persistent(line)
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")
    before = line.ask(Op.CHANNEL_STATE, channel="lobby")
    files = desk.disk.files()
    ask: dict[str, Callable[[], object]] = {
        "join": lambda: line.ask(Op.CHANNEL_JOIN, channel="lobby", user="eve"),
        "leave": lambda: line.ask(Op.CHANNEL_LEAVE, channel="lobby", user="bob"),
        "acl": lambda: line.ask(Op.CHANNEL_ACL, channel="lobby", user="ann", access="read", users=["bob"]),
        "config": lambda: line.ask(Op.CHANNEL_CONFIG, channel="lobby", user="ann", config={"max_clients": 7}),
    }
    desk.fail_disk(lambda name, path: "channels" in str(path))
    with pytest.raises(errors.StorageFailed):
        ask[fails]()
    desk.mend_disk()
    assert line.ask(Op.CHANNEL_STATE, channel="lobby") == before
    assert desk.disk.files() == files
    ask[fails]()
    assert line.ask(Op.CHANNEL_STATE, channel="lobby") != before
