"""Ports of this machine that nobody uses."""

from __future__ import annotations

import contextlib
import os
import socket


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    first, last, step = 20_011, 32_000, 7
    at = os.getpid() % ((last - first) // step) * step  # tests side by side do not ask for the same ones
    for base in (*range(first + at, last, step), *range(first, first + at, step)):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    sock = stack.enter_context(socket.socket())
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return base
    raise AssertionError("no free ports")
