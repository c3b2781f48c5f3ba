"""Frames as Arrow batches, column by column, against the client's own records."""

from __future__ import annotations

import json
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from topicd._native import core  # noqa: E402
from topicd.client.core.batch import Batch  # noqa: E402
from topicd.client.core.encode import encode_many  # noqa: E402
from topicd.errors import InvalidRequest  # noqa: E402
from topicd.ipc.protocol.codec import Fetched  # noqa: E402
from topicd.spark.arrow import Shape, joined, parse_json  # noqa: E402
from topicd.spark.options import ReadOptions  # noqa: E402

T0 = 1_700_000_000_123
KINDS = {
    "topic": types.StringType(),
    "seq": types.LongType(),
    "ts": types.TimestampType(),
    "node": types.StringType(),
    "tag": types.StringType(),
    "meta": types.MapType(types.StringType(), types.StringType()),
    "data": types.BinaryType(),
}
RECORDS = [
    (b"plain", None, None, None),
    (b"", "t", "n1", {"k": "v"}),
    (b"\xff\x00", "tag", "n2", {"n": 1, "b": b"\x01", "none": None, "list": [1, "a"]}),
    (b"{}", None, "n1", {"k": "v"}),
]


def batch(records: list[Any]) -> Batch:
    ((frames, count),) = encode_many(records, None, None, bytes)
    core.stamp_frames(frames, 0, len(frames), 7, 1, T0, False)
    return Batch("orders", Fetched(7, count, count, 1, count, True, None, None, frames, 0, len(frames)))


def shaped(records: list[Any], *columns: tuple[str, Any], **options: str) -> Any:
    schema = types.StructType([types.StructField(name, kind) for name, kind in columns])
    return Shape(schema, ReadOptions.parse({"topic": "orders", **options})).record_batch(batch(records))


def test_every_column_says_what_the_record_says() -> None:
    made = shaped(RECORDS, *KINDS.items())
    expected = batch(RECORDS).records
    rows = made.to_pylist()
    assert [row["data"] for row in rows] == [record.data for record in expected]
    assert [(row["topic"], row["seq"], row["tag"], row["node"]) for row in rows] == [
        ("orders", record.seq, record.tag, record.node) for record in expected
    ]
    assert [row["ts"] for row in rows] == [record.time for record in expected]
    assert [row["meta"] and dict(row["meta"]) for row in rows] == [
        None,
        {"k": "v"},
        {"n": "1", "b": '{"$binary":"AQ=="}', "none": None, "list": '[1,"a"]'},
        {"k": "v"},
    ]


def test_columns_come_as_chosen_and_in_the_order_wanted() -> None:
    made = shaped(RECORDS, ("tag", KINDS["tag"]), ("seq", KINDS["seq"]))
    assert made.schema.names == ["tag", "seq"]
    assert made.column("seq").to_pylist() == [1, 2, 3, 4]


def test_times_without_a_zone_are_utc() -> None:
    (found, *_) = shaped(RECORDS, ("ts", types.TimestampNTZType())).column("ts").to_pylist()
    assert found == batch(RECORDS).records[0].time.replace(tzinfo=None)


def test_meta_as_stored_loses_nothing_and_as_json_is_text() -> None:
    packed = shaped(RECORDS, ("meta", types.BinaryType())).column("meta").to_pylist()
    assert packed == [record.raw[3] for record in batch(RECORDS).records]
    told = shaped(RECORDS, ("meta", types.StringType())).column("meta").to_pylist()
    assert told[0] is None
    assert json.loads(told[2]) == {"n": 1, "b": {"$binary": "AQ=="}, "none": None, "list": [1, "a"]}


@pytest.mark.parametrize(
    ("options", "seqs"),
    [({"node": "n1"}, [2, 4]), ({"node": "n1,n2"}, [2, 3, 4]), ({"excludeNode": "n1"}, [1, 3]), ({"node": "x"}, [])],
)
def test_nodes_are_chosen_or_left_out(options: dict[str, str], seqs: list[int]) -> None:
    assert shaped(RECORDS, ("seq", KINDS["seq"]), **options).column("seq").to_pylist() == seqs


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ([("colour", types.StringType())], {}, "topics have no column 'colour'; there are topic, seq"),
        ([("seq", types.StringType())], {}, "column seq cannot be string; it can be bigint"),
        ([("data", types.LongType())], {}, "column data cannot be bigint; it can be binary or string"),
        ([("data", types.BinaryType())], {"valueFormat": "string"}, "column data cannot be binary; it can be string"),
        ([("seq", types.LongType()), ("seq", types.LongType())], {}, "the schema must name columns once each"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(columns: Any, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        shaped(RECORDS, *columns, **options)
    assert said in raised.value.message


# ---- JSON ----

STRUCT = pa.struct([("id", pa.int32()), ("name", pa.string())])
TEXTS: list[tuple[bytes, Any]] = [
    (b'{"id":1,"name":"a"}', {"id": 1, "name": "a"}),
    (b' {"id" : 2 , "more": [1, {"x": 2}]}\n', {"id": 2, "name": None}),
    (b"{}", {"id": None, "name": None}),
    (b"null", None),
    (b'{"name":"\\n\\"}"}', {"id": None, "name": '\n"}'}),
]
BROKEN = [
    b"",
    b" ",
    b"{",
    b"}",
    b"{}{}",
    b'{"id":',
    b"1}",
    b'{"id":"x"}',
    b"[1]",
    b'1}\n{"v":2',
    b'"',
    b"\xff",
    b'{"id":1}}',
    b'{}}\n{"v":{}',
]


def test_json_texts_become_rows() -> None:
    found = parse_json(pa.array([text for text, _ in TEXTS], pa.binary()), STRUCT)
    assert found.type == STRUCT
    assert found.to_pylist() == [row for _, row in TEXTS]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("other", [b'{"id":3}', b"{}{}", b"", b'{"id":', b"1}"])
def test_a_text_that_does_not_fit_is_null_and_moves_no_other(broken: bytes, other: bytes) -> None:
    good = b'{"id":9,"name":"z"}'
    found = parse_json(pa.array([good, broken, other, good], pa.binary()), STRUCT).to_pylist()
    third = {"id": 3, "name": None} if other == b'{"id":3}' else None
    assert found == [{"id": 9, "name": "z"}, None, third, {"id": 9, "name": "z"}]


def test_no_texts_are_no_rows() -> None:
    assert len(parse_json(pa.array([], pa.binary()), STRUCT)) == 0


def test_small_batches_are_joined_and_large_ones_go_as_they_are() -> None:
    kinds = [(name, KINDS[name]) for name in ("topic", "seq", "meta", "data")]
    small, large = shaped(RECORDS, *kinds), shaped([(bytes(1 << 20), None, None, None)] * 5, *kinds)
    found = list(joined([small, small, small, large, small]))
    assert [one.num_rows for one in found] == [3 * len(RECORDS) + 5, len(RECORDS)]
    rows = [row for one in (small, small, small, large, small) for row in one.to_pylist()]
    assert [row for one in found for row in one.to_pylist()] == rows
    assert list(joined([large])) == [large]
    assert list(joined([])) == []
