"""Records as they came, decoded only when looked at. Promise: a batch owns its bytes; views of it stay
valid."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from topicd._native import core
from topicd._native.interface import Columns
from topicd.client.core.decode import Decoder
from topicd.client.core.records import Gap, Record, made_of
from topicd.errors import FormatError
from topicd.ipc.protocol.codec import Fetched
from topicd.ipc.protocol.selecting import select
from topicd.model import Tombstone


class Batch:
    """Neighbouring records of one topic.

    `payloads()` is the fastest way to the data, iteration gives `Record` objects, `to_arrow()` a table.
    """

    def __init__(self, topic: str, fetched: Fetched) -> None:
        self.topic = topic
        self._fetched = fetched
        self._decode: Decoder | None = None

    def using(self, decode: Decoder | None) -> Batch:
        """The same; `value` of its records is what this makes of the data."""
        self._decode = decode
        return self

    @property
    def topic_id(self) -> int:
        return self._fetched.topic_id

    @property
    def next_from_seq(self) -> int:
        """The last seq examined: where the next read goes on."""
        return self._fetched.next_from_seq

    @property
    def head_seq(self) -> int:
        return self._fetched.head_seq

    @property
    def earliest_seq(self) -> int:
        return self._fetched.earliest_seq

    @property
    def caught_up(self) -> bool:
        """Nothing lay behind what was examined."""
        return self._fetched.caught_up

    @property
    def lag(self) -> int:
        """Seqs between what was examined and the head."""
        return max(0, self._fetched.head_seq - self._fetched.next_from_seq)

    @property
    def tombstone(self) -> Tombstone | None:
        """What cap or TTL removed before this reader came."""
        return self._fetched.tombstone

    @property
    def gap(self) -> Gap | None:
        found = self._fetched.tombstone
        return None if found is None else Gap(self.topic, found)

    @property
    def performance(self) -> dict[str, float] | None:
        return self._fetched.performance

    @property
    def frames(self) -> memoryview:
        """The records in their documented layout (docs/formats.md)."""
        return memoryview(self._fetched.buffer)[self._fetched.start : self._fetched.end]

    @property
    def nbytes(self) -> int:
        return self._fetched.end - self._fetched.start

    def __len__(self) -> int:
        return self._fetched.records

    def without_gap(self) -> Batch:
        """The same for who does not miss what is gone."""
        return Batch(self.topic, self._fetched._replace(tombstone=None)).using(self._decode)

    def up_to(self, seq: int) -> Batch:
        """The part of it with seqs up to this one."""
        found = self._fetched
        if found.next_from_seq <= seq:
            return self
        try:
            chosen = select(found.buffer, found.start, found.end, up_to_seq=seq)
        except ValueError as exc:
            raise _malformed(exc) from None
        end = chosen.ranges[-1][1] if chosen.ranges else found.start
        return Batch(self.topic, found._replace(next_from_seq=seq, records=chosen.count, end=end)).using(self._decode)

    def payloads(self) -> list[bytes]:
        """The data of every record, nothing else."""
        found = self._fetched
        try:
            return core.payloads(found.buffer, found.start, found.end)
        except ValueError as exc:
            raise _malformed(exc) from None

    @cached_property
    def data(self) -> list[bytes]:
        """`payloads()`, kept: for `batch.data[i]`."""
        return self.payloads()

    @cached_property
    def records(self) -> list[Record]:
        found = self._fetched
        try:
            decoded = core.decode_frames(found.buffer, found.start, found.end)
        except ValueError as exc:
            raise _malformed(exc) from None
        return made_of(self.topic, decoded, self._decode)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

    def columns(self) -> Columns:
        """Arrow-ready buffers of seq, ts, data, tag, node and meta."""
        found = self._fetched
        try:
            return core.columns(found.buffer, found.start, found.end)
        except ValueError as exc:
            raise _malformed(exc) from None

    def to_arrow(self) -> Any:
        """A pyarrow.RecordBatch: seq, ts, data, tag, node, meta (msgpack). Needs pyarrow."""
        import pyarrow as pa

        c = self.columns()
        n, buffer = c.count, pa.py_buffer
        stamp = pa.timestamp("ms", tz="UTC")
        arrays = {
            "seq": pa.Array.from_buffers(pa.int64(), n, [None, buffer(c.seq)]),
            "ts": pa.Array.from_buffers(stamp, n, [None, buffer(c.ts_ms)]),
            "data": pa.Array.from_buffers(pa.binary(), n, [None, buffer(c.data_offsets), buffer(c.data)]),
        }
        for name, kind in (("tag", pa.string()), ("node", pa.string()), ("meta", pa.binary())):
            parts = (getattr(c, name + suffix) for suffix in ("_valid", "_offsets", ""))
            arrays[name] = pa.Array.from_buffers(kind, n, [buffer(part) for part in parts])
        return pa.RecordBatch.from_pydict(arrays)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}, {len(self)} records, next_from_seq={self.next_from_seq})"


class ReadResult(Batch):
    """The answer to `fetch`: a batch, and where the topic stood."""


def _malformed(exc: ValueError) -> FormatError:
    return FormatError(f"the daemon sent records that are malformed: {exc.args[-1]}")
