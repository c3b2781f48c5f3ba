"""One request: the connection that it came on, and the one way to answer it. Operations (topicd.shards.delivery.ops)
are functions of a call and a checked message; dispatch.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from topicd.errors import Conflict, TopicdError
from topicd.ipc.protocol.messages import Request

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.sessions.session import Session


class Call:
    __slots__ = ("flags", "op", "request_id", "session", "shard")

    def __init__(self, session: Session, op: int, flags: int, request_id: int) -> None:
        self.session = session
        self.shard: Actor = session.actor
        self.op = op
        self.flags = flags
        self.request_id = request_id

    def answer(self, body: dict[str, Any]) -> None:
        self.session.answer(self.op, self.request_id, body)

    def refuse(self, error: TopicdError) -> None:
        self.session.refused(self.request_id, error)

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
