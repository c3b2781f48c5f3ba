"""Who may come in: connections of this machine by their user, others with a token. Promise: their number is bounded,
those that have not shown a valid token by a bound of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from topicd.clock import SystemClock
from topicd.errors import Throttled, TopicdError, Unauthorized
from topicd.shards.chat.service import Service
from topicd.tokens import Rights, TokenFile


class Guest(Protocol):
    @property
    def greeted(self) -> bool: ...

    def close(self) -> None: ...


class Guests:
    def __init__(self, service: Service, hello: dict[str, Any]) -> None:
        self.service = service
        self.hello = hello
        self._tokens: TokenFile | None = None
        self.open: set[Guest] = set()

    def load_tokens(self) -> None:
        if self.service.settings.tokens_file:
            self._tokens = TokenFile.load(Path(self.service.settings.tokens_file))

    def admit(self, guest: Guest, *, local: bool) -> TopicdError | None:
        settings = self.service.settings
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

    def close(self) -> None:
        for guest in list(self.open):
            guest.close()
