"""Who asks, and what it may do. Promise: keys are the daemon's tokens, known by their digests only; a wrong one is
answered ever more slowly to the address it comes from; the table of addresses is bounded; streams of a key that was
revoked end at the next reload.

Without tokens everybody may do everything. Scopes are taken by the letter: admin does not stand for the others here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from topicd.errors import Unauthorized
from topicd.gateway.errors import Refusal, forbidden
from topicd.gateway.web.messages import Head
from topicd.model import is_staged
from topicd.tokens import EVERYTHING, Rights, TokenFile, digest_of

# Somebody without a key who looks at the dashboard, where the setting dashboard_guests lets them.
GUEST = Rights("guest", frozenset())
READING_GUEST = Rights("guest", frozenset({"read"}))

_ADDRESSES = 4_096
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
_FORGIVEN_S = 60.0


class Slowdown:
    """Wrong keys by address."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: str) -> float:
        """Seconds that the answer shall wait."""
        count, at = self._failures.pop(address, (0, 0.0))
        now = self._now()
        count = 1 if now - at > _FORGIVEN_S else count + 1
        self._failures[address] = (count, now)
        while len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)
        return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(count - 1, 16)))


class Keys:
    def __init__(self, tokens: TokenFile | None, now_ms: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self.tokens = tokens
        self._now_ms = now_ms
        self._slowdown = Slowdown(monotonic)
        self._streams: WeakKeyDictionary[asyncio.Future[None], bytes] = WeakKeyDictionary()  # digests of their keys

    @classmethod
    def load(cls, path: str, now_ms: Callable[[], int], monotonic: Callable[[], float]) -> Keys:
        return cls(TokenFile.load(Path(path)) if path else None, now_ms, monotonic)

    @property
    def needed(self) -> bool:
        return self.tokens is not None

    def identify(self, head: Head, token: str = "") -> Rights:
        """The rights behind the key of a request; `token`: a key from its query, which goes before the header."""
        if self.tokens is None:
            return EVERYTHING
        key = token or _bearer(head)
        if not key:
            refusal = Refusal(401, "unauthorized", "a key is needed: Authorization: Bearer <key>")
        else:
            try:
                return self.tokens.authorize(key, self._now_ms())
            except Unauthorized as exc:
                refusal = Refusal(401, "unauthorized", "the key has expired" if exc.detail else "the key is not known")
                refusal.delay = self._slowdown.failed(head.peer)
        refusal.headers.append((b"WWW-Authenticate", b"Bearer"))
        raise refusal

    def guest(self, head: Head, allowed: str) -> Rights | None:
        """The rights of somebody without a key; None: there are none, or there is a key. `allowed`: as the setting."""
        if allowed == "none" or b"authorization" in head.headers:
            return None
        return READING_GUEST if allowed == "read" else GUEST

    def revocation(self, head: Head, token: str = "") -> asyncio.Future[None]:
        """Done when the key of a stream counts no more: it was revoked or has expired by a reload."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = token or _bearer(head)
        if self.tokens is not None and key:
            self._streams[future] = digest_of(key)
        return future

    def reload(self, tokens: TokenFile | None) -> None:
        """Whose key is gone hears so; without tokens everybody may do everything."""
        self.tokens = tokens
        for future, digest in list(self._streams.items()):
            if tokens is not None and not tokens.knows(digest, self._now_ms()) and not future.done():
                future.set_result(None)

    def fingerprint(self, head: Head, token: str = "") -> bytes:
        """What tells one key from another; empty without keys."""
        return digest_of(token or _bearer(head)) if self.tokens is not None else b""


def _bearer(head: Head) -> str:
    scheme, _, key = head.headers.get(b"authorization", b"").partition(b" ")
    return key.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def require(rights: Rights, scopes: tuple[str, ...]) -> None:
    for scope in scopes:
        if scope not in rights.scopes:
            if rights in (GUEST, READING_GUEST):
                raise Refusal(401, "unauthorized", f"a key with the {scope} scope is needed")
            raise forbidden(f"the key has no {scope} scope")


def require_name(rights: Rights, name: str, *, in_body: bool = False) -> None:
    if not rights.allows(name) and not (is_staged(name) and "stage" in rights.scopes):
        raise forbidden(f"the key does not reach {name!r:.300}", name if in_body else None)
