"""A client that is made when it is first needed, by whichever thread needs it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from topicd.client.blocking.operations import Operations
from topicd.errors import InvalidRequest

Connect = Callable[[], Operations]


class OnDemand:
    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = Lock()
        self._client: Operations | None = None
        self.closed = False

    def get(self) -> Operations:
        """ConnectionLost while there is no daemon."""
        with self._lock:
            if self.closed:
                raise InvalidRequest("the client is closed")
            if self._client is None:
                self._client = self._connect()
            return self._client

    def close(self) -> None:
        with self._lock:
            self.closed = True
            client, self._client = self._client, None
        if client is not None:
            client.caller.close()
