"""Arrow rows as frames, by destination. Promise: rows of one topic keep their order, nothing is copied but into the
frames, and a row that cannot be a record is refused with what is wrong with it.

| column | type | |
|---|---|---|
| data | binary or string | needed; null is refused |
| topic | string | needed unless the option topic names one for all |
| tag, node | string or binary | null or empty: none |
| meta | string (a JSON object, see `metas`), binary (msgpack) or map<string,string> (texts) | null: none |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from topicd._native import core
from topicd._native.interface import Values
from topicd.client.staging.writing import Laid, check_destination
from topicd.errors import BatchTooLarge, InvalidRequest
from topicd.frames import codec_error
from topicd.limits import MAX_BATCH_RECORDS, MIB
from topicd.spark import metas

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch
    from pyspark.sql.types import StructType

_TYPES: dict[str, tuple[str, ...]] = {
    "data": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string", "binary"),
    "node": ("string", "binary"),
    "meta": ("map<string,string>", "string", "binary"),
}
_PASSED_OVER = ("seq", "ts")  # the daemon gives new ones; so what was read can be written
_HELD_BYTES = 32 * MIB  # of rows that wait for more of their topic


def check_columns(schema: StructType, topic: str | None) -> None:
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "data" not in kinds:
        raise InvalidRequest(
            f"a column data is needed, these are there: {', '.join(kinds) or 'none'}; "
            "to_json(struct(*)) makes one of many"
        )
    if topic is None and "topic" not in kinds:
        raise InvalidRequest("where to? A column topic or the option topic is needed")
    for name, kind in kinds.items():
        if name in _PASSED_OVER:
            continue
        if name not in _TYPES:
            allowed = ", ".join((*_TYPES, *_PASSED_OVER))
            raise InvalidRequest(f"column {name!r:.100} has no place in a record; there are {allowed}")
        if kind not in _TYPES[name]:
            raise InvalidRequest(f"column {name} cannot be {kind}; it can be {' or '.join(_TYPES[name])}")


def lay_out(batches: Iterable[RecordBatch], topic: str | None) -> Iterator[Laid]:
    """One destination for all rows, or that of each row."""
    if topic is not None:
        for batch in batches:
            yield from _encoded(topic, batch)
        return
    yield from _Sorter().sorted(batches)


class _Sorter:
    """Rows by topic: they wait until they are a whole batch."""

    def __init__(self) -> None:
        self._held: dict[str, list[RecordBatch]] = {}
        self._rows: dict[str, int] = {}
        self._bytes = 0

    def sorted(self, batches: Iterable[RecordBatch]) -> Iterator[Laid]:
        for batch in batches:
            for topic, rows in _by_topic(batch):
                self._hold(check_destination(topic), rows)
                if self._rows[topic] >= MAX_BATCH_RECORDS:
                    held = self._release(topic)
                    whole = held.num_rows // MAX_BATCH_RECORDS * MAX_BATCH_RECORDS
                    yield from _encoded(topic, held.slice(0, whole))
                    self._hold(topic, held.slice(whole))
            if self._bytes >= _HELD_BYTES:
                yield from self._all()
        yield from self._all()

    def _hold(self, topic: str, rows: RecordBatch) -> None:
        self._held.setdefault(topic, []).append(rows)
        self._rows[topic] = self._rows.get(topic, 0) + rows.num_rows
        self._bytes += rows.nbytes

    def _release(self, topic: str) -> RecordBatch:
        import pyarrow as pa

        held, _ = self._held.pop(topic), self._rows.pop(topic)
        self._bytes -= sum(rows.nbytes for rows in held)
        return held[0] if len(held) == 1 else pa.concat_batches(held)

    def _all(self) -> Iterator[Laid]:
        for topic in list(self._held):
            yield from _encoded(topic, self._release(topic))


def _by_topic(batch: RecordBatch) -> Iterator[tuple[str, RecordBatch]]:
    import pyarrow.compute as pc

    column = batch.column("topic")
    if column.null_count:
        raise InvalidRequest("a row has no topic: its column topic is null")
    names = pc.unique(column).to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    for name in names:
        yield name, batch.filter(pc.equal(column, name))


def _encoded(topic: str, batch: RecordBatch) -> Iterator[Laid]:
    columns = {name: batch.column(name) for name in batch.schema.names if name in _TYPES}
    values = {name: _packed(array) if name == "meta" else _values(array) for name, array in columns.items()}
    for start in range(0, batch.num_rows, MAX_BATCH_RECORDS):
        yield from _pieces(topic, values, start, min(MAX_BATCH_RECORDS, batch.num_rows - start))


def _pieces(topic: str, values: dict[str, Values], start: int, count: int) -> Iterator[Laid]:
    """As one batch, or in halves if it would be too large."""
    columns = [_from(values.get(name), start) for name in ("data", "tag", "node", "meta")]
    try:
        frames = core.encode_columns(count, *columns)  # type: ignore[arg-type]
    except ValueError as exc:
        error = codec_error(exc)
        if not isinstance(error, BatchTooLarge) or count == 1:
            raise error from None
    else:
        yield topic, frames, count
        return
    yield from _pieces(topic, values, start, count // 2)
    yield from _pieces(topic, values, start + count // 2, count - count // 2)


def _from(values: Values | None, start: int) -> Values | None:
    if values is None:
        return None
    valid, offsets, content, first = values
    return valid, offsets, content, first + start


def _values(array: Array) -> Values:
    import pyarrow as pa

    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        array = array.cast(pa.binary())  # large or view types
    valid, offsets, content = array.buffers()
    if offsets is None:
        return None, bytes(4), b"", array.offset
    return valid if array.null_count else None, offsets, content or b"", array.offset


def _packed(array: Array) -> Values:
    """Meta as it is stored; only msgpack needs no look at each row."""
    import pyarrow as pa

    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        pack: Any = metas.from_pairs if pa.types.is_map(array.type) else metas.from_json
        found = (None if value is None else pack(value) for value in array.to_pylist())
        array = pa.array(found, pa.binary())
    return _values(array)
