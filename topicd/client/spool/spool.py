"""What was published and has not reached the daemon. Promise: it is stored in topics once and in order, across deaths
of this process and of the daemon; when the spool is full, publishing is an error and nothing is lost.

One process uses a spool at a time. A message is one publish: its topic, the number of its records, their frames.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Literal, NamedTuple

import msgpack

from topicd.client.blocking.operations import Operations
from topicd.client.core.encode import Encoded, join_batches
from topicd.client.core.options import SPOOL_DURABILITIES
from topicd.client.spool.draining import WINDOW_TOPICS, Drain
from topicd.errors import InvalidRequest, TopicdError
from topicd.filechannel import ChannelClosed, FileChannel
from topicd.filechannel.arguments import at_least, deadline_of, one_of, whole
from topicd.filechannel.inspect import walk
from topicd.filechannel.layout import MESSAGE_HEAD
from topicd.filechannel.page import SPACE_AT
from topicd.filechannel.settings import MAX_BYTES_MIN, OF_BYTES
from topicd.ipc.protocol.retry import Backoff
from topicd.limits import MIB

log = logging.getLogger(__name__)

RECEIVER = "daemon"
NOTE = "draining"
GATHER = 1_000  # publishes looked at together
BATCH_RECORDS = 5_000
WINDOW_BYTES = 2 * MIB


class Publish(NamedTuple):
    topic: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    frames: bytes
    end: int  # offset behind it


class Spool:
    def __init__(
        self,
        directory: str | os.PathLike[str],
        connect: Callable[[], Operations],
        *,
        durability: Literal["os", "fsync"],
        max_bytes: int,
    ) -> None:
        one_of("spool_durability", durability, SPOOL_DURABILITIES)
        whole("spool_bytes", max_bytes, OF_BYTES)
        at_least("spool_bytes", max_bytes, MAX_BYTES_MIN)
        self._connect = connect
        self._channel = FileChannel(directory, durability=durability, max_bytes=max_bytes, full="refuse")
        try:
            self._receiver = self._channel.receiver(RECEIVER)
            place, identity = self._channel.directory, self._channel.channel_id
            self._drain = Drain(place, identity, self._receiver, name=NOTE, sync=durability == "fsync")
        except BaseException:
            self._channel.close()
            raise
        self._sender = self._channel.sender()
        self._lock = Lock()
        self._waiting = sum(1 for _ in walk(place, self._receiver.offset, self._channel.page.published))
        self._error: TopicdError | None = None
        self._refused: Publish | None = None
        self._skip = False
        self._stopped = False
        self._again = Event()
        self._thread = Thread(target=self._run, name="topicd-spool", daemon=True)
        self._thread.start()

    # ---- for who publishes ----

    def put(self, topic: str, count: int, frames: bytes | bytearray) -> int:
        """Returns once the publish survives this process (`os`) or the power (`fsync`): its offset in the spool."""
        raw: bytes = msgpack.packb((topic, count, bytes(frames)))
        with self._lock:
            end = self._sender.send(raw)
            self._waiting += 1
        return end

    @property
    def pending(self) -> int:
        """How many publishes wait for the daemon."""
        return self._waiting

    @property
    def directory(self) -> Path:
        return self._channel.directory

    @property
    def error(self) -> TopicdError | None:
        """Why the oldest publish is still waiting; None: it is on its way, or there is none."""
        return self._error

    def wait(self, timeout: float | None = None) -> bool:
        """Until everything published before has been stored. False: not in that time."""
        page, target = self._channel.page, self._channel.stats().write_offset
        deadline = deadline_of(timeout)
        while True:
            seen = page.count(SPACE_AT)
            if self._receiver.offset >= target:
                return True
            left = None if deadline is None else deadline - monotonic()
            if self._stopped or (left is not None and left <= 0):
                return False
            page.wait(SPACE_AT, seen, left)

    def skip_refused(self) -> str:
        """Give up the publish that the daemon has refused for good (`error` says why); the topic it was for."""
        refused = self._refused
        if refused is None:
            raise InvalidRequest("no publish was refused")
        self._skip = True
        self._again.set()
        return refused.topic

    def stop(self) -> None:
        """Send no more. A batch that is under way ends when its client is closed."""
        self._stopped = True
        self._again.set()

    def close(self) -> None:
        """What waits stays in the directory and is sent by the next client that uses it. May be called twice."""
        self.stop()
        self._channel.close()
        self._thread.join()
        self._drain.close()

    # ---- the thread ----

    def _run(self) -> None:
        try:
            while not self._stopped:
                position = self._receiver.offset
                found = []
                for raw in self._receiver.recv_many(GATHER):
                    topic, count, frames = msgpack.unpackb(raw)
                    position += MESSAGE_HEAD + len(raw)  # type: ignore[arg-type]  # a spool drops nothing: no gaps
                    found.append(Publish(topic, count, frames, position))
                self._send_all(found)
        except ChannelClosed:
            return
        except Exception as error:
            # Damage, or a disk that cannot be read: publishing goes on, sending needs a look at the directory.
            self._error = error if isinstance(error, TopicdError) else TopicdError(f"the spool cannot be read: {error}")
            log.error("a spool cannot be sent", extra={"directory": str(self.directory), "error": str(error)})

    def _send_all(self, found: list[Publish]) -> None:
        alone = False  # after a refusal the guilty one is looked for
        while found and not self._stopped:
            window = found[:1] if alone and self._drain.noted is None else self._next_window(found)
            refused = self._send(window)
            if refused and len(window) > 1:
                alone = True
                continue
            if refused and not self._give_up(window[0], refused):
                continue
            self._receiver.ack(len(window))
            with self._lock:
                self._waiting -= len(window)
            self._error = None
            found = found[len(window) :]

    def _next_window(self, found: list[Publish]) -> list[Publish]:
        """What goes together. What was noted before a crash is sent as it was."""
        noted = self._drain.noted
        if noted is not None:
            return [publish for publish in found if publish.end <= noted]
        size = 0
        topics: dict[str, int] = {}
        for number, publish in enumerate(found):
            size += len(publish.frames)
            records = topics[publish.topic] = topics.get(publish.topic, 0) + publish.count
            if number and (size > WINDOW_BYTES or records > BATCH_RECORDS or len(topics) > WINDOW_TOPICS):
                return found[:number]
        return found

    def _send(self, window: list[Publish]) -> TopicdError | None:
        """Until it is stored or refused for good; the refusal."""
        backoff = Backoff()
        by_topic: dict[str, list[Encoded]] = {}
        for topic, count, frames, end in window:
            if not self._drain.is_done(topic, end):
                by_topic.setdefault(topic, []).append((bytearray(frames), count))
        batches = {topic: join_batches(found) for topic, found in by_topic.items()}
        while not self._stopped:
            try:
                self._drain.store(self._connect(), batches, window[-1].end)
                return None
            except TopicdError as error:
                self._drain.forget()
                if not error.retriable:
                    return error
                self._error = error
            self._again.wait(backoff.next())
        raise ChannelClosed("the spool is closed")

    def _give_up(self, publish: Publish, refusal: TopicdError) -> bool:
        """A publish that the daemon does not take stops what is behind it, until its owner gives it up or the reason is
        gone; it is tried again from time to time."""
        if self._error is not refusal:
            log.error("a spooled publish is refused", extra={"topic": publish.topic, "error": refusal.message})
        self._error, self._refused = refusal, publish
        self._again.wait(1.0)
        self._again.clear()
        if self._stopped:
            raise ChannelClosed("the spool is closed")
        skipped, self._skip, self._refused = self._skip, False, None
        return skipped
