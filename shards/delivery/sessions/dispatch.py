"""From an op to its operation. Promise: before an operation runs, its connection has said hello, its fields are
checked, its right is there for the topic it names, and it is not one change too many.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from topicd.errors import InvalidRequest, Throttled
from topicd.ipc.protocol.wire import OP_HELLO, unpack_map
from topicd.shards.delivery import ops
from topicd.shards.delivery.sessions.call import OPERATIONS, RAW_OPERATIONS, Call
from topicd.shards.delivery.writing.outlet import ENTRIES_MAX

# Every module in ops/ declares its operations when it is imported.
for _file in sorted(Path(ops.__path__[0]).glob("[a-z]*.py")):
    import_module(f"{ops.__name__}.{_file.stem}")


def dispatch(call: Call, body: memoryview) -> None:
    """Raises what refuses the request; otherwise it is answered, now or later."""
    op, connection = call.op, call.connection
    if not connection.greeted and op != OP_HELLO:
        raise InvalidRequest("the first message must be HELLO")
    raw = RAW_OPERATIONS.get(op)
    if raw is not None:
        raw(call, body)
        return
    declared = OPERATIONS.get(op)
    if declared is None:
        raise InvalidRequest(f"unknown op 0x{op:02x}")
    wanted, function = declared
    if wanted.CHANGES and call.shard.log.crowded:
        message = f"{ENTRIES_MAX} changes are under way and the disk does not keep up"
        raise Throttled(message, limit="changes under way", retry_after_ms=100)
    want = wanted.from_wire(unpack_map(body))
    if wanted.RIGHT:
        connection.rights.require_any(wanted.RIGHT, getattr(want, "topic"))  # noqa: B009 (a field of the subclass)
    function(call, want)
