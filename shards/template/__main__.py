"""`python -m topicd.shards.template`: has the code of the shards loaded, and that of the gateway once there was one.
They begin as its copies (docs/adr/0020).

Promise: it holds no data, no file and no thread, so that a copy begins as a new process would, without the time that
loading takes. A copy becomes the supervisor's own child: the process in between ends at once. When the supervisor is
gone, so is the template.
"""

import gc
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from importlib import import_module

from topicd.ipc import template
from topicd.ipc.control import CONTROL_FD_ENV
from topicd.ipc.shardboot import DELIVERY, WAL
from topicd.ipc.template import Order

GATEWAY = "gateway"
PACKAGES = {WAL: "topicd.shards.wal", DELIVERY: "topicd.shards.delivery", GATEWAY: "topicd.gateway"}
# In the order in which they are wanted at a start, and in pieces: an order does not wait for all that is left.
PIECES = (
    "topicd.shards.wal.shard",
    "asyncio",
    "uvloop",
    "topicd.ipc.protocol.messages",
    "topicd.shards.storage.segment.jobs",
    "topicd.shards.delivery.channels.channels",
    "topicd.shards.delivery.routing.registry",
    "topicd.shards.delivery.parts",
    "topicd.shards.delivery.shard",
)
# Of a kind that not every daemon has. The first of them does not wait: it loads what is missing itself, at the same
# time as this process does, which is then ready for the next one.
LATER = {GATEWAY: ("topicd.gateway.app", "topicd.gateway.web.http2", "topicd.gateway.process")}
_PID = struct.Struct("<q")


def main() -> None:
    gc.disable()  # a copy collects from when it serves, see Process.serving
    supervisor = socket.socket(fileno=int(os.environ.pop(template.TEMPLATE_FD_ENV)))
    supervisor.set_inheritable(False)
    _name("template")
    pieces = deque(PIECES)
    later = dict(LATER)
    while True:
        if pieces and not template.is_readable(supervisor, 0):
            import_module(pieces.popleft())
            continue
        order = template.next_order(supervisor)
        if order is None:
            return
        if order.kind not in LATER:
            import_module(f"{PACKAGES[order.kind]}.shard")
        if _copied(supervisor, order):
            import_module(f"{PACKAGES[order.kind]}.__main__").main()
            return
        pieces += later.pop(order.kind, ())


def _copied(supervisor: socket.socket, order: Order) -> bool:
    """True in the copy."""
    reader, writer = os.pipe()
    try:
        between = os.fork()
    except OSError as exc:
        template.answer(supervisor, 0, str(exc))
        between = -1
    if between == 0:
        _leave_or_become(writer)
        os.close(reader)
        os.close(writer)
        supervisor.close()
        _become(order)
        return True
    os.close(writer)
    for fd in order.fds.values():
        os.close(fd)
    if between > 0:
        # The copy is the supervisor's child only when the process in between is gone.
        os.waitpid(between, 0)
        told = os.read(reader, _PID.size)
        pid = _PID.unpack(told)[0] if len(told) == _PID.size else 0
        template.answer(supervisor, pid, "" if pid else "the second fork failed")
    os.close(reader)
    return False


def _leave_or_become(writer: int) -> None:
    """In the process in between: never returns. In the copy: returns."""
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os.write(writer, _PID.pack(pid))
        os._exit(0)


def _become(order: Order) -> None:
    os.setsid()  # out of reach of the terminal's Ctrl-C, as those that the supervisor starts itself
    control = next(iter(order.fds))
    template.place(order.fds)
    os.environ[CONTROL_FD_ENV] = str(control)
    _name(order.name)


def _name(name: str) -> None:
    """What top shows: the arguments of all copies are those of the template."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(f"topicd {name}")


if __name__ == "__main__":
    main()
