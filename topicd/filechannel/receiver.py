"""The receiving end of a channel, by name. Promise: a message counts as received only when it was acknowledged; before
ack() returns, the offset is as durable as the channel's messages; offsets only rise.

One receiver may be shared by threads: each message goes to one of them. Several receivers get every message each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from threading import RLock
from time import monotonic
from types import TracebackType
from typing import Generic, TypeVar

from topicd.errors import StorageFailed
from topicd.filechannel.arguments import at_least_one, deadline_of, whole
from topicd.filechannel.errors import ChannelClosed, Damaged, DecodeFailed, NotEnough, NotUnacked, TooManyUnacked
from topicd.filechannel.layout import Span
from topicd.filechannel.offsets import OffsetFile
from topicd.filechannel.page import CHORE_AT, WRITTEN_AT
from topicd.filechannel.place import Place
from topicd.filechannel.reading import Gap, Reading
from topicd.limits import MAX_U64

T = TypeVar("T")
NOT_YET = MAX_U64  # the read offset before the first read


class Receiver(Generic[T]):
    def __init__(
        self,
        place: Place,
        name: str,
        position: OffsetFile,
        decode: Callable[[bytes], T] | None,
        *,
        auto_ack: bool,
        max_unacked: int,
        on_close: Callable[[str], None],
    ) -> None:
        self.name = name
        self._place = place
        self._page = place.page
        self._position = position
        self._decode = decode
        self._auto_ack = auto_ack
        self._max_unacked = max_unacked
        self._on_close = on_close
        self._lock = RLock()
        self._reading = Reading(place, position.offset)
        self._ready: deque[bytes | Gap] = deque()  # read, not handed out
        self._ends: deque[int] = deque()  # offsets behind all that was read and not acknowledged
        self._edges: deque[int] = deque([0])  # where the segments begin that were entered
        self._read_any = False
        self._closed = self._gone = False

    # ---- receiving ----

    def recv(self, timeout: float | None = None) -> T | Gap:
        """The next message. timeout in seconds; None waits for ever, 0 does not wait: NotEnough."""
        deadline = deadline_of(timeout)
        while True:
            with self._lock:
                if self._ready or self._fill():
                    return self._hand_out()
            self._await(deadline)

    def try_recv(self) -> T | Gap:
        """The next message if it is there; else NotEnough."""
        return self.recv(0)

    def recv_many(self, limit: int, timeout: float | None = None) -> list[T | Gap]:
        """At least one, at most limit: those that are there. Waits for the first as recv() does."""
        at_least_one("limit", limit)
        deadline = deadline_of(timeout)
        while True:
            with self._lock:
                if self._ready or self._fill():
                    return self._hand_out_many(limit)
            self._await(deadline)

    def messages(self, timeout: float | None = None) -> Iterator[T | Gap]:
        """Until the channel is closed, or nothing has come for so long."""
        while True:
            try:
                yield self.recv(timeout)
            except (ChannelClosed, NotEnough):
                return

    def __iter__(self) -> Iterator[T | Gap]:
        return self.messages()

    def _hand_out(self) -> T | Gap:
        if not self._auto_ack and len(self._ends) - len(self._ready) >= self._max_unacked:
            raise TooManyUnacked(f"{self._max_unacked} messages are not acknowledged", limit=self._max_unacked)
        # One step: what was handed out is what is in _ends and not in _ready.
        item = self._ready.popleft()
        if self._auto_ack:
            self._ack_handed_out([item])
        self._read_any = True
        return self._decoded(item)

    def _ack_handed_out(self, items: list[bytes | Gap]) -> None:
        try:
            self._move(self._ends[len(self._ends) - len(self._ready) - 1])
        except StorageFailed:
            self._ready.extendleft(reversed(items))
            raise

    def _hand_out_many(self, limit: int) -> list[T | Gap]:
        while len(self._ready) < limit and self._fill_quietly():
            pass
        room = limit if self._auto_ack else self._max_unacked - (len(self._ends) - len(self._ready))
        count = min(limit, room, len(self._ready))
        if count <= 0:
            raise TooManyUnacked(f"{self._max_unacked} messages are not acknowledged", limit=self._max_unacked)
        if self._decode is None:
            return self._take(count)  # type: ignore[return-value]  # without a codec T is bytes
        found = self._decoded_beginning(count)
        self._take(len(found))
        return found

    def _take(self, count: int) -> list[bytes | Gap]:
        items = [self._ready.popleft() for _ in range(count)]
        if self._auto_ack:
            self._ack_handed_out(items)
        self._read_any = True
        return items

    def _decoded_beginning(self, count: int) -> list[T | Gap]:
        """Up to the first that the codec refuses: that one is for the next call, so that those before it arrive."""
        found: list[T | Gap] = []
        for item in list(islice(self._ready, count)):
            try:
                found.append(self._decoded(item))
            except DecodeFailed:
                if found:
                    break
                self._take(1)
                raise
        return found

    def _decoded(self, item: bytes | Gap) -> T | Gap:
        if self._decode is None or isinstance(item, Gap):
            return item  # type: ignore[return-value]  # without a codec T is bytes
        try:
            return self._decode(item)
        except Exception as error:
            raise DecodeFailed(f"a message of {len(item)} bytes cannot be decoded: {error}") from error

    def _fill(self) -> bool:
        """More messages to hand out; False: there are none yet."""
        if self._closed:
            raise ChannelClosed(f"receiver {self.name} is closed")
        reading = self._reading
        found = reading.more(self._page.published)
        if found is None:
            return False
        if reading.segment_begin > self._edges[-1]:
            self._edges.append(reading.segment_begin)
        if isinstance(found, Gap):
            self._ends.append(found.end)
            self._ready.append(found)
        else:
            self._ends.extend(found[1])
            self._ready.extend(found[0])
        return True

    def _fill_quietly(self) -> bool:
        """Damage behind messages that are there is raised by the call that meets it first."""
        try:
            return self._fill()
        except (Damaged, StorageFailed):
            return False

    def _await(self, deadline: float | None) -> None:
        seen = self._page.count(WRITTEN_AT)
        published = self._page.published
        if self._closed:
            raise ChannelClosed(f"receiver {self.name} is closed")
        if published > self._reading.offset:
            return
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            raise NotEnough("not enough messages", receiver=self.name)
        self._page.wait_written(seen, published, left)

    # ---- acknowledging ----

    @property
    def unacked(self) -> int:
        """How many messages were handed out and not acknowledged."""
        with self._lock:
            return len(self._ends) - len(self._ready)

    def ack(self, count: int = 1) -> None:
        """The oldest so many that were handed out are done: after a restart they do not come again."""
        with self._lock:
            if self._closed:
                raise ChannelClosed(f"receiver {self.name} is closed")
            unacked = len(self._ends) - len(self._ready)
            whole("count", count)
            if not 0 <= count <= unacked:
                raise NotUnacked(f"{count} messages are to be acknowledged, {unacked} can be")
            if count:
                self._move(self._ends[count - 1])

    def ack_all(self) -> None:
        with self._lock:
            self.ack(self.unacked)

    def _move(self, end: int) -> None:
        try:
            self._position.move(end)
        except OSError as error:
            raise StorageFailed(f"receiver {self.name}: the offset cannot be written: {error}") from error
        ends = self._ends
        while ends and ends[0] <= end:
            ends.popleft()
        self._page.tell_acked(end)
        if len(self._edges) > 1 and self._edges[1] <= end:
            while len(self._edges) > 1 and self._edges[1] <= end:
                self._edges.popleft()
            self._page.wake(CHORE_AT)

    def skip_damage(self) -> Span | None:
        """Step over what Damaged reported; the span that was given up. None: there is no damage here."""
        with self._lock:
            skipped = self._reading.skip()
            if skipped is None:
                return None
            if not self._ends:
                self._move(skipped.end)
            return Span(skipped.begin, skipped.end)

    # ---- figures and end ----

    @property
    def offset(self) -> int:
        """Everything before it was acknowledged."""
        return self._position.offset

    @property
    def read_offset(self) -> int:
        """Behind the last message that was handed out; 2**64 - 1 before the first."""
        with self._lock:
            if not self._read_any:
                return NOT_YET
            handed = len(self._ends) - len(self._ready)
            return self._ends[handed - 1] if handed else self._position.offset

    @property
    def next_offset(self) -> int:
        """Something published behind it is new here."""
        return self._reading.offset

    def wake(self) -> None:
        self._page.wake(WRITTEN_AT)

    def close(self) -> None:
        """The offset stays, and holds what lies behind it; a temporary receiver's goes. Who waits is woken."""
        with self._lock:
            if self._gone:
                return
            self._closed = True
            self._reading.close()
            self._position.close()
            self.wake()
            self._on_close(self.name)
            # Last: after an interrupt the next call does the rest.
            self._gone = True

    def abandon(self) -> None:
        """In a child process."""
        self._lock = RLock()
        self._closed = self._gone = True

    def __enter__(self) -> Receiver[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
