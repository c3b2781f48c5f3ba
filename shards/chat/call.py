"""One request to a chat process, and the table of what can be asked. Promise: before an operation runs, its connection
has said hello, its fields are checked, and its right is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from topicd.errors import Forbidden, InvalidRequest
from topicd.ipc.protocol.chat import ChatRequest
from topicd.ipc.protocol.wire import unpack_map
from topicd.shards.chat.service import Service
from topicd.tokens import Rights

if TYPE_CHECKING:
    from topicd.shards.chat.live import Listener, Subscription

R = TypeVar("R", bound=ChatRequest)
Answer = dict[str, Any] | None  # None: it has no answer


class Call(NamedTuple):
    service: Service
    rights: Rights
    request_id: int
    out: Listener
    subscriptions: dict[int, Subscription]  # of the connection, by the request id of their SUBSCRIBE

    def user(self, given: str | None) -> tuple[bytes, str] | None:
        return self.service.names.as_user(self.rights, given)

    def required_user(self, given: str | None) -> tuple[bytes, str]:
        found = self.user(given)
        if found is None:
            raise InvalidRequest("say as which user")
        return found


Function = Callable[[Call, Any], Answer | Awaitable[Answer]]
OPERATIONS: dict[int, tuple[type[ChatRequest], Function]] = {}


def operation(wanted: type[R]) -> Callable[[Callable[[Call, R], Any]], Callable[[Call, R], Any]]:
    def declare(function: Callable[[Call, R], Any]) -> Callable[[Call, R], Any]:
        OPERATIONS[wanted.OP] = (wanted, function)
        return function

    return declare


def dispatch(call: Call, op: int, body: memoryview) -> Answer | Awaitable[Answer]:
    """Raises what refuses the request."""
    want, function = understood(call.rights, op, body)
    return function(call, want)


def understood(rights: Rights, op: int, body: memoryview) -> tuple[ChatRequest, Function]:
    """A request that may be asked, and what answers it."""
    declared = OPERATIONS.get(op)
    if declared is None:
        raise InvalidRequest(f"unknown op 0x{op:02x}")
    wanted, function = declared
    want = wanted.from_wire(unpack_map(body))
    if wanted.RIGHT and rights.scopes.isdisjoint({*wanted.RIGHT, "admin"}):
        name = rights.name
        raise Forbidden(f"token {name!r} has no {wanted.RIGHT[0]} right", token=name, scope=wanted.RIGHT[0])
    return want, function
