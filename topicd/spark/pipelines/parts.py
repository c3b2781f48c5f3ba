"""Records as Parquet files and back. Promise: data, tag, node and meta come back byte for byte, in the order of their
seqs; a file's checksum is that of the bytes that were synced.

    seq  int64      ts    timestamp[ms, UTC]   node  string     tag  string
    meta binary     msgpack, as it was stored  data  binary
"""

from __future__ import annotations

import hashlib
import os
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topicd.client.core.batch import Batch
from topicd.disk.fs import RealFs
from topicd.errors import StorageCorrupt
from topicd.limits import MIB

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 64 * MIB
GROUP_ROWS = 200_000
_HASH_CHUNK = 4 * MIB
DAY_MS = 86_400_000
_DAY = timedelta(days=1)

Row = tuple[int, int, bytes | None, bytes | None, bytes | None, bytes]  # seq, ts in ms, node, tag, meta, data


class Staged(NamedTuple):
    """A finished file in staging."""

    name: str
    topic: str
    day: str
    first_seq: int
    last_seq: int
    last_ts: int
    records: int
    bytes: int
    sha256: str


def file_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("seq", pa.int64()),
            ("ts", pa.timestamp("ms", tz="UTC")),
            ("node", pa.string()),
            ("tag", pa.string()),
            ("meta", pa.binary()),
            ("data", pa.binary()),
        ]
    )


class PartWriter:
    """Files of one topic and one day each. Feed it batches in order; it gives back the files it has finished."""

    def __init__(self, staging: Path, topic: str) -> None:
        self._staging = staging
        self._topic = topic
        self._day = -1  # since 1970
        self._file: _OpenPart | None = None

    def add(self, batch: pa.RecordBatch) -> Iterator[Staged]:
        """The columns above, in any order. Times never fall within a topic, so a day that is over stays over."""
        import pyarrow as pa

        days = [ms // DAY_MS for ms in batch.column("ts").cast(pa.int64()).to_pylist()]
        at = 0
        while at < len(days):
            end = bisect_right(days, days[at])
            if days[at] != self._day or self._file is None:
                yield from self.finish()
                self._day, self._file = days[at], _OpenPart(self._staging, self._topic, _day_text(days[at]))
            self._file.add(batch.slice(at, end - at))
            at = end

    def finish(self) -> Iterator[Staged]:
        if self._file is not None:
            yield self._file.finish()
        self._file = None


def _day_text(day: int) -> str:
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + day * _DAY:%Y-%m-%d}"


class _OpenPart:
    def __init__(self, staging: Path, topic: str, day: str) -> None:
        import pyarrow.parquet as pq

        self._topic, self._day = topic, day
        # A name of its own for each attempt: a task that runs twice never writes into its twin's file.
        self._path = staging / f"{secrets.token_hex(8)}.parquet"
        self._writer = pq.ParquetWriter(self._path, file_schema(), compression="zstd", store_schema=False)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._count = self._first = self._last = self._last_ts = 0

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        schema = file_schema()
        columns = [batch.column(f.name).cast(f.type) for f in schema]
        seqs = columns[0]
        self._first = self._first or seqs[0].as_py()
        self._last, self._last_ts = seqs[-1].as_py(), columns[1][-1].cast(pa.int64()).as_py()
        self._count += len(seqs)
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        self._waiting_rows += len(seqs)
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def finish(self) -> Staged:
        self._write_group()
        self._writer.close()
        sync_file(self._path)
        size, digest = checksum(self._path)
        return Staged(
            self._path.name,
            self._topic,
            self._day,
            self._first,
            self._last,
            self._last_ts,
            self._count,
            size,
            digest,
        )


def sync_file(path: Path) -> None:
    file = RealFs().open(path)
    try:
        file.sync()
    finally:
        file.close()


def checksum(path: Path) -> tuple[int, str]:
    """Size and SHA-256."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def check_part(path: Path, size: int, sha256: str) -> None:
    """Is the file what the manifest says it is?"""
    check_size(path, size)
    if checksum(path)[1] != sha256:
        raise StorageCorrupt(f"{path} fails the checksum that the archive's manifest has for it")


def check_size(path: Path, size: int) -> None:
    if not path.exists():
        raise StorageCorrupt(f"{path} is missing, but the archive's manifest lists it")
    if os.path.getsize(path) != size:
        raise StorageCorrupt(f"{path} has {os.path.getsize(path)} bytes, the archive's manifest says {size}")


def read_rows(path: Path) -> Iterator[Row]:
    """The file's records in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=10_000):
            columns = [
                batch.column("seq").to_pylist(),
                batch.column("ts").cast(pa.int64()).to_pylist(),
                # Labels may be bytes that are no text: they pass as bytes.
                *(batch.column(name).cast(pa.binary()).to_pylist() for name in ("node", "tag", "meta", "data")),
            ]
            yield from zip(*columns, strict=True)


def live_rows(batches: Iterable[Batch]) -> Iterator[Row]:
    """What the daemon serves, in the same form."""
    for batch in batches:
        for record in batch:
            data, tag, node, meta = record.raw
            yield record.seq, record.ts, node, tag, meta, data
