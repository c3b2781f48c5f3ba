"""Who may come in: connections of this machine by their user, others with a token. Promise: their number is bounded,
those that have not shown a valid token by a bound of their own; while the store is closed everybody is told why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from topicd.clock import SystemClock
from topicd.config import Settings
from topicd.errors import NotReady, Throttled, TopicdError, Unauthorized
from topicd.ipc.protocol.chat import Rebuild
from topicd.shards.chat.call import Answer, understood
from topicd.shards.chat.service import Service
from topicd.tokens import Rights, TokenFile


class Guest(Protocol):
    @property
    def greeted(self) -> bool: ...

    def close(self) -> None: ...


class Guests:
    """`mend` makes a store that is closed serve again, if it can."""

    def __init__(self, settings: Settings, hello: dict[str, Any], mend: Callable[[Rebuild], Awaitable[Answer]]) -> None:
        self.settings = settings
        self.hello = hello
        self.service: Service | None = None  # None: the store is closed
        self.closed: TopicdError = NotReady("the chat store is not open yet")  # why, then
        self._mend = mend
        self._tokens: TokenFile | None = None
        self.open: set[Guest] = set()

    def load_tokens(self) -> None:
        if self.settings.tokens_file:
            self._tokens = TokenFile.load(Path(self.settings.tokens_file))

    def admit(self, guest: Guest, *, local: bool) -> TopicdError | None:
        settings = self.settings
        if len(self.open) >= settings.max_connections:
            limit = settings.max_connections
            return Throttled(f"{limit} connections are open already", limit="max_connections", retry_after_ms=1_000)
        if not local and sum(not one.greeted for one in self.open) >= settings.max_unauthenticated:
            message = "too many connections without a token"
            return Throttled(message, limit="max_unauthenticated", retry_after_ms=1_000)
        self.open.add(guest)
        return None

    def left(self, guest: Guest) -> None:
        self.open.discard(guest)

    def authorize(self, secret: str | None) -> Rights:
        if self._tokens is None:
            raise Unauthorized("this daemon knows no tokens")
        # Not the store's clock, which tests set wrong.
        return self._tokens.authorize(secret, SystemClock().now_ms())

    def while_closed(self, rights: Rights, op: int, body: memoryview) -> Awaitable[Answer]:
        """The one thing that can be asked of a store that is closed is to mend it."""
        want, _ = understood(rights, op, body)
        if isinstance(want, Rebuild):
            return self._mend(want)
        raise self.closed

    def close(self) -> None:
        for guest in list(self.open):
            guest.close()
