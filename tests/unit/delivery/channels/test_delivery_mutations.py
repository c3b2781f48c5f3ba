"""Persist, then apply: rows C8 and C9 and C13, and what two who come at once get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd import errors
from topicd.channel import is_channel_log
from topicd.ipc.protocol.messages import Op


def saves(desk: Desk) -> int:
    return desk.parts.channels.tallies.saves


def logs_of(desk: Desk) -> list[str]:
    desk.settle()
    return [name for name in desk.parts.catalog.by_name if is_channel_log(name)]


@pytest.fixture
def line(desk: Desk) -> Line:
    line = desk.serve().line()
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    return line


def test_c9_exactly_four_things_are_saved_and_each_once(desk: Desk, line: Line) -> None:
    def costs(op: Op, **body: object) -> int:
        before = saves(desk)
        line.ask(op, channel="lobby", **body)
        return saves(desk) - before

    assert costs(Op.CHANNEL_JOIN, user="bob") == 0  # it is not persistent
    assert costs(Op.CHANNEL_CONFIG, config={"persist": True}) == 1
    assert costs(Op.CHANNEL_JOIN, user="eve") == 1
    assert costs(Op.CHANNEL_JOIN, user="eve") == 0  # nothing changes
    assert costs(Op.CHANNEL_LEAVE, user="eve") == 1
    assert costs(Op.CHANNEL_ACL, access="read", users=["bob"]) == 1
    assert costs(Op.CHANNEL_CONFIG, config={"max_clients": 5}) == 1
    assert costs(Op.CHANNEL_PUBLISH, user="ann", data=b"x") == 0
    watch = line.send(Op.CHANNEL_WATCH, {"channel": "lobby", "user": "bob"})
    line.result(watch)
    line.ask(Op.UNSUBSCRIBE, subscription=watch)
    assert costs(Op.CHANNEL_HISTORY) == costs(Op.CHANNEL_SEQ) == costs(Op.CHANNEL_STATE) == 0
    assert costs(Op.CHANNEL_CONFIG, config={"persist": False}) == 0


def test_c13_toggling_persist_begins_an_empty_log(desk: Desk, line: Line) -> None:
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"x")
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": False})
    assert desk.parts.place.fs.listdir(desk.parts.place.data.channels) == []
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    assert line.ask(Op.CHANNEL_SEQ, channel="lobby") == {"first_seq": 0, "last_seq": 0}
    assert len(logs_of(desk)) == 1


@pytest.mark.parametrize("persist", [True, False])
def test_a_toggle_that_fails_leaves_no_log_behind(desk: Desk, line: Line, persist: bool) -> None:
    if not persist:
        line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    before = logs_of(desk)
    desk.fail_disk(lambda name, path: "channels" in str(path))
    with pytest.raises(errors.StorageFailed):
        line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": persist})
    desk.mend_disk()
    assert logs_of(desk) == before
    assert line.ask(Op.CHANNEL_STATE, channel="lobby")["config"]["persist"] is not persist
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="ann", data=b"x")


def test_a_configuration_that_the_log_refuses_is_not_said_by_the_file(desk: Desk, line: Line) -> None:
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    before, files = line.ask(Op.CHANNEL_STATE, channel="lobby"), desk.disk.files()
    asked = line.send(Op.CHANNEL_CONFIG, {"channel": "lobby", "config": {"max_persist_messages": 5}})
    while not desk.wal.pending:  # saved, and on its way into the log
        desk.turn()
    assert desk.disk.files() != files
    desk.fail_wal(5)
    with pytest.raises(errors.StorageFailed):
        line.result(asked)
    assert line.ask(Op.CHANNEL_STATE, channel="lobby") == before
    assert desk.disk.files() == files


def test_those_who_come_at_once_make_one_channel(desk: Desk) -> None:
    lines = [desk.serve().line(), desk.line()]
    asked = [line.send(Op.CHANNEL_JOIN, {"channel": "new", "user": f"u{n}"}) for n, line in enumerate(lines)]
    found = [line.result(request).map() for line, request in zip(lines, asked, strict=True)]
    assert [one["created"] for one in found] == [True, False]
    assert [one["owner"] for one in found] == ["u0", "u0"]
    assert len(logs_of(desk)) == 1


def test_whoever_waits_behind_the_end_of_a_channel_makes_a_new_one(desk: Desk, line: Line) -> None:
    leaves = line.send(Op.CHANNEL_LEAVE, {"channel": "lobby", "user": "ann"})
    joins = line.send(Op.CHANNEL_JOIN, {"channel": "lobby", "user": "bob"})
    assert line.result(leaves).map()["gone"] is True
    assert line.result(joins).map()["owner"] == "bob"
    line.ask(Op.CHANNEL_PUBLISH, channel="lobby", user="bob", data=b"x")
    assert len(logs_of(desk)) == 1


def test_a_persistent_channel_without_members_stays_and_is_owned_by_who_comes_next(desk: Desk, line: Line) -> None:
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    assert line.ask(Op.CHANNEL_LEAVE, channel="lobby", user="ann") == {"channel": "lobby", "gone": False, "owner": None}
    assert line.ask(Op.CHANNEL_STATE, channel="lobby")["owner"] is None
    assert line.ask(Op.CHANNEL_JOIN, channel="lobby", user="bob")["owner"] == "bob"


def test_a_channel_without_members_that_is_persistent_no_more_goes(desk: Desk, line: Line) -> None:
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    line.ask(Op.CHANNEL_LEAVE, channel="lobby", user="ann")
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": False})
    with pytest.raises(errors.ChannelNotFound):
        line.ask(Op.CHANNEL_STATE, channel="lobby")
    assert logs_of(desk) == []
    assert desk.disk.listdir(desk.parts.place.data.channels) == []


def test_type_is_one_way_and_needs_a_persistent_channel(desk: Desk, line: Line) -> None:
    with pytest.raises(errors.Conflict):
        line.ask(Op.CHANNEL_TYPE, channel="lobby", type="fifo")
    line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})
    line.ask(Op.CHANNEL_TYPE, channel="lobby", type="fifo")
    for body in ({"type": "pubsub"},):
        with pytest.raises(errors.Conflict):
            line.ask(Op.CHANNEL_TYPE, channel="lobby", **body)
    with pytest.raises(errors.Conflict):
        line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": False})


def test_no_channel_is_persistent_while_nobody_is_known(open_desk: Callable[..., Desk]) -> None:
    line = open_desk(channel_auth=False).serve().line()
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    with pytest.raises(errors.Conflict, match="channel_auth"):
        line.ask(Op.CHANNEL_CONFIG, channel="lobby", config={"persist": True})


def test_a_delete_ends_all_watches(desk: Desk, line: Line) -> None:
    line.result(line.send(Op.CHANNEL_WATCH, {"channel": "lobby", "user": "ann"}))
    line.ask(Op.CHANNEL_DELETE, channel="lobby", user="ann")
    (notice,) = line.take(Op.NOTICE)
    assert notice.map() == {"event": "channel", "kind": "deleted", "ends": True}
    assert logs_of(desk) == []
    assert asyncio.all_tasks(desk.loop) == set()
