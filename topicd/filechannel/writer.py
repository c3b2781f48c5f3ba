"""The writing end: one process, many threads. Promise, before send() returns: `buffered` nothing; `os` the system has
the message, so it survives the process; `fsync` the disk has it, and only then can a receiver see it.

After a failed write or sync nothing more is written: the error stays, and reading goes on. An interrupt (Ctrl-C) leaves
a message sent or not sent, never half: the end moves in one step, and bytes of a write that was cut off are cut out
before the next.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from time import monotonic

from topicd import _native
from topicd._native.channel import core
from topicd._native.channel_interface import CUT_AT, END_AT, FULL_AT, MOST_AT, SHIFT_AT, STATE_BYTES
from topicd._native.interface import Buffer
from topicd.errors import InvalidRequest, RecordTooLarge, TopicdError
from topicd.filechannel.active import Active, begin_segment, go_on
from topicd.filechannel.ahead import Ahead
from topicd.filechannel.arguments import deadline_of, is_buffer
from topicd.filechannel.collector import Collector
from topicd.filechannel.errors import ChannelClosed, ChannelFailed, ChannelFull
from topicd.filechannel.flusher import Flusher
from topicd.filechannel.layout import HEADER_BYTES, MAX_MESSAGE, MESSAGE_HEAD, Header
from topicd.filechannel.page import PUBLISHED_AT, SPACE_AT, WRITTEN_AT
from topicd.filechannel.place import Place
from topicd.filechannel.repair import repair, write_again
from topicd.filechannel.settings import Settings
from topicd.filechannel.survey import Segment, Survey
from topicd.limits import MAX_U64, MIB

SCRATCH_BYTES = 1 * MIB
CHANNEL_ID_BYTES = 8


class Writer:
    def __init__(self, place: Place, settings: Settings) -> None:
        self._place = place
        self._settings = settings
        self._mode = settings.durability
        self._lock = Lock()  # what is written, and where
        self._sync_lock = Lock()  # taken after _lock, or alone
        self._state = bytearray(STATE_BYTES)
        self._memory = place.page.memory
        self._active: Active | None = None
        self._fd = -1
        self._cut = self._full = 0
        self._ahead = Ahead(self._state, self._written, settings.cut_bytes) if self._mode == "os" else None
        self._window: Buffer | None = None  # what the ahead one points the state at
        self._unclean = False  # bytes of a write that was cut off may lie behind the end
        self._error: TopicdError | None = None
        # Of `buffered`: messages that begin at offset _base and are not in the file, unless the end has passed _base.
        self._scratch = bytearray(SCRATCH_BYTES)
        self._held = self._base = 0
        self._hold = memoryview(b"")  # the part of the scratch that messages may go to without asking
        self._flusher = Flusher(self.flush, settings.flush_interval) if self._mode == "buffered" else None
        self.collector = Collector(place, settings)
        self.channel_id = b""
        self.survey = Survey()

    # ---- opening and closing ----

    def open(self) -> None:
        place = self._place
        with place.guard():
            published = place.believed()
            synced = place.page.synced if published is not None else 0
            self.survey = found = repair(place.fs, place.directory, published)
            self.channel_id = found.channel_id or os.urandom(CHANNEL_ID_BYTES)
            # Files that are shorter than what was published have lost something: its offsets are not used again.
            end = max(found.end, published or 0)
            self._active = self._adopt(found, end, synced)
            self._store(END_AT, end)
            if self._ahead is not None:
                self._ahead.begin(self._active)
            self._base = end
            place.begin_page(end, end if self._settings.is_synced else 0)
        self.collector.collect()
        self._set_limits()
        if self._flusher is not None:
            self._flusher.start()

    def _adopt(self, found: Survey, end: int, synced: int) -> Active:
        """Go on in the last segment if it is of this kind and can be written on, else in a new one."""
        fs, directory = self._place.fs, self._place.directory
        segments = found.segments
        last: Segment | None = segments[-1] if segments and found.appendable else None
        if last is not None and last.synced:
            write_again(fs, directory, last.segment_id, last.begin, max(synced, last.begin), last.end)
        if last is not None and last.synced == self._settings.is_synced and last.end == end:
            self.collector.sealed = segments[:-1]
            return go_on(fs, directory, last)
        self.collector.sealed = list(segments)
        return begin_segment(fs, directory, self._header(found.next_id, end))

    def _header(self, segment_id: int, begin: int) -> Header:
        return Header(segment_id, begin, None, self._settings.is_synced, self.channel_id)

    def close(self) -> None:
        """Sends under way end first."""
        if self._flusher is not None:
            self._flusher.stop()
        with self._lock:
            active, self._active = self._active, None
            if active is None:
                return
            self._stop_quick()
            try:
                if self._error is None:
                    self._clean(active)
                    self._write_out(active)
            finally:
                if self._ahead is not None:
                    self._ahead.stop()
                with self._sync_lock:
                    active.file.close()
        self._place.page.wake(SPACE_AT)

    def abandon(self) -> None:
        """In a child process: its copy of the locks may be held by threads that it does not have."""
        self._lock, self._sync_lock = Lock(), Lock()
        self._error = ChannelClosed("the channel was opened by the parent process; open it again in the child")
        self._active, self._flusher, self._ahead = None, None, None
        self._stop_quick()

    # ---- numbers ----

    def _load(self, at: int) -> int:
        return _native.core.load(self._state, at)

    def _store(self, at: int, value: int) -> None:
        # A shift may be below zero: positions are computed modulo 2**64.
        _native.core.store(self._state, at, value & MAX_U64)

    def _written(self) -> int:
        return self._load(END_AT)

    @property
    def written(self) -> int:
        """Behind the last message that is in the file."""
        return self._written()

    @property
    def end(self) -> int:
        """Behind the last message that was taken."""
        written = self.written
        return written + self._held if written == self._base else written

    @property
    def error(self) -> TopicdError | None:
        return self._error

    @property
    def active_begin(self) -> int:
        return 0 if self._active is None else self._active.begin

    def file_bytes(self) -> int:
        active = self._active
        return self.collector.bytes() + (0 if active is None else active.position(self.written))

    def _set_limits(self) -> None:
        """Where the quick way ends: whatever is not plain goes through _make_way, which calls this again."""
        active = self._active
        if active is None:
            return
        self._stop_quick()
        self._cut = active.begin + max(self._settings.cut_bytes - HEADER_BYTES, 1)
        self._full = MAX_U64
        if self._settings.max_bytes is not None:
            # With room for the header of the next segment.
            room = self._settings.max_bytes - self.collector.bytes() - 2 * HEADER_BYTES
            self._full = active.begin + max(room, 0)
        self._store(SHIFT_AT, active.begin - HEADER_BYTES)
        self._store(FULL_AT, self._full)
        self._store(MOST_AT, MAX_MESSAGE)
        self._fd = -1 if active.raw_fd is None else active.raw_fd
        if self._error is not None or self._unclean:
            return
        if self._mode == "buffered":
            written = self.written
            if written == self._base:
                room = min(SCRATCH_BYTES, self._full - written, max(self._cut - written, 0))
                self._hold = memoryview(self._scratch)[: max(room, 0)]
        elif self._fd >= 0 and self._ahead is None:
            self._store(CUT_AT, self._cut)

    def _look_ahead(self) -> None:
        """After a message by itself: more of them may follow. (Batches are written: one call for many needs no map.)"""
        with self._lock:
            active = self._active
            if active is None or self._ahead is None or self._error is not None or self._unclean:
                return
            window, again = self._ahead.window(active.position(min(self._cut, self._full)))
            if self._fd >= 0:
                self._window = window
                self._store(CUT_AT, min(self._cut, active.begin + again - HEADER_BYTES))

    def _stop_quick(self) -> None:
        self._store(CUT_AT, 0)
        self._window = None
        self._hold = memoryview(b"")

    # ---- sending ----

    def send(self, payload: Buffer, timeout: float | None = None) -> int:
        """The offset behind the message."""
        # The quick way: one call that writes, moves the end and publishes. It returns 0 if it may not.
        memory = self._memory if self._mode == "os" else None
        try:
            with self._lock:
                if self._flusher is not None:
                    end = self._hold_back(payload)
                else:
                    end = core.send_message(
                        self._fd, self._state, payload, memory, PUBLISHED_AT, WRITTEN_AT, self._window
                    )
        except OSError as error:
            raise self._fail(error) from error
        except (TypeError, BufferError):
            raise _no_bytes(payload) from None
        if not end:
            end = self.send_many([payload], timeout)
            self._look_ahead()
            return end
        if self._mode == "fsync":
            self._sync_to(end)
        return end

    def _hold_back(self, payload: Buffer) -> int:
        held = self._held
        if held >= len(self._hold) or self._flusher is None:
            return 0
        after, end = core.encode_messages((payload,), 0, self._hold, held, MAX_U64)
        if not after:
            return 0
        self._held = end
        self._flusher.want()
        return self._base + end

    def send_many(self, payloads: Sequence[Buffer], timeout: float | None = None) -> int:
        """In order; not all or nothing: after an error those before it may be there. The offset behind the last."""
        try:
            core.measure_messages(payloads, MAX_MESSAGE)
        except (TypeError, BufferError):
            raise _no_bytes(*payloads) from None
        except ValueError as error:
            raise RecordTooLarge(str(error.args[-1]), limit=MAX_MESSAGE) from None
        deadline = deadline_of(timeout)
        number = 0
        while True:
            with self._lock:
                seen = self._place.page.count(SPACE_AT)
                while number < len(payloads):
                    active = self._make_way(len(memoryview(payloads[number]).cast("B")) + MESSAGE_HEAD)
                    if active is None:
                        break
                    number = self._write_some(active, payloads, number)
                end = self.end
            if number == len(payloads):
                break
            self._await_space(seen, deadline)
        if self._mode == "fsync":
            self._sync_to(end)
        return end

    def _write_some(self, active: Active, payloads: Sequence[Buffer], number: int) -> int:
        """As many as find room in the scratch, the segment and the channel. The first fits the channel."""
        written, held = self.written, self._held
        room = min(SCRATCH_BYTES, self._full - written, max(self._cut - written, held))
        after, end = core.encode_messages(payloads, number, memoryview(self._scratch)[:room], held, MAX_MESSAGE)
        if after > number and self._flusher is not None:
            self._held = end
            self._flusher.want()
        elif after > number:
            self._append(active, [memoryview(self._scratch)[:end]], end)
        elif held:
            self._write_out(active)
        else:
            payload = payloads[number]
            head = core.message_head(payload, MAX_MESSAGE)
            self._append(active, [head, payload], MESSAGE_HEAD + int.from_bytes(head[:4], "big"))
            self._base = self.written
            after = number + 1
        return after

    def _append(self, active: Active, parts: Sequence[Buffer], size: int) -> None:
        end = self.written
        self._stop_quick()
        self._unclean = True
        try:
            active.file.pwrite(parts, active.position(end))
        except OSError as error:
            raise self._fail(error) from error
        self._store(END_AT, end + size)
        self._unclean = False
        if self._mode != "fsync":
            self._place.page.publish(end + size)
        self._set_limits()

    def _write_out(self, active: Active) -> None:
        if self._held and self.written == self._base:
            self._append(active, [memoryview(self._scratch)[: self._held]], self._held)
        self._held = 0
        self._base = self.written
        self._set_limits()

    # ---- making way ----

    def _make_way(self, size: int) -> Active | None:
        """The segment to write so many bytes to; None: not before a receiver has made room."""
        active = self._ready()
        if self.end >= self._cut:
            active = self._cut_segment(active)
        if self.end + size <= self._full or self._make_room(active, size):
            return self._ready()
        return None

    def _ready(self) -> Active:
        if self._error is not None:
            raise self._error
        active = self._active
        if active is None:
            raise ChannelClosed("the channel is closed")
        self._clean(active)
        if active.before is not None:
            self.collector.seal(active.before)
            active.before = None
        if self._mode != "buffered" or self.written != self._base:
            self._held, self._base = 0, self.written
        self._set_limits()
        return active

    def _clean(self, active: Active) -> None:
        """An interrupt came between a write and the note of it: those bytes are nobody's."""
        if self._unclean:
            try:
                if self._ahead is not None:
                    self._ahead.end()
                    self._ahead.begin(active)
                active.file.truncate(active.position(self.written))
            except OSError as error:
                raise self._fail(error) from error
            self._unclean = False

    def _cut_segment(self, active: Active) -> Active:
        self._write_out(active)
        try:
            with self._sync_lock:
                end = self.written
                if self._settings.is_synced:
                    active.file.sync_data()
                self._stop_quick()
                if self._ahead is not None:
                    self._ahead.end()
                sealed = active.segment
                sealed.end, sealed.file_bytes = end, active.position(end)
                header = self._header(sealed.segment_id + 1, end)
                fresh = begin_segment(self._place.fs, self._place.directory, header, before=sealed)
                self._active = fresh
                if self._ahead is not None:
                    self._ahead.begin(fresh)
                active.file.close()
                if self._settings.is_synced:
                    self._tell_synced(end)
        except OSError as error:
            raise self._fail(error) from error
        return self._ready()

    def _make_room(self, active: Active, size: int) -> bool:
        limit = self._settings.max_bytes or 0
        if size > limit - 3 * HEADER_BYTES:
            raise RecordTooLarge(f"a message of {size - MESSAGE_HEAD} bytes does not fit in max_bytes {limit}")
        self.collector.collect()
        self._set_limits()
        drop = self._settings.full == "drop_oldest"
        # Only whole files can go: the one that is written is sealed once it holds nothing that anybody needs.
        if self.end + size > self._full and self.end > active.begin and (drop or self._all_read(active)):
            active = self._cut_segment(active)
            self.collector.collect()
            self._set_limits()
        while drop and self.end + size > self._full and self.collector.drop_oldest():
            self._set_limits()
        if self.end + size <= self._full:
            return True
        if self._settings.full == "refuse":
            raise ChannelFull(f"the channel is full: max_bytes is {limit}", max_bytes=limit)
        return False

    def _all_read(self, active: Active) -> bool:
        self._write_out(active)
        return self.collector.floor() == self.written

    def _await_space(self, seen: int, deadline: float | None) -> None:
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            limit = self._settings.max_bytes
            raise ChannelFull(f"the channel is still full: max_bytes is {limit}", max_bytes=limit)
        self._place.page.wait(SPACE_AT, seen, left)

    # ---- durability ----

    def _sync_to(self, end: int) -> None:
        """One sync for all that was written before it began; threads that come meanwhile share the next."""
        with self._sync_lock:
            if self._place.page.synced >= end:
                return
            if self._error is not None:
                raise self._error
            active = self._active
            if active is None:
                raise ChannelClosed("the channel was closed before the message was synced")
            written = self.written
            try:
                active.file.sync_data()
            except OSError as error:
                raise self._fail(error) from error
            self._tell_synced(written)

    def _tell_synced(self, end: int) -> None:
        self._place.page.note_synced(end)
        self._place.page.publish(end)

    def flush(self) -> None:
        """Everything sent so far is with the system, and receivers can see it."""
        with self._lock:
            self._write_out(self._ready())

    def sync(self) -> None:
        """Everything sent so far is on the disk, whatever the durability."""
        self.flush()
        with self._sync_lock:
            try:
                self._place.fs.sync_filesystem(self._place.directory)
            except OSError as error:
                raise self._fail(error) from error

    def _fail(self, error: OSError) -> TopicdError:
        """From now on the channel can only be read."""
        self._error = ChannelFailed(
            f"{self._place.directory}: {error.strerror or error}; the channel takes no more messages until it is "
            "opened anew",
            errno=error.errno,
        )
        self._stop_quick()
        return self._error


def _no_bytes(*payloads: object) -> InvalidRequest:
    wrong = [type(p).__name__ for p in payloads if not is_buffer(p)]
    return InvalidRequest(f"a message is bytes, not {wrong[0] if wrong else 'this'}")
