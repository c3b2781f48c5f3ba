"""Tables of keys and values, sorted by key: all that the chat store asks of its engine. Promise: a batch is written
whole or not at all, also across tables; after a crash the store is as it was at some moment, never a mixture of two.

RocksDB writes no log of its own: the operation log is one. What is in memory is lost with the process and applied
again. Atomic flush keeps the tables together: whatever moment survives, its row `applied` belongs to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EAGAIN, EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from topicd.disk.fs import RealFs
from topicd.errors import FormatError, StorageFailed
from topicd.limits import KIB, MIB
from topicd.shards.chat.keys import BUCKET, CHAT, USER

log = logging.getLogger(__name__)

Row = tuple[bytes, bytes]


class Table:
    """Known by itself, not by its name: every row that is written asks for the place of its table."""

    __slots__ = ("filtered", "name", "prefix")

    def __init__(self, name: str, prefix: int = 0, *, filtered: bool = False) -> None:
        self.name = name
        self.prefix = prefix  # bytes of a key that rows are looked for together by
        # Rows in memory have a filter, too: keys are asked for that are mostly not there. It takes a tenth of what a
        # table may hold in memory, from the beginning.
        self.filtered = filtered


DEFAULT = Table("default")
MESSAGES = Table("messages", CHAT, filtered=True)
SEEN_MSG = Table("seen_msg", BUCKET, filtered=True)
CHATS_META = Table("chats_meta")
USER_INBOX = Table("user_inbox", USER)
MEMBERS = Table("members", CHAT)
USER_READ_PROGRESS = Table("user_read_progress", USER)
IDENTITY = Table("identity")
SEEN_MEMBER = Table("seen_member", BUCKET)
SEEN_IDENTITY = Table("seen_identity", BUCKET)
TABLES = (
    DEFAULT,
    MESSAGES,
    SEEN_MSG,
    CHATS_META,
    USER_INBOX,
    MEMBERS,
    USER_READ_PROGRESS,
    IDENTITY,
    SEEN_MEMBER,
    SEEN_IDENTITY,
)


# What passes when there is room, or memory, again; whatever else the engine reports at its opening is in its files.
_PASSING = tuple(map(os.strerror, (ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, EAGAIN, EROFS)))
_LITTLE = 256 * KIB  # what is flushed at once: nobody notices
_LEAST_BUFFER = 64 * KIB  # the engine's own bound
_LOOK_S = 0.005
_NO_KEY = b"\0"  # shorter than any key


class Writes:
    """A batch that grows; the last word on a key counts. Range deletions come before everything else in it."""

    def __init__(self) -> None:
        self.rows: dict[Table, dict[bytes, bytes | None]] = {table: {} for table in TABLES}
        self.ranges: list[tuple[Table, bytes, bytes]] = []  # from, up to but without

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.rows[table][key] = value

    def delete(self, table: Table, key: bytes) -> None:
        self.rows[table][key] = None

    def delete_range(self, table: Table, first: bytes, end: bytes) -> None:
        rows = self.rows[table]
        for key in [key for key in rows if first <= key < end]:
            del rows[key]
        self.ranges.append((table, first, end))


class Store(Protocol):
    """What an engine has to offer. Scans see the store as it was when they began."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def get_many(self, table: Table, wanted: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, table: Table, first: bytes = b"", prefix: bytes = b"") -> Iterator[Row]:
        """Rows from a key on, in order, as long as their keys begin with the prefix."""
        ...

    def scan_back(self, table: Table, last: bytes, prefix: bytes) -> Iterator[Row]:
        """Rows from the last one at or before a key on, backwards, as long as their keys begin with the prefix."""
        ...

    def write(self, writes: Writes) -> None: ...

    def flush(self) -> None:
        """What is written survives a loss of power from here on."""
        ...

    def checkpoint(self, where: Path) -> None:
        """A store of its own with what is here now, flushed; files are shared where that is possible."""
        ...

    def figures(self) -> dict[str, int]: ...

    def close(self) -> None:
        """May be called twice."""
        ...


class Tuning(NamedTuple):
    cache_bytes: int = 64 * MIB
    memtable_bytes: int = 64 * MIB
    threads: int = 2
    bloom_bits: float = 10.0
    log_files: int = 5


class RocksStore:
    def __init__(self, path: Path, tuning: Tuning = Tuning()) -> None:  # noqa: B008
        import rocksdict

        self._lib: Any = rocksdict
        self.path = path
        self._tuning = tuning
        self._db: Any = None
        self._tables: dict[Table, Any] = {}
        self._handles: dict[Table, Any] = {}
        self._unlogged: Any = None
        self._scans = 0  # that are not at their end: each of them keeps the files open
        self._table_bytes = max(MIB, tuning.memtable_bytes // 2)

    def open(self) -> RocksStore:
        lib = self._lib
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cache = lib.Cache(self._tuning.cache_bytes)
        options = {table.name: self._options(table, cache) for table in TABLES}
        try:
            self._db = lib.Rdict(str(self.path), options.pop(DEFAULT.name), column_families=options)
        except Exception as exc:
            kind = StorageFailed if any(why in str(exc) for why in _PASSING) else FormatError
            raise kind(f"the chat store {self.path} cannot be opened: {exc}") from None
        self._unlogged = lib.WriteOptions()
        self._unlogged.disable_wal = True
        self._db.set_write_options(self._unlogged)
        for table in TABLES:
            found = self._db if table is DEFAULT else self._db.get_column_family(table.name)
            self._tables[table] = found
            self._handles[table] = self._db.get_column_family_handle(table.name)
        return self

    def _options(self, table: Table, cache: Any) -> Any:
        lib, tuning = self._lib, self._tuning
        made = lib.Options(raw_mode=True)
        made.create_if_missing(True)
        made.create_missing_column_families(True)
        made.set_atomic_flush(True)
        made.increase_parallelism(tuning.threads)
        made.set_max_background_jobs(max(2, tuning.threads))
        made.set_compression_type(lib.DBCompressionType.zstd())
        made.set_keep_log_file_num(tuning.log_files)
        made.set_db_write_buffer_size(tuning.memtable_bytes)
        made.set_write_buffer_size(self._table_bytes)
        made.set_max_write_buffer_number(4)  # one that is being flushed keeps nobody from writing
        made.set_level_zero_slowdown_writes_trigger(40)
        made.set_level_zero_stop_writes_trigger(80)
        blocks = lib.BlockBasedOptions()
        blocks.set_block_cache(cache)
        blocks.set_bloom_filter(tuning.bloom_bits, False)
        made.set_block_based_table_factory(blocks)
        made.set_allow_concurrent_memtable_write(False)  # one thread writes
        if table.filtered:
            made.set_memtable_whole_key_filtering(True)
            made.set_memtable_prefix_bloom_ratio(0.1)
        if table.prefix:
            made.set_prefix_extractor(lib.SliceTransform.create_fixed_prefix(table.prefix))
        return made

    # ---- reading ----

    def get(self, table: Table, key: bytes) -> bytes | None:
        found: bytes | None = self._tables[table].get(key)
        return found

    def get_many(self, table: Table, wanted: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._tables[table].get(list(wanted)) if wanted else []
        return found

    def scan(self, table: Table, first: bytes = b"", prefix: bytes = b"") -> Iterator[Row]:
        return self._scan(table, max(first, prefix), prefix, backwards=False)

    def scan_back(self, table: Table, last: bytes, prefix: bytes) -> Iterator[Row]:
        return self._scan(table, last, prefix, backwards=True)

    def _scan(self, table: Table, start: bytes, prefix: bytes, *, backwards: bool) -> Iterator[Row]:
        self._scans += 1
        try:
            for key, value in self._rows(table, start, prefix, backwards=backwards):
                if not key.startswith(prefix):
                    return
                yield key, value
        finally:
            self._scans -= 1

    async def unread(self) -> None:
        """Until nobody is in the middle of a scan: only then the engine lets go of its files."""
        while self._scans:
            await asyncio.sleep(_LOOK_S)

    def _rows(self, table: Table, start: bytes, prefix: bytes, *, backwards: bool) -> Iterable[Row]:
        how = self._lib.ReadOptions()
        if table.prefix and len(prefix) >= table.prefix:
            how.set_prefix_same_as_start(True)
        else:
            how.set_total_order_seek(True)
        rows: Iterable[Row] = self._tables[table].items(
            backwards=backwards, from_key=start if start or backwards else None, read_opt=how
        )
        return rows

    # ---- writing ----

    def write(self, writes: Writes) -> None:
        batch = self._lib.WriteBatch(raw_mode=True)
        for table, first, end in writes.ranges:
            batch.delete_range(first, end, self._handles[table])
        for table, rows in writes.rows.items():
            handle = self._handles[table]
            # In order: a row then goes where the one before went, which costs the engine a third less.
            for key in sorted(rows):
                value = rows[key]
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        try:
            self._db.write(batch, self._unlogged)
        except Exception as exc:
            raise _failure(exc) from None

    def flush(self) -> None:
        # A flush of one table is no flush of all; a checkpoint is, and all at once.
        scratch = self.path.with_name(self.path.name + ".flush")
        self.checkpoint(scratch)
        shutil.rmtree(scratch, ignore_errors=True)

    async def settle(self) -> None:
        """As flush, but done by threads of the engine while others have their turns: a checkpoint holds the
        interpreter as long as it takes, and one that follows this has little left to do.

        A table that is larger than it may be makes the engine flush all of them together, so for a moment the largest
        one may be next to nothing. A deletion of a key that no row has makes it look."""
        sizes = {table: self._property(table, "rocksdb.cur-size-active-mem-table") for table in TABLES}
        largest = max(sizes, key=sizes.__getitem__)
        if sizes[largest] < _LITTLE:
            self.flush()
            return
        nothing = Writes()
        nothing.delete(largest, _NO_KEY)
        handle = self._tables[largest]
        with _no_failure_unnamed():
            handle.set_options({"write_buffer_size": str(_LEAST_BUFFER)})
            try:
                self.write(nothing)  # it is found to be too large
                self.write(nothing)  # and the flush begins
            finally:
                handle.set_options({"write_buffer_size": str(self._table_bytes)})
        while self._db is not None and self._total("rocksdb.num-immutable-mem-table"):
            await asyncio.sleep(_LOOK_S)

    def checkpoint(self, where: Path) -> None:
        shutil.rmtree(where, ignore_errors=True)
        with _no_failure_unnamed():
            self._lib.Checkpoint(self._db).create_checkpoint(str(where))

    # ---- the rest ----

    def _property(self, table: Table, name: str) -> int:
        return int(self._tables[table].property_int_value(name) or 0)

    def _total(self, name: str) -> int:
        return sum(self._property(table, name) for table in self._tables)

    def figures(self) -> dict[str, int]:
        return {
            "memtable_bytes": self._total("rocksdb.cur-size-all-mem-tables"),
            "sst_bytes": self._total("rocksdb.total-sst-files-size"),
            "live_bytes": self._total("rocksdb.estimate-live-data-size"),
        }

    def close(self) -> None:
        if self._db is None:
            return
        try:
            self.flush()
            with _no_failure_unnamed():
                self._db.close()
        except StorageFailed as exc:
            log.warning("the chat store is closed without a flush, its log has what is missing", extra={"error": exc})
        finally:
            self._tables.clear()
            self._handles.clear()
            self._db = None  # closed at the latest when nobody has it any more

    def replace(self, other: Path) -> None:
        """The store in `other`, which nobody uses, takes the place of this one, which nobody scans (`unread`). After a
        crash in between there is none, and it is made from the log."""
        fs, old = RealFs(), self.path.with_name(self.path.name + ".old")
        self.close()
        shutil.rmtree(old, ignore_errors=True)
        if self.path.exists():
            fs.rename(self.path, old)
        fs.rename(other, self.path)
        fs.sync_dir(self.path.parent)
        shutil.rmtree(old, ignore_errors=True)
        self.open()


@contextmanager
def _no_failure_unnamed() -> Iterator[None]:
    """The engine knows only one kind of exception."""
    try:
        yield
    except Exception as exc:
        raise _failure(exc) from None


def _failure(exc: Exception) -> StorageFailed:
    return StorageFailed(f"the engine of the chat store: {exc}")


class MemoryStore:
    """The same in memory, for tests and for checking a store against its log."""

    def __init__(self) -> None:
        self._rows: dict[Table, dict[bytes, bytes]] = {table: {} for table in TABLES}

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._rows[table].get(key)

    def get_many(self, table: Table, wanted: Sequence[bytes]) -> list[bytes | None]:
        return [self._rows[table].get(key) for key in wanted]

    def scan(self, table: Table, first: bytes = b"", prefix: bytes = b"") -> Iterator[Row]:
        rows = self._rows[table]
        for key in sorted(key for key in rows if key >= first and key.startswith(prefix)):
            yield key, rows[key]

    def scan_back(self, table: Table, last: bytes, prefix: bytes) -> Iterator[Row]:
        rows = self._rows[table]
        for key in sorted((key for key in rows if key <= last and key.startswith(prefix)), reverse=True):
            yield key, rows[key]

    def write(self, writes: Writes) -> None:
        for table, first, end in writes.ranges:
            rows = self._rows[table]
            for key in [key for key in rows if first <= key < end]:
                del rows[key]
        for table, changed in writes.rows.items():
            for key, value in changed.items():
                if value is None:
                    self._rows[table].pop(key, None)
                else:
                    self._rows[table][key] = value

    def flush(self) -> None:
        pass

    def checkpoint(self, where: Path) -> None:
        raise FormatError("a store in memory has no checkpoints")

    def figures(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass
