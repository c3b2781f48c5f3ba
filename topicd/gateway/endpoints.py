"""What an endpoint is, and how a path finds its own. Promise: every endpoint is declared once, where its work is done;
routing, scopes, checks of bodies and /openapi.json all read that declaration.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from topicd.clock import Clock
from topicd.config import Settings
from topicd.gateway import sse
from topicd.gateway.dashboard.listing import Listing
from topicd.gateway.dashboard.pulse import Pulse
from topicd.gateway.dashboard.surroundings import Surroundings
from topicd.gateway.keys import Keys
from topicd.gateway.sessions import Sessions
from topicd.gateway.shards import Shards
from topicd.gateway.static import StaticFiles
from topicd.gateway.stats import StatsFeed
from topicd.gateway.tails import Tails
from topicd.gateway.usage import Usage
from topicd.gateway.web.messages import BodyRoom, Exchange, Head, Headers, Reply, Stream
from topicd.gateway.working import Workers
from topicd.limits import KIB, MIB
from topicd.tokens import Rights

BODY_MAX = 64 * MIB
BODIES = 256 * MIB  # of all requests that are being received
ANSWER_BYTES = 256 * KIB  # of lists and pages


class Service:
    """What every endpoint has at hand."""

    def __init__(self, settings: Settings, shards: Shards, keys: Keys, clock: Clock, run: int) -> None:
        self.settings = settings
        self.shards = shards
        self.tails = Tails(shards)
        self.workers = Workers(shards)
        self.stats = StatsFeed(shards)
        self.pulse = Pulse(self.stats, shards, Surroundings(settings, keys), clock.now_ms)
        self.listing = Listing(shards)
        self.files = StaticFiles()
        self.keys = keys
        self.clock = clock
        self.usage = Usage(settings)
        self.sessions = Sessions(clock.monotonic)
        self.run = run
        self.room = BodyRoom(BODIES)
        self.started = time.monotonic()
        self.ready = False
        self.draining = False
        self.progress = 0.0
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.counts: dict[str, int] = {"requests": 0, "errors": 0, "lagged": 0}

    def note_lag(self) -> None:
        self.counts["lagged"] += 1


class Call:
    """One request on its way."""

    __slots__ = ("_counted", "began", "cors", "exchange", "head", "key", "params", "rights", "service")

    def __init__(self, service: Service, head: Head, rights: Rights, key: str | None) -> None:
        self.service = service
        self.head = head
        self.rights = rights
        self.key = key  # who is counted; None without keys
        self.params = head.params()
        self.began = time.perf_counter()
        self.exchange: Exchange | None = None
        self.cors: Headers = []  # for streams; other answers get them when they are finished
        self._counted = False

    def count(self) -> None:
        """As a request under way; Refusal if there are too many."""
        self.service.usage.begin_request(self.key)
        self._counted = True

    def over(self) -> None:
        """It is under way no more: answered, given up, or a stream from now on."""
        if self._counted:
            self._counted = False
            self.service.usage.end_request(self.key)

    def events(self, heartbeat_s: float = sse.HEARTBEAT_S) -> sse.EventStream:
        """The answer is a stream of events."""
        if self.exchange is None:
            raise RuntimeError("a request is answered before it is received")
        self.over()
        service = self.service
        stream = self.exchange.stream([*sse.HEADERS, *self.cors])
        ends = sse.Ends(service.stopping, self.revocation())
        return sse.EventStream(stream, service.clock.now_ms, ends, service.note_lag, heartbeat_s)

    def revocation(self) -> asyncio.Future[None]:
        """Done when the key of this stream counts no more."""
        return self.service.keys.revocation(self.head, self.params.get("token", ""))

    async def room(self, size: int) -> None:
        """Before a large answer is made; 0: it is not made now."""
        wait = self.exchange.room(size) if self.exchange is not None else None
        if wait is not None:
            await wait

    def upgrade(self, headers: Headers, receive: Callable[[bytes], None]) -> Stream:
        if self.exchange is None:
            raise RuntimeError("a request is answered before it is received")
        self.over()
        return self.exchange.upgrade(headers, receive)

    def elapsed_ms(self) -> float:
        return round((time.perf_counter() - self.began) * 1000, 3)

    def flag(self, name: str, default: bool) -> bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(self.params.get(name, ""), default)

    def number(self, name: str, default: int) -> int:
        given = self.params.get(name, "")
        return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else default

    def answer(self, body: dict[str, Any], status: int = 200, **performance: float) -> Reply:
        body["performance"] = {"server_total_ms": self.elapsed_ms(), **performance}
        return Reply(status, msgspec.json.encode(body))


Handler = Callable[..., Awaitable[Reply | None]]


class Endpoint(NamedTuple):
    method: str
    path: str  # with {name} for a part that is given
    scopes: tuple[str, ...]
    handler: Handler  # (call, *parts of the path, body if there is one)
    body: type[Any] | None = None
    empty_body: bool = False  # stands for {}
    kind: str = "json"
    # open: no key is needed, and it answers also before the daemon is ready; early: as early, with a key;
    # events: a stream, whose key may stand in the query; session: the same, and it looks at the key itself; socket;
    # glance: of the dashboard, without a key as far as dashboard_guests allows; pulse: the same, and as early as open
    answers: dict[int, str] = {}
    query: dict[str, str] = {}
    summary: str = ""

    @property
    def answer_bytes(self) -> int:
        """Room that an answer may need; 0: little, or the handler asks for it, or it is a stream."""
        return ANSWER_BYTES if self.method == "GET" and self.kind in ("json", "open", "early", "glance") else 0


ENDPOINTS: list[Endpoint] = []


def endpoint(method: str, path: str, *scopes: str, **more: Any) -> Callable[[Handler], Handler]:
    """This function is what answers there."""

    def declare(handler: Handler) -> Handler:
        summary = (handler.__doc__ or "").strip().split("\n")[0]
        ENDPOINTS.append(Endpoint(method, path, scopes, handler, summary=summary, **more))
        return handler

    return declare


class Found(NamedTuple):
    endpoint: Endpoint | None  # None: the path is known, the method is not
    names: tuple[str, ...]
    allowed: tuple[str, ...]


class Routes:
    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._fixed: dict[tuple[str, ...], dict[str, Endpoint]] = {}
        self._named: dict[tuple[str, str, int, str], dict[str, Endpoint]] = {}
        for one in endpoints:
            parts = tuple(one.path.split("/")[1:])
            at = next((i for i, part in enumerate(parts) if part.startswith("{")), None)
            if at is None:
                self._fixed.setdefault(parts, {})[one.method] = one
            else:
                last = parts[3] if len(parts) > 3 else ""
                self._named.setdefault((parts[0], parts[1], len(parts), last), {})[one.method] = one

    def find(self, method: str, segments: list[str]) -> Found | None:
        """None: there is nothing at that path."""
        methods = self._fixed.get(tuple(segments))
        names: tuple[str, ...] = ()
        if methods is None and 3 <= len(segments) <= 4 and segments[2]:
            last = segments[3] if len(segments) > 3 else ""
            methods = self._named.get((segments[0], segments[1], len(segments), last))
            names = (segments[2],)
        if methods is None:
            return None
        return Found(methods.get(method), names, tuple(sorted(methods)))
