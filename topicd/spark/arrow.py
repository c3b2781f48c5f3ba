"""From frames to Arrow batches of the wanted schema. Promise: no Python loop over records; the buffers come from the
native core as they are. (Exceptions: meta as map or JSON, each different one unpacked once per batch, and values with a
schema file, which are decoded one by one.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_schema

from topicd._native.interface import Columns
from topicd.client.core.batch import Batch
from topicd.errors import InvalidRequest
from topicd.limits import MIB
from topicd.spark import metas
from topicd.spark.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from topicd.spark.options import ReadOptions

_MS = pa.timestamp("ms", tz="UTC")
_ROWS = 10_000  # of an Arrow batch, or so many bytes: then it goes
_BYTES = 4 * MIB


def joined(batches: Iterable[Any]) -> Iterator[Any]:
    """The same rows in fewer Arrow batches: each has its price on the way to the JVM."""
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= _ROWS or sum(one.nbytes for one in held) >= _BYTES:
            yield _one(held)
            held = []
    if held:
        yield _one(held)


def _one(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class Shape:
    """What a query wants of a batch."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._parsed = options.parses
        self._decode = options.codec.decoder() if options.codec is not None else None
        self._only, self._never = (
            pa.array(nodes, pa.string()) if nodes else None for nodes in (options.nodes, options.exclude_nodes)
        )

    def record_batch(self, batch: Batch) -> Any:
        found = batch.columns()
        arrays = [self._column(field, batch.topic, found) for field in self._schema]
        made = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._only is not None:
            made = made.filter(pc.is_in(_labels(found, "node"), self._only))
        elif self._never is not None:
            made = made.filter(pc.invert(pc.is_in(_labels(found, "node"), self._never)))
        return made

    def _column(self, field: Any, topic: str, found: Columns) -> Any:
        if field.name == "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), found.count)
        if field.name == "data":
            return self._data(field.type, found)
        return _COLUMNS[field.name](field.type, found)

    def _data(self, kind: Any, found: Columns) -> Any:
        plain = kind if kind in (pa.binary(), pa.string()) and not self._parsed else pa.binary()
        buffers = [None, pa.py_buffer(found.data_offsets), pa.py_buffer(found.data)]
        data = pa.Array.from_buffers(plain, found.count, buffers)
        if plain == kind and not self._parsed:
            return data
        return parse_json(data, kind) if self._decode is None else decoded(data, kind, self._decode)


def _seqs(kind: Any, found: Columns) -> Any:
    return pa.Array.from_buffers(kind, found.count, [None, pa.py_buffer(found.seq)])


def _times(kind: Any, found: Columns) -> Any:
    return pa.Array.from_buffers(_MS, found.count, [None, pa.py_buffer(found.ts_ms)]).cast(kind)


def _labels(found: Columns, name: str, kind: Any = None) -> Any:
    parts = (getattr(found, name + suffix) for suffix in ("_valid", "_offsets", ""))
    return pa.Array.from_buffers(kind or pa.string(), found.count, [pa.py_buffer(part) for part in parts])


def _metas(kind: Any, found: Columns) -> Any:
    stored = _labels(found, "meta", pa.binary())
    if kind == pa.binary():
        return stored
    shown: Any = metas.as_json if kind == pa.string() else metas.as_pairs
    coded = stored.dictionary_encode()
    values = pa.array([shown(packed) for packed in coded.dictionary.to_pylist()], kind)
    return values.take(coded.indices)


_COLUMNS: dict[str, Callable[[Any, Columns], Any]] = {
    "seq": _seqs,
    "ts": _times,
    "node": lambda kind, found: _labels(found, "node", kind),
    "tag": lambda kind, found: _labels(found, "tag", kind),
    "meta": _metas,
}


# ---- values ----


def decoded(data: Any, kind: Any, decode: Callable[[bytes], Any]) -> Any:
    """Values of a schema file."""
    try:
        return pa.array(map(decode, data.to_pylist()), kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as exc:
        raise InvalidRequest(
            f"column data cannot be {kind}: the values of the schema file do not fit ({exc})"
        ) from None


def parse_json(data: Any, kind: Any) -> Any:
    """The values of JSON texts; null where a text is none or does not fit the type, as Spark's from_json does."""
    if not len(data):
        return pa.array([], kind)
    parsed = _parsed(data, kind)
    if parsed is not None:
        return parsed
    if len(data) == 1:
        return pa.nulls(1, kind)
    # Somewhere is one that does not fit: halves until it stands alone.
    half = len(data) // 2
    return pa.concat_arrays([parse_json(data[:half], kind), parse_json(data[half:], kind)])


def _parsed(data: Any, kind: Any) -> Any:
    """All of them at once, or None.

    Each text becomes the member of an object on a line of its own. Whatever the text, it cannot swallow the end of its
    line (a raw newline ends no string and separates no members), so as many rows as texts means each in its place.
    """
    lines = pc.binary_join_element_wise(b'{"v":', data, b"}\n", b"")
    text = lines.buffers()[2]
    field = pa.field("v", kind)
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([field]), newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table.column("v").combine_chunks() if table.num_rows == len(data) else None
