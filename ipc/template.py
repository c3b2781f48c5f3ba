"""How the supervisor asks the template for a copy of itself. The template has the code of the shards and of the
gateway loaded; a process that begins as its copy loads nothing (docs/adr/0020).

Promise: a copy has the descriptors that were sent for it, under the numbers by which the supervisor knows them, and of
the template's nothing but its code. One datagram asks, one answers:

    supervisor -> template   {kind, name, numbers}, and those descriptors; the first is the control channel
    template -> supervisor   {pid}, or {error}
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
from collections.abc import Sequence
from typing import NamedTuple

import msgpack

TEMPLATE_FD_ENV = "TOPICD_TEMPLATE_FD"
_LARGEST = 16 * 1024
_MOST_FDS = 253  # the kernel's limit for one message: more than that, and the supervisor starts the process itself


class Order(NamedTuple):
    """What a copy shall become."""

    kind: str
    name: str
    fds: dict[int, int]  # number that is wanted -> descriptor as it came


def ask(sock: socket.socket, kind: str, name: str, fds: Sequence[int], timeout: float) -> int:
    """The process id of the copy. OSError: there is none."""
    body = msgpack.packb({"kind": kind, "name": name, "numbers": list(fds)})
    socket.send_fds(sock, [body], fds)
    if not is_readable(sock, timeout):
        raise TimeoutError(errno.ETIMEDOUT, f"the template gave no answer within {timeout:g} s")
    raw = sock.recv(_LARGEST)
    if not raw:
        raise ConnectionResetError(errno.ECONNRESET, "the template is gone")
    answer = msgpack.unpackb(raw)
    if "error" in answer:
        raise OSError(errno.EAGAIN, str(answer["error"]))
    return int(answer["pid"])


def next_order(sock: socket.socket) -> Order | None:
    """None: the supervisor is gone."""
    raw, came, _, _ = socket.recv_fds(sock, _LARGEST, _MOST_FDS)
    if not raw:
        return None
    body = msgpack.unpackb(raw)
    return Order(body["kind"], body["name"], dict(zip(body["numbers"], came, strict=True)))


def answer(sock: socket.socket, pid: int, error: str = "") -> None:
    sock.send(msgpack.packb({"error": error} if error else {"pid": pid}))


def place(fds: dict[int, int]) -> None:
    """Give the descriptors the numbers that are wanted. Two steps: a number that is wanted may be in use by another."""
    free = max([*fds, *fds.values()], default=0) + 1
    aside = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for number, fd in fds.items()}
    for fd in fds.values():
        os.close(fd)
    for number, fd in aside.items():
        os.dup2(fd, number, inheritable=False)
        os.close(fd)


def is_readable(sock: socket.socket, timeout: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
