"""Server-sent events on one connection. Promise: frames go out whole and at once; at most FRAMES of them wait for a
reader; silence is broken by comments; one that does not read is told so, and is sent away in the end.

    id: …\\nevent: …\\ndata: {…}\\n\\n        lines end in a bare LF
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from topicd.gateway.web.messages import Headers, Stream

FRAMES = 1_024  # that may wait
HEARTBEAT_S = 15.0
LAGGED_S = 5.0
STUCK_S = 30.0
REVOKED = "the key was revoked or has expired"
RETRY = b"retry: 2000\n\n"
_LOOK_S = 0.05
_LAST_S = 2.0  # for the last frame to reach somebody who does not read
HEADERS: Headers = [
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"Cache-Control", b"no-store"),
    (b"X-Accel-Buffering", b"no"),
]


def frame(event: bytes, data: bytes, id: bytes = b"") -> bytes:
    if id:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (id, event, data)
    return b"event: %b\ndata: %b\n\n" % (event, data)


def error_frame(code: int, error: str, **more: Any) -> bytes:
    return frame(b"error", msgspec.json.encode({"code": code, "error": error, **more}))


def nobody() -> None:
    return


class Ends(NamedTuple):
    """What ends a stream from our side, each when it is done."""

    stopping: asyncio.Future[None]  # the daemon stops
    revoked: asyncio.Future[None]  # the key counts no more


class EventStream:
    """Frames of one connection. `on_room` is called when there is room again; a reader that lags is told the topics
    that `topics()` names."""

    def __init__(
        self,
        stream: Stream,
        now_ms: Callable[[], int],
        ends: Ends,
        note_lag: Callable[[], None],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._now_ms = now_ms
        self._ends = ends
        self._note_lag = note_lag
        self._stream.on_writable = self._room_again
        self._heartbeat_s = heartbeat_s
        self._waiting = 0
        self._last = self._loop.time()
        self._beat = self._loop.call_later(heartbeat_s, self._silence)
        self._looking: asyncio.TimerHandle | None = None
        self._buffered = 0
        self._stuck_since = 0.0
        self._lagged = False
        self.on_room: Callable[[], None] = nobody
        self.topics: Callable[[], list[str]] = list

    @property
    def gone(self) -> asyncio.Future[None]:
        return self._stream.gone

    @property
    def buffered(self) -> int:
        return self._stream.buffered

    # ---- frames ----

    def has_room(self) -> bool:
        stream = self._stream
        return stream.writable and (self._waiting < FRAMES or not stream.buffered)

    def write(self, data: bytes) -> None:
        """One frame, or some that belong together."""
        if not self._stream.buffered:
            self._waiting = 0
        self._waiting += 1
        self._last = self._loop.time()
        self._stream.write(data)

    def heartbeat(self) -> None:
        self.write(b": hb %d\n\n" % self._now_ms())

    def _silence(self) -> None:
        due = self._last + self._heartbeat_s
        now = self._loop.time()
        if now >= due - 0.001:
            if self.has_room():
                self.heartbeat()
            due = now + self._heartbeat_s
        self._beat = self._loop.call_later(due - now, self._silence)

    # ---- readers that do not keep up ----

    def blocked(self) -> None:
        """Somebody waits for room."""
        if self._looking is None:
            self._buffered, self._stuck_since = self._stream.buffered, self._loop.time()
            self._looking = self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        if self._stream.gone.done():
            return
        now, buffered = self._loop.time(), self._stream.buffered
        if buffered < self._buffered:
            self._stuck_since = now
        self._buffered = buffered
        if self.has_room():
            self._room_again()
            return
        stuck = now - self._stuck_since
        if stuck >= STUCK_S:
            self.end(error_frame(503, "reader_stuck", retry_after_ms=2_000, topics=self.topics()))
            self.abort()
            return
        if stuck >= LAGGED_S and not self._lagged:
            self._lagged = True
            self._note_lag()
            self.write(error_frame(429, "lagged", retry_after_ms=1_500, topics=self.topics()))
            self._buffered = self._stream.buffered
        self._looking = self._loop.call_later(_LOOK_S, self._look)

    def _room_again(self) -> None:
        if not self.has_room():
            return
        self._lagged = False
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self.on_room()

    # ---- the end ----

    def end(self, last: bytes = b"") -> None:
        if last and not self._stream.gone.done():
            self._stream.write(last)
        self._stream.close()

    def abort(self) -> None:
        """The end, also for a reader that does not take the last frame."""
        self._loop.call_later(_LAST_S, self._stream.abort)

    async def until_over(self) -> None:
        """Until the reader is gone, the stream is ended, the daemon stops or the key is revoked: the reader is told."""
        ends = self._ends
        try:
            await asyncio.wait((self._stream.gone, *ends), return_when=asyncio.FIRST_COMPLETED)
            if ends.revoked.done():
                self.end(error_frame(401, "unauthorized", message=REVOKED))
            elif ends.stopping.done():
                self.end(error_frame(503, "server_shutting_down"))
        finally:
            self._beat.cancel()
            if self._looking is not None:
                self._looking.cancel()
            self._stream.close()
