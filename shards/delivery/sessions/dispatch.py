"""From an op to its operation. Promise: before an operation runs, its connection has said hello, its fields are
checked, its right is there for the topic it names, and it is not one change too many.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from topicd.errors import InvalidRequest, Throttled, TopicdError
from topicd.ipc.protocol.messages import Op, Request, Subscribe
from topicd.ipc.protocol.wire import OP_CLAIM, OP_FETCH, OP_HELLO, unpack_map
from topicd.shards.delivery import ops
from topicd.shards.delivery.reading.elsewhere import StillComing
from topicd.shards.delivery.sessions.call import OPERATIONS, RAW_OPERATIONS, Call
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.outlet import ENTRIES_MAX

# Reads of a topic: what its source has acknowledged before them is in it, if routers lead there.
_READS = frozenset({int(op) for op in (Op.STATE, Op.SUBSCRIBE, Op.WORK, Op.QUEUE_STATE, Op.QUEUE_PEEK)})
_RAW_READS = frozenset({OP_FETCH, OP_CLAIM})

# Every module in ops/ declares its operations when it is imported.
for _file in sorted(Path(ops.__path__[0]).glob("[a-z]*.py")):
    import_module(f"{ops.__name__}.{_file.stem}")


def dispatch(call: Call, body: memoryview) -> None:
    """Raises what refuses the request; otherwise it is answered, now or later."""
    try:
        _dispatch(call, body)
    except StillComing as coming:
        # Nothing has changed: an operation reads before it does anything else.
        kept = memoryview(bytes(body))
        coming.then(lambda: _resume(call, lambda: dispatch(call, kept)), lambda error: _give_up(call, error))


def _give_up(call: Call, error: TopicdError) -> None:
    if not call.connection.gone:
        call.refuse(error)


def _dispatch(call: Call, body: memoryview) -> None:
    op, connection = call.op, call.connection
    if not connection.greeted and op != OP_HELLO:
        raise InvalidRequest("the first message must be HELLO")
    raw = RAW_OPERATIONS.get(op)
    if raw is not None:
        topic = call.shard.catalog.by_id.get(int.from_bytes(body[:8], "little")) if op in _RAW_READS else None
        if topic is None or not len(topic.inflows) or call.shard.routing.is_fresh(topic):
            raw(call, body)
        else:
            kept = memoryview(bytes(body))
            call.shard.routing.when_fresh([topic], lambda: _resume(call, lambda: raw(call, kept)))
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
    stale = _stale(call, want) if op in _READS else None
    if stale:
        call.shard.routing.when_fresh(stale, lambda: _resume(call, lambda: function(call, want)))
    else:
        function(call, want)


def _stale(call: Call, want: Request) -> list[Topic]:
    """Of the topics that it reads, those that wait for copies."""
    names = [one.topic for one in want.topics] if isinstance(want, Subscribe) else [str(getattr(want, "topic"))]  # noqa: B009
    by_name, routing = call.shard.catalog.by_name, call.shard.routing
    topics = [topic for name in names if (topic := by_name.get(name)) is not None]
    return [topic for topic in topics if len(topic.inflows) and not routing.is_fresh(topic)]


def _resume(call: Call, function: Callable[[], None]) -> None:
    if call.connection.gone:
        return
    try:
        function()
    except TopicdError as exc:
        call.refuse(exc)
