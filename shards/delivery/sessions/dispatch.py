"""From an op to its operation. Promise: before an operation runs, its connection has said hello, its fields are
checked, its right is there for the topic it names, and it is not one change too many.
"""

from __future__ import annotations

from topicd.errors import InvalidRequest, Throttled
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import unpack_map
from topicd.shards.delivery.ops import consumers, debug, hello, producers, records, topics, watching
from topicd.shards.delivery.sessions.call import OPERATIONS, RAW_OPERATIONS, Call
from topicd.shards.delivery.writing.outlet import ENTRIES_MAX

OPS = (consumers, debug, hello, producers, records, topics, watching)  # importing them declares their operations
_HELLO = int(Op.HELLO)


def dispatch(call: Call, body: memoryview) -> None:
    """Raises what refuses the request; otherwise it is answered, now or later."""
    op, session = call.op, call.session
    if not session.greeted and op != _HELLO:
        raise InvalidRequest("the first message must be HELLO")
    raw = RAW_OPERATIONS.get(op)
    if raw is not None:
        raw(call, body)
        return
    declared = OPERATIONS.get(op)
    if declared is None:
        raise InvalidRequest(f"unknown op 0x{op:02x}")
    wanted, function = declared
    if wanted.CHANGES and any(outlet.crowded for outlet in call.shard.outlets):
        message = f"{ENTRIES_MAX} changes are under way and the disk does not keep up"
        raise Throttled(message, limit="changes under way", retry_after_ms=100)
    want = wanted.from_wire(unpack_map(body))
    if wanted.RIGHT:
        session.rights.require_any(wanted.RIGHT, getattr(want, "topic"))  # noqa: B009 (a field of the subclass)
    function(call, want)
