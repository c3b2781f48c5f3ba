"""Who is connected, told to those who may know."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import Forbidden
from topicd.ipc.protocol.messages import Op
from topicd.tokens import Rights


def test_each_connection_is_listed_with_what_it_watches(desk: Desk) -> None:
    desk.topic("orders", durability="memory")
    line, other = desk.line(), desk.line()
    other.ask(Op.SUBSCRIBE, topics=[{"topic": "orders"}, {"topic": "soon"}], wait=True)
    other.ask(Op.SUBSCRIBE, pattern="eu.*")
    rows = line.ask(Op.CONNECTIONS)["connections"]
    assert sorted(row["subscriptions"] for row in rows) == [[], ["eu.*", "orders", "soon"]]
    assert all(row["bytes_in"] > 0 and row["who"] for row in rows)


def test_it_needs_the_right_to_administer(desk: Desk) -> None:
    line = desk.line()
    line.session.rights = Rights("reader", frozenset({"read"}), ())
    with pytest.raises(Forbidden):
        line.ask(Op.CONNECTIONS)
