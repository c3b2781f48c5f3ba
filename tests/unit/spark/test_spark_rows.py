"""Arrow rows become the frames of their topics, whatever the buffers look like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgpack
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql")

from topicd._native import core  # noqa: E402
from topicd.errors import InvalidRequest, RecordTooLarge  # noqa: E402
from topicd.limits import MIB  # noqa: E402
from topicd.spark import rows  # noqa: E402
from topicd.spark.rows import lay_out  # noqa: E402


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def laid(batches: Iterable[Any], topic: str | None = None) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """(topic, [(data, tag, node, meta)]) of each batch that would be staged."""
    found = []
    for name, frames, count in lay_out(batches, topic):
        decoded = core.decode_frames(frames, 0, len(frames))
        assert len(decoded) == count
        found.append((name, [(data, tag, node, meta) for _, _, node, tag, meta, data in decoded]))
    return found


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_binary(), pa.large_string()])
def test_text_and_bytes_of_any_width_are_data(kind: Any) -> None:
    values = pa.array(["a", "", "ccc"]).cast(kind)
    assert laid([batch(data=values)], "t") == [
        ("t", [(b"a", None, None, None), (b"", None, None, None), (b"ccc",) + (None,) * 3])
    ]


def test_a_slice_is_read_where_it_begins() -> None:
    whole = batch(data=[b"%d" % n for n in range(40)], tag=[None if n % 3 else f"t{n}" for n in range(40)])
    [(_, found)] = laid([whole.slice(13, 20)], "t")
    assert found == [(b"%d" % n, None if n % 3 else b"t%d" % n, None, None) for n in range(13, 33)]


def test_empty_labels_are_none_and_meta_has_three_forms() -> None:
    packed = msgpack.packb({"a": "1"})
    kinds = [
        pa.array(['{"a":"1"}', None]),
        pa.array([packed, None]),
        pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
    ]
    for meta in kinds:
        [(_, found)] = laid([batch(data=["x", "y"], node=["", "n"], tag=[None, ""], meta=meta)], "t")
        assert found == [(b"x", None, None, packed), (b"y", None, b"n", None)]


def test_rows_are_gathered_by_topic_in_their_order() -> None:
    batches = [
        batch(data=[b"%d" % n for n in range(start, start + 1_000)], topic=[f"t{n % 3}" for n in range(1_000)])
        for start in range(0, 40_000, 1_000)
    ]
    found = laid(batches)
    assert [len(records) for _, records in found] == [10_000] * 3 + [3_360, 3_320, 3_320]
    for topic in ("t0", "t1", "t2"):
        mine = [int(record[0]) for name, records in found if name == topic for record in records]
        assert mine == [n for n in range(40_000) if f"t{n % 1_000 % 3}" == topic]


def test_rows_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_HELD_BYTES", 10_000)
    batches = [batch(data=[b"x" * 1_000] * 8, topic=[f"{n}.{row}" for row in range(8)]) for n in range(6)]
    assert len(laid(batches)) == 48


def test_what_is_too_large_for_one_batch_is_halved() -> None:
    found = laid([batch(data=[b"x" * (MIB - 10)] * 70)], "t")
    assert [len(records) for _, records in found] == [35, 35]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"data": [b"x", None]}, InvalidRequest, "record 1: data is null"),
        ({"data": [b"x"], "tag": ["t" * 300]}, RecordTooLarge, "tag has 300 bytes"),
        ({"data": [b"x"], "meta": ["[1]"]}, InvalidRequest, "must be an object"),
        ({"data": [b"x"], "meta": [b"\xc1"]}, InvalidRequest, "not msgpack"),
    ],
)
def test_a_row_that_cannot_be_a_record_is_refused(
    columns: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        laid([batch(**columns)], "t")


@pytest.mark.parametrize(("topic", "message"), [(None, "no topic"), ("", "not allowed"), ("topicd.x", "topicd's own")])
def test_a_topic_that_cannot_be_written_to_is_refused(topic: str | None, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        laid([batch(data=[b"x"], topic=pa.array([topic], pa.string()))])
