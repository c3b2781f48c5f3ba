"""FileChannel: a persistent channel in one directory, without a daemon. Promise: one process writes, any number read;
what was sent is received in order by every receiver, as often as it takes until it was acknowledged.

Bytes, guarantees and what is not guaranteed: docs/filechannel.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, Unpack, overload
from weakref import WeakSet

from topicd.disk.fs import Fs
from topicd.errors import InvalidRequest
from topicd.filechannel.arguments import at_least_one, directory_of, one_of, yes_or_no
from topicd.filechannel.chores import Chores
from topicd.filechannel.codecs import Codec, CodecName, codec_of
from topicd.filechannel.compressing import candidates, compress
from topicd.filechannel.errors import ChannelClosed, InUse, OffsetDamaged
from topicd.filechannel.layout import offset_path
from topicd.filechannel.lock import try_own
from topicd.filechannel.offsets import OffsetFile, create_position, read_position
from topicd.filechannel.page import Page
from topicd.filechannel.place import Place
from topicd.filechannel.reading import Reading
from topicd.filechannel.receiver import Receiver
from topicd.filechannel.sender import Sender
from topicd.filechannel.settings import MAX_UNACKED, Options, settings_of
from topicd.filechannel.stats import ReceiverStats, Stats
from topicd.filechannel.survey import Damage, Segment, look
from topicd.filechannel.writer import Writer

T = TypeVar("T")
Start = Literal["oldest", "newest"]
Pair = tuple[Callable[[T], bytes], Callable[[bytes], T]]
DEFAULT_RECEIVER = "default"
_OPEN: WeakSet[FileChannel[Any]] = WeakSet()


class FileChannel(Generic[T]):
    @overload
    def __init__(
        self: FileChannel[bytes],
        directory: str | os.PathLike[str],
        *,
        codec: Literal["bytes"] = "bytes",
        fs: Fs | None = None,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: FileChannel[str],
        directory: str | os.PathLike[str],
        *,
        codec: Literal["str"],
        fs: Fs | None = None,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: FileChannel[Any],
        directory: str | os.PathLike[str],
        *,
        codec: Literal["json", "msgpack"],
        fs: Fs | None = None,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        codec: Codec[T] | Pair[T],
        fs: Fs | None = None,
        **options: Unpack[Options],
    ) -> None: ...

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        codec: CodecName | Codec[T] | Pair[T] = "bytes",
        fs: Fs | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Options: settings.Settings. fs: another filesystem, in tests."""
        self._settings = settings_of(dict(options))
        self._codec: Codec[T] = codec_of(codec)
        self._place = Place(directory_of(directory), fs)
        self._lock = Lock()
        self._receivers: dict[str, Receiver[T]] = {}
        self._closed = self._is_forked = False
        self._writer: Writer | None = None
        self._chores: Chores | None = None
        self._open(is_real=fs is None)
        _OPEN.add(self)

    def _open(self, is_real: bool) -> None:
        try:
            self._place.open(writer=self._settings.writer)
            if not self._settings.writer:
                self._place.join_page()
                return
            self._writer = Writer(self._place, self._settings)
            self._writer.open()
            self._chores = Chores(self._place, self._settings, self._writer.collector)
            if is_real:
                self._chores.start()
        except BaseException:
            self._place.close()
            raise

    # ---- the two ends ----

    @property
    def directory(self) -> Path:
        return self._place.directory

    @property
    def page(self) -> Page:
        return self._place.page

    @property
    def channel_id(self) -> bytes:
        """8 random bytes of the channel's first opening, in every segment's header."""
        return self._writing().channel_id

    def sender(self) -> Sender[T]:
        return Sender(self._writing(), self._codec.encode)

    def receiver(
        self,
        name: str = DEFAULT_RECEIVER,
        *,
        auto_ack: bool = False,
        start: Start = "oldest",
        temporary: bool = False,
        max_unacked: int = MAX_UNACKED,
    ) -> Receiver[T]:
        """start: where a name begins that was never used. temporary: forgotten when closed, or with its process."""
        one_of("start", start, ("oldest", "newest"))
        yes_or_no("auto_ack", auto_ack)
        yes_or_no("temporary", temporary)
        at_least_one("max_unacked", max_unacked)
        path = offset_path(self._place.directory, name)
        with self._lock, self._guard():
            if name in self._receivers:
                raise InUse(f"receiver {name} is open in this channel: share it between threads", pid=os.getpid())
            position = self._own(path, name, start, temporary)
            receiver = Receiver(
                self._place,
                name,
                position,
                self._codec.decode,
                auto_ack=auto_ack,
                max_unacked=max_unacked,
                on_close=self._receiver_closed,
            )
            self._receivers[name] = receiver
        return receiver

    def _own(self, path: Path, name: str, start: Start, temporary: bool) -> OffsetFile:
        fs = self._place.fs
        if not fs.exists(path):
            create_position(
                fs, path, self._begin() if start == "oldest" else self._place.page.published, temporary=temporary
            )
        elif read_position(fs, path).temporary != temporary:
            raise InvalidRequest(f"receiver {name} is {'not ' if temporary else ''}temporary")
        position = OffsetFile(fs, path, sync=self._settings.is_synced)
        if try_own(position.file):
            return position
        position.close()
        raise InUse(f"receiver {name} is open in another process; a name has one reader at a time", receiver=name)

    def _begin(self) -> int:
        """Where the oldest message lies that is still there; what was dropped before is no gap for a newcomer."""
        if self._writer is not None:
            sealed = self._writer.collector.sealed
            return sealed[0].begin if sealed else self._writer.active_begin
        return look(self._place.fs, self._place.directory, self._place.page.published).begin

    def _receiver_closed(self, name: str) -> None:
        """The receiver holds its lock, so that it is closed once; its name is free when nothing of it is left."""
        with self._place.guard():
            path = offset_path(self._place.directory, name)
            if self._place.fs.exists(path) and self._is_temporary(path):
                self._place.fs.unlink(path, missing_ok=True)
        with self._lock:
            self._receivers.pop(name, None)
        self._tell_collector()

    def _is_temporary(self, path: Path) -> bool:
        try:
            return read_position(self._place.fs, path).temporary
        except OffsetDamaged:
            return False

    def remove_receiver(self, name: str) -> bool:
        """Forget a name and its offset: it holds nothing back any more. False: there is none."""
        path = offset_path(self._place.directory, name)
        with self._guard():
            if not self._place.fs.exists(path):
                return False
            self._refuse_open(name)
            self._place.fs.unlink(path, missing_ok=True)
            self._place.fs.sync_dir(self._place.directory)
        self._tell_collector()
        return True

    def reset_receiver(self, name: str, to: Start | int) -> int:
        """Where a receiver that is not open goes on: from the oldest or newest message, or from an offset between two
        messages. The offset."""
        path = offset_path(self._place.directory, name)
        with self._guard():
            self._refuse_open(name)
            if to == "oldest":
                offset = self._begin()
            elif to == "newest":
                offset = self._place.page.published
            elif isinstance(to, int) and not isinstance(to, bool):
                offset = self._checked(to)
            else:
                raise InvalidRequest(f"to is {to!r}; it may be oldest, newest or an offset")
            create_position(self._place.fs, path, offset)
        self._tell_collector()
        return offset

    def _refuse_open(self, name: str) -> None:
        path = offset_path(self._place.directory, name)
        if name in self._receivers:
            raise InUse(f"receiver {name} is open: close it first", pid=os.getpid())
        if not self._place.fs.exists(path):
            return
        file = self._place.fs.open(path)
        try:
            if not try_own(file):
                raise InUse(f"receiver {name} is open in another process", receiver=name)
        finally:
            file.close()

    def _checked(self, offset: int) -> int:
        """An offset between two messages: the chain of its segment must lead there."""
        end = self._place.page.published
        if not self._begin() <= offset <= end:
            raise InvalidRequest(f"offset {offset} is not between {self._begin()} and {end}")
        if offset == end:
            return offset
        reading = Reading(self._place, offset)
        try:
            return reading.check_boundary(end)
        finally:
            reading.close()

    # ---- the whole ----

    def flush(self) -> None:
        """Of `buffered`: everything sent so far can be received, and survives the process."""
        self._writing().flush()

    def sync(self) -> None:
        """Everything sent so far survives a power loss, whatever the durability."""
        self._writing().sync()

    def compact(self) -> None:
        """What the writer's thread does by itself, now: collect, and compress if that is wanted."""
        self._writing()
        if self._chores is not None:
            self._chores.turn()

    def compress_all(self, advance: Callable[[int], None] = lambda size: None) -> tuple[int, int]:
        """Collect, then compress every sealed segment: how many went and how many were compressed."""
        collector = self._writing().collector
        before = len(collector.sealed)
        collector.collect()
        removed = before - len(collector.sealed)
        fs, directory = self._place.fs, self._place.directory
        packed = sum(compress(fs, directory, collector, segment, advance) for segment in candidates(collector, keep=0))
        return removed, packed

    def sealed(self) -> list[Segment]:
        """The segments that nothing is written to any more, oldest first."""
        return list(self._writing().collector.sealed)

    @property
    def damage(self) -> list[Damage]:
        """What was found damaged when the channel was opened for writing."""
        return list(self._writing().survey.damage)

    def stats(self) -> Stats:
        self._check_open()
        published = self._place.page.published
        writer = self._writer
        if writer is not None:
            sealed = writer.collector.sealed
            begin, segments = self._begin(), len(sealed) + 1
            packed, size, end = sum(segment.packed for segment in sealed), writer.file_bytes(), writer.end
        else:
            found = look(self._place.fs, self._place.directory, published)
            begin, segments, end = found.begin, len(found.segments), published
            packed = sum(segment.packed for segment in found.segments)
            size = sum(segment.file_bytes for segment in found.segments)
        return Stats(begin, end, published, size, segments, packed, self._receiver_stats(end))

    def _receiver_stats(self, end: int) -> dict[str, ReceiverStats]:
        found = {}
        for name, position in self._place.positions().items():
            here = self._receivers.get(name)
            found[name] = ReceiverStats(
                None if position is None else position.offset,
                None if here is None else here.read_offset,
                None if here is None else here.unacked,
                None if position is None else max(end - position.offset, 0),
                position is not None and position.temporary,
            )
        return found

    def close(self) -> None:
        """Sends under way end, then everybody who waits is woken with ChannelClosed. May be called again, by several
        threads, and after an interrupt: when it returns, all of it is closed."""
        if self._is_forked:
            return
        with self._lock:
            self._closed = True
            receivers = list(self._receivers.values())
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            for receiver in receivers:
                receiver.close()
            if self._chores is not None:
                self._chores.stop()
            self._place.close()

    def __enter__(self) -> FileChannel[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ---- inside ----

    def _check_open(self) -> None:
        if self._closed:
            raise ChannelClosed("the channel is closed")

    @contextmanager
    def _guard(self) -> Iterator[None]:
        self._check_open()
        with self._place.guard():
            yield

    def _writing(self) -> Writer:
        self._check_open()
        if self._writer is None:
            raise InvalidRequest("the channel was opened with writer=False")
        return self._writer

    def _tell_collector(self) -> None:
        if self._chores is not None and not self._closed:
            self._chores.want()

    def _abandon(self) -> None:
        """In a child of the process that opened it: nothing of it may be used."""
        self._closed = self._is_forked = True
        if self._writer is not None:
            self._writer.abandon()
        for receiver in self._receivers.values():
            receiver.abandon()


def _after_fork() -> None:
    for channel in list(_OPEN):
        channel._abandon()


os.register_at_fork(after_in_child=_after_fork)
