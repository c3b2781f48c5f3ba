"""One request: the connection that it came on, and the one way to answer it. Operations (topicd.shards.delivery.ops)
are functions of a call and a checked message; dispatch.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from topicd.errors import Conflict, TopicdError
from topicd.ipc.protocol.messages import Request
from topicd.ipc.protocol.wire import FLAG_PERFORMANCE
from topicd.shards.delivery.parts import Parts
from topicd.shards.delivery.sessions.connection import Connection


class Call:
    __slots__ = ("connection", "flags", "op", "request_id", "shard", "started_at")

    def __init__(self, shard: Parts, connection: Connection, op: int, flags: int, request_id: int) -> None:
        self.shard = shard
        self.connection = connection
        self.op = op
        self.flags = flags
        self.request_id = request_id
        # None: nobody asks how long it took.
        self.started_at = shard.place.clock.monotonic() if flags & FLAG_PERFORMANCE else None

    def answer(self, body: dict[str, Any]) -> None:
        self.connection.answer(self.op, self.request_id, body, self.started_at)

    def refuse(self, error: TopicdError) -> None:
        self.connection.refused(self.request_id, error)

    def done(self, body: dict[str, Any] | None, error: TopicdError | None) -> None:
        """For what is answered later: the answer, or why there is none."""
        if body is None:
            self.refuse(error or Conflict("nothing was changed"))
        else:
            self.answer(body)


R = TypeVar("R", bound=Request)
# By op: the message that checks the body, and what is done with it.
OPERATIONS: dict[int, tuple[type[Request], Callable[[Call, Any], None]]] = {}
# By op: what is done with a body of a layout of its own.
RAW_OPERATIONS: dict[int, Callable[[Call, memoryview], None]] = {}


def operation(wanted: type[R]) -> Callable[[Callable[[Call, R], None]], Callable[[Call, R], None]]:
    """This function does what that request asks for."""

    def declare(function: Callable[[Call, R], None]) -> Callable[[Call, R], None]:
        OPERATIONS[wanted.OP] = (wanted, function)
        return function

    return declare
