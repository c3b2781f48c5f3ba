"""Requests of a backup: for those who may administer, one after the other."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import Conflict, Forbidden, InvalidRequest
from topicd.ipc.protocol.messages import Op
from topicd.tokens import Rights

ALL = (Op.BACKUP_HOLD, Op.BACKUP_STILL, Op.BACKUP_FREEZE, Op.BACKUP_CUT, Op.BACKUP_RELEASE)


def test_a_hold_says_where_the_files_are(desk: Desk) -> None:
    desk.serve()
    line = desk.line()
    answer = line.ask(Op.BACKUP_HOLD, hold="me")
    assert (answer["data_dir"], answer["shard"], answer["delivery_shards"]) == ("/data", 0, 1)
    line.ask(Op.BACKUP_STILL, hold="me")
    line.ask(Op.BACKUP_FREEZE, hold="me")
    assert line.ask(Op.BACKUP_RELEASE, hold="me") == {"held": True}
    assert line.ask(Op.BACKUP_RELEASE, hold="me") == {"held": False}


@pytest.mark.parametrize("op", ALL[1:-1])
def test_without_a_hold_there_is_nothing_to_cut(desk: Desk, op: Op) -> None:
    with pytest.raises(Conflict):
        desk.line().ask(op, hold="me")


@pytest.mark.parametrize("op", ALL)
def test_each_needs_the_right_to_administer(desk: Desk, op: Op) -> None:
    line = desk.line()
    line.session.rights = Rights("writer", frozenset({"read", "write", "delete", "consume", "stage"}), ())
    with pytest.raises(Forbidden):
        line.ask(op, hold="me")


def test_a_lease_has_its_limits(desk: Desk) -> None:
    with pytest.raises(InvalidRequest):
        desk.line().ask(Op.BACKUP_HOLD, hold="me", lease_ms=10_000_000)
