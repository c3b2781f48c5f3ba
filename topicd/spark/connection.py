"""One client per process and daemon. Spark reuses its Python workers, so tasks that follow each other share it.

Promise: a client connects when it is first asked for, and again by itself after a restart of the daemon or a fork.
"""

from __future__ import annotations

import threading

import topicd
from topicd.client.blocking.client import Client
from topicd.spark.options import ConnectionOptions

PLAN_WAIT_S = 5.0  # a wrong address is told soon; a task waits as long as any operation does

_clients: dict[ConnectionOptions, Client] = {}
_lock = threading.Lock()


def client(options: ConnectionOptions, *, wait: float | None = None) -> Client:
    """The process's client of that daemon; not to be closed. `wait` is how long the daemon may take to appear, as long
    as any operation unless told."""
    with _lock:
        found = _clients.get(options)
        if found is None:
            found = _clients[options] = topicd.connect(
                options.target,
                token=options.token,
                ca_file=options.ca_file,
                timeout=options.timeout,
                wait=options.timeout if wait is None else wait,
            )
        return found
