"""What is declared for routers, and who answers it."""

from __future__ import annotations

import pytest

from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import CreateRouter, Op
from topicd.shards.delivery.ops import routers as module
from topicd.shards.delivery.sessions.call import OPERATIONS


def test_every_operation_on_routers_is_there() -> None:
    assert module.__doc__
    assert all(op in OPERATIONS for op in Op if op.name.startswith(("ROUTER", "SOURCE_HEAD")))


def test_a_router_name_may_point_and_a_topic_name_may_not() -> None:
    want = CreateRouter.from_wire({"router": "a->b", "source": "a", "dest": "b"})
    assert (want.router, want.create_dest, want.guarantee, want.sample) == ("a->b", True, "at_least_once", 1)
    with pytest.raises(InvalidRequest, match="router name"):
        CreateRouter.from_wire({"router": ">", "source": "a", "dest": "b"})
    with pytest.raises(InvalidRequest, match="topic name"):
        CreateRouter.from_wire({"router": "r", "source": "a>", "dest": "b"})
