"""GET over a Unix socket or a port, and the answer."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import NamedTuple

from topicd.ipc.protocol import unixsock

TIMEOUT_S = 30.0


class Answer(NamedTuple):
    status: int
    content_type: str
    body: str


class _Connection(http.client.HTTPConnection):
    def __init__(self, sock: socket.socket) -> None:
        super().__init__("localhost")
        self.sock = sock


def dial(where: Path | int) -> socket.socket:
    if isinstance(where, int):
        return socket.create_connection(("127.0.0.1", where), TIMEOUT_S)
    return unixsock.connect(where, TIMEOUT_S)


def get(where: Path | int, path: str, method: str = "GET") -> Answer:
    connection = _Connection(dial(where))
    try:
        connection.request(method, path)
        found = connection.getresponse()
        return Answer(found.status, found.getheader("Content-Type", ""), found.read().decode())
    finally:
        connection.close()
