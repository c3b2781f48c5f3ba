"""Files that become records: parts of an archive, or Parquet, JSON lines and CSV of anybody's. Promise: the same file
gives the same records in the same order each time, cut into the same batches.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgpack

from topicd.client.blocking.numbered_writer import Raw
from topicd.client.core.encode import packed_meta
from topicd.errors import InvalidRequest
from topicd.limits import MIB
from topicd.spark import metas
from topicd.spark.pipelines.parts import checksum, read_rows

ARCHIVE, PARQUET, JSON, CSV = "archive", "parquet", "json", "csv"
FORMATS = (PARQUET, JSON, CSV)
BATCH_RECORDS = 5_000
BATCH_BYTES = 4 * MIB
_SUFFIXES = {PARQUET: (".parquet",), JSON: (".json", ".jsonl", ".ndjson"), CSV: (".csv",)}


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column holds what. Without the data column, the rest of the row becomes a JSON object."""

    data: str = "data"
    tag: str = "tag"
    node: str = "node"
    meta: str = "meta"
    topic: str | None = None

    def others(self) -> set[str | None]:
        return {self.tag, self.node, self.meta, self.topic}


@dataclass(frozen=True, slots=True)
class InputFile:
    path: Path
    key: str  # what it is known by: a place in an archive, or its content
    format: str
    columns: Columns = field(default_factory=Columns)
    topic: str | None = None  # only rows whose topic column says so

    def records(self) -> Iterator[Raw]:
        if self.format == ARCHIVE:
            for _, _, node, tag, meta, data in read_rows(self.path):
                yield data, tag, node, meta
            return
        for number, row in enumerate(rows(self.path, self.format), 1):
            if self.topic is not None and topic_of(row, self.columns) != self.topic:
                continue
            try:
                yield raw_record(row, self.columns)
            except (TypeError, ValueError, InvalidRequest) as exc:
                raise InvalidRequest(f"{self.path}: row {number} cannot be a record: {exc}") from None

    def batches(self) -> Iterator[list[Raw]]:
        """Cut by count and size alone, so that a later run comes to the same ones."""
        batch: list[Raw] = []
        size = 0
        for record in self.records():
            weight = sum(len(piece) for piece in record if piece is not None)
            if batch and (len(batch) >= BATCH_RECORDS or size + weight > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += weight
        if batch:
            yield batch


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A foreign file, looked at once."""

    path: Path
    sha256: str
    counts: dict[str | None, int]  # records by topic; None: no topic column


def survey(path: Path, format: str, columns: Columns) -> Surveyed:
    if columns.topic is None:
        counts: Counter[str | None] = Counter({None: sum(1 for _ in rows(path, format))})
    else:
        counts = Counter(topic_of(row, columns) for row in rows(path, format))
    return Surveyed(path, checksum(path)[1], dict(counts))


def topic_of(row: dict[str, Any], columns: Columns) -> str:
    found = row.get(columns.topic or "")
    if not isinstance(found, str) or not found:
        raise InvalidRequest(f"column {columns.topic!r} must name a topic in every row, found {found!r:.100}")
    return found


def find_files(source: Path, format: str) -> list[Path]:
    """The file itself, or all below the directory that look like it, by name; hidden ones are passed over."""
    if source.is_file():
        return [source.absolute()]
    endings = (*_SUFFIXES[format], *(f"{suffix}.gz" for suffix in _SUFFIXES[format] if format != PARQUET))
    found = [
        path.absolute()
        for path in sorted(source.rglob("*"))
        if path.name.endswith(endings) and not any(p[0] in "._" for p in path.relative_to(source).parts)
    ]
    if not found:
        raise InvalidRequest(f"{source} has no files that end in {', '.join(endings)}")
    return found


def guess_format(source: Path) -> str | None:
    """By the name of a file, or of the first in a directory."""
    for name in [source.name] if source.is_file() else sorted(path.name for path in source.rglob("*")):
        for format, suffixes in _SUFFIXES.items():
            if name.removesuffix(".gz").endswith(suffixes) and name[0] not in "._":
                return format
    return None


# ---- rows ----


def rows(path: Path, format: str) -> Iterator[dict[str, Any]]:
    if format == PARQUET:
        yield from _parquet_rows(path)
        return
    with open_text(path) as file:
        if format == CSV:
            yield from csv.DictReader(file)
        else:
            yield from _json_rows(path, file)


def open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=10_000):
            yield from batch.to_pylist()


def _json_rows(path: Path, file: IO[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise InvalidRequest(f"{path}: line {number} is no JSON: {exc}") from None
        if not isinstance(row, dict):
            raise InvalidRequest(f"{path}: line {number} is no JSON object")
        # What `topicctl read --json` prints where records are gone.
        if set(row) != {"topic", "gap"}:
            yield row


# ---- a row as a record ----


def raw_record(row: dict[str, Any], columns: Columns) -> Raw:
    if columns.data in row:
        data = _data(row[columns.data])
    else:
        data = _compact({name: value for name, value in row.items() if name not in columns.others()})
    return data, _label(row.get(columns.tag)), _label(row.get(columns.node)), _meta(row.get(columns.meta))


def _data(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return b"" if value is None else _compact(value)


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str).encode()


def _label(value: Any) -> bytes | None:
    """Empty means none, as everywhere."""
    if value in (None, "", b""):
        return None
    return value if isinstance(value, bytes) else _data(value)


def _meta(value: Any) -> bytes | None:
    """A map, JSON text of one as Spark reads it, or msgpack bytes."""
    if isinstance(value, bytes):
        value = msgpack.unpackb(value, strict_map_key=False)
    elif isinstance(value, str):
        return metas.from_json(value) if value else None
    elif isinstance(value, list):  # an Arrow map
        value = dict(value)
    return packed_meta(value)
