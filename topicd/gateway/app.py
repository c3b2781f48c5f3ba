"""How a request is judged: the first check that fails answers. Promise: the order is that of the contract, every answer
but streams has the JSON envelope on failure, and a fault of ours is one line for the client and a traceback in the log.

    not ready or stopping, key, scope and name, path and method, size, content type, fields, then the endpoint
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from topicd.errors import TopicdError
from topicd.gateway import errors, schemas
from topicd.gateway.endpoints import BODY_MAX, Call, Endpoint, Found, Routes, Service
from topicd.gateway.errors import Refusal
from topicd.gateway.keys import require, require_name
from topicd.gateway.web.messages import Exchange, Head, Headers, Reply
from topicd.limits import KIB, MIB
from topicd.tokens import EVERYTHING

log = logging.getLogger(__name__)

_COMPRESS_FROM = 1 * KIB
GLANCES = ("glance", "pulse")  # kinds of endpoints that the dashboard may look at without a key
# Paths whose name is that of a topic or a router: a key has to reach it.
NAMED = ("/v0/topics/", "/v0/routers/", "/dashboard/topics/", "/dashboard/queues/", "/dashboard/consumers/")
_KNOWN = 4_096  # paths whose meaning is kept
_KNOWN_LENGTH = 300  # bytes of such a path
_LOCAL_KEPT = 64
_INFLATE_AT_ONCE = 8 * KIB  # a longer gzip body is inflated by a thread
_INFLATED_AT_ONCE = 1
_INFLATING_NICE = 10  # beyond the rest of the process
_PIECE = 256 * KIB
_FED = 64 * KIB  # of a packed body at once: what is left of it is copied each time
_KEPT = 2 * MIB  # a body that becomes larger is inflated twice: what is too large shall cost no memory
_NOT_AT_ALL = (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class App:
    def __init__(self, service: Service, routes: Routes, *, loopback: bool) -> None:
        self._service = service
        self._routes = routes
        self._loopback = loopback
        self._inflating = asyncio.Semaphore(_INFLATED_AT_ONCE)
        self._inflater = ThreadPoolExecutor(_INFLATED_AT_ONCE, "inflate", step_back)
        self._known: dict[tuple[str, bytes], Found] = {}
        self._local: set[bytes] = set()  # hosts that were found good
        self._origins = frozenset(o.strip() for o in service.settings.http_origins.split(",") if o.strip())

    # ---- the head ----

    def begin(self, head: Head) -> Accepted | Reply:
        try:
            return self._judge(head)
        except Refusal as refusal:
            return self._finished(head, refusal.reply())
        except Exception:
            log.exception("request failed")
            return self._finished(head, errors.internal().reply())

    def _judge(self, head: Head) -> Accepted | Reply:
        service = self._service
        service.counts["requests"] += 1
        found = self._known.get((head.method, head.path))
        if found is None:
            segments = head.segments()
            found = self._routes.find(head.method, segments)
            if found is not None and len(head.path) <= _KNOWN_LENGTH:
                self._remember(head, found)
            elif found is None and head.method in ("GET", "HEAD") and service.files.has(segments):
                self._check_host(head)
                return self._finished(head, service.files.answer(segments, head))
        one = found.endpoint if found is not None else None
        kind = one.kind if one is not None else "json"
        if kind not in ("open", "early", "pulse"):
            if service.draining:
                raise errors.shutting_down()
            if not service.ready:
                raise errors.not_ready(service.progress)
        self._check_host(head)
        if head.method == "OPTIONS" and found is not None and self._origin(head):
            return self._preflight(head, found.allowed)
        rights, key = EVERYTHING, None
        if self._needs_key(kind):
            token = head.params().get("token", "") if kind == "events" else ""
            guest = service.keys.guest(head, service.settings.dashboard_guests) if kind in GLANCES else None
            rights = guest or service.keys.identify(head, token)
            key = rights.name
        call = Call(service, head, rights, key)
        call.count()
        try:
            return Accepted(self, self._allowed(call, found), found.names if found is not None else (), call)
        except Refusal:
            call.over()
            raise

    def _remember(self, head: Head, found: Found) -> None:
        """What a path means does not change."""
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[head.method, head.path] = found

    def _allowed(self, call: Call, found: Found | None) -> Endpoint:
        """The endpoint that is meant, if there is one and the key reaches it."""
        if found is None:
            raise errors.not_found()
        one, rights = found.endpoint, call.rights
        if one is None:
            refusal = Refusal(405, "method_not_allowed", f"this path knows {', '.join(found.allowed)}")
            refusal.headers.append((b"Allow", ", ".join(found.allowed).encode()))
            raise refusal
        if rights is not EVERYTHING:
            require(rights, one.scopes)
            if found.names and one.path.startswith(NAMED):
                require_name(rights, found.names[0])
        if one.kind in ("events", "session"):
            call.cors = self.cors(call.head)
            _check_accept(call.head)
        return one

    def _needs_key(self, kind: str) -> bool:
        keys, settings = self._service.keys, self._service.settings
        return keys.needed and kind != "session" and (kind != "open" or settings.http_health_needs_key)

    def _check_host(self, head: Head) -> None:
        """A web page whose name was made to mean this machine must not reach a port that is open to everybody here."""
        if not self._loopback or self._service.keys.needed:
            return
        host = head.headers.get(b"host", b"")
        if host in self._local:
            return
        name = host.decode("latin-1").lower()
        name = name.rsplit(":", 1)[0].strip("[]") if not name.endswith("]") else name.strip("[]")
        if "." in name and name not in _LOCAL and not name.replace(".", "").isdigit():
            raise errors.forbidden(f"this port answers to localhost and addresses only, not to {name!r:.100}")
        if len(self._local) < _LOCAL_KEPT and len(host) < _KNOWN_LENGTH:
            self._local.add(host)

    # ---- origins ----

    def _origin(self, head: Head) -> bytes | None:
        given = head.headers.get(b"origin")
        if given is None or not self._origins:
            return None
        return given if "*" in self._origins or given.decode("latin-1") in self._origins else None

    def _preflight(self, head: Head, allowed: tuple[str, ...]) -> Reply:
        headers: Headers = [
            (b"Access-Control-Allow-Methods", ", ".join(allowed).encode()),
            (b"Access-Control-Allow-Headers", b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID"),
            (b"Access-Control-Max-Age", b"600"),
        ]
        return self._finished(head, Reply(204, headers=headers))

    def cors(self, head: Head) -> Headers:
        if not self._origins:
            return []
        origin = self._origin(head)
        # Caches must not show the answer to one page to another.
        vary = (b"Vary", b"Origin")
        return [(b"Access-Control-Allow-Origin", origin), vary] if origin is not None else [vary]

    def _finished(self, head: Head | None, reply: Reply) -> Reply:
        """What every answer has, however it came about."""
        if reply.status >= 400:
            self._service.counts["errors"] += 1
        if head is not None:
            reply.headers += self.cors(head)
            if len(reply.body) >= _COMPRESS_FROM and _takes_gzip(head):
                reply.body = gzip.compress(reply.body, 1, mtime=0)
                reply.headers += [(b"Content-Encoding", b"gzip"), (b"Vary", b"Accept-Encoding")]
        return reply

    # ---- for the connection ----

    def malformed(self, message: str) -> Reply:
        reply = errors.invalid(f"this is no request: {message}").reply()
        reply.close = True
        return self._finished(None, reply)

    def too_large(self, limit: int) -> Reply:
        reply = Refusal(413, "payload_too_large", f"a body has at most {limit} bytes").reply()
        reply.close = True
        return self._finished(None, reply)

    def crowded(self) -> Reply:
        refusal = Refusal(429, "throttled", "too many bodies are under way", {"retry_after_ms": 1_000})
        reply = refusal.reply()
        reply.close = True
        return self._finished(None, reply)

    # ---- the body ----

    async def run(self, one: Endpoint, names: tuple[str, ...], call: Call, body: bytes) -> Reply | None:
        try:
            if one.body is None:
                if one.answer_bytes:
                    await call.room(one.answer_bytes)
                reply = await one.handler(call, *names)
            else:
                if len(body) > _INFLATE_AT_ONCE and b"content-encoding" in call.head.headers:
                    asked = await self._decoded_aside(one, call.head, body)
                else:
                    asked = _decoded(one, call.head, body)
                reply = await one.handler(call, *names, asked)
        except Refusal as refusal:
            reply = refusal.reply()
        except TopicdError as exc:
            if not exc.retriable and exc.status >= 500:
                log.error("request failed", extra={"path": call.head.path.decode("latin-1"), "error": exc})
            reply = errors.of(exc, names[0] if names else None).reply()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception:
            log.exception("request failed", extra={"path": call.head.path.decode("latin-1")})
            reply = errors.internal().reply()
        if reply is not None and reply.delay:
            await asyncio.sleep(reply.delay)
        return None if reply is None else self._finished(call.head, reply)

    async def _decoded_aside(self, one: Endpoint, head: Head, body: bytes) -> Any:
        """A body that may become a thousand times as large: not in the loop, and few of them at once."""
        async with self._inflating:
            return await asyncio.get_running_loop().run_in_executor(self._inflater, _decoded, one, head, body)


class Accepted:
    """A request whose head was found good."""

    __slots__ = ("_app", "_call", "_names", "_one", "body_limit")

    def __init__(self, app: App, one: Endpoint, names: tuple[str, ...], call: Call) -> None:
        self._app = app
        self._one = one
        self._names = names
        self._call = call
        self.body_limit = BODY_MAX

    async def run(self, body: bytes, exchange: Exchange) -> Reply | None:
        self._call.exchange = exchange
        return await self._app.run(self._one, self._names, self._call, body)

    def over(self) -> None:
        self._call.over()


def _check_accept(head: Head) -> None:
    accept = head.headers.get(b"accept")
    if accept is not None and b"*/*" not in accept and b"text/event-stream" not in accept.lower():
        raise Refusal(406, "not_acceptable", "this is a stream of text/event-stream")


def step_back() -> None:
    """This thread leaves the cores to those who serve: a bomb takes one for a tenth of a second."""
    thread = threading.get_native_id()
    nice = min(19, os.getpriority(os.PRIO_PROCESS, thread) + _INFLATING_NICE)
    os.setpriority(os.PRIO_PROCESS, thread, nice)


def _takes_gzip(head: Head) -> bool:
    for one in head.headers.get(b"accept-encoding", b"").lower().split(b","):
        coding, _, weight = one.partition(b";")
        if coding.strip() == b"gzip":
            return weight.strip() not in _NOT_AT_ALL
    return False


def _decoded(one: Endpoint, head: Head, body: bytes) -> Any:
    if one.body is None:
        return None
    encoding = head.headers.get(b"content-encoding", b"").strip().lower()
    if not body and one.empty_body:
        return schemas.decode(one.body, b"{}")
    kind = head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refusal(415, "unsupported_media_type", "a body needs Content-Type: application/json")
    if encoding == b"gzip":
        body = _inflated(body)
    elif encoding not in (b"", b"identity"):
        raise Refusal(415, "unsupported_media_type", "the only Content-Encoding is gzip")
    if not body.strip():
        if one.empty_body:
            return schemas.decode(one.body, b"{}")
        raise errors.invalid("a body is needed")
    return schemas.decode(one.body, body)


def _inflated(body: bytes) -> bytes:
    """At most BODY_MAX bytes of it are ever made, and those of a body that is larger are not kept."""
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(body):
        size += len(piece)
        if size <= _KEPT:
            pieces.append(piece)
    if size > _KEPT:
        pieces = list(_pieces(body))  # now that it is known to be small enough
    return b"".join(pieces)


def _pieces(body: bytes) -> Iterator[bytes]:
    view, at, size = memoryview(body), 0, 0
    inflate = zlib.decompressobj(wbits=31)
    rest: bytes | memoryview = b""
    try:
        while True:
            if not rest:
                rest = view[at : at + _FED]
                at += len(rest)
            piece = inflate.decompress(rest, _PIECE)
            rest = inflate.unconsumed_tail
            if piece:
                size += len(piece)
                if size > BODY_MAX:
                    raise Refusal(413, "payload_too_large", f"a body has at most {BODY_MAX} bytes, inflated")
                yield piece
            if inflate.eof:
                rest = inflate.unused_data
                if not rest and at == len(view):
                    return
                inflate = zlib.decompressobj(wbits=31)
            elif not piece and not rest and at == len(view):
                raise errors.invalid("the gzip body is cut off")
    except zlib.error as exc:
        raise errors.invalid(f"the body is no gzip: {exc}") from None
