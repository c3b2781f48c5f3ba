"""Avro and Protobuf values: what a schema file describes arrives with its types, and what it does not is null."""

from __future__ import annotations

import io
import json
import pickle
import sys
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql")

from topicd.errors import InvalidRequest  # noqa: E402
from topicd.spark.arrow import decoded  # noqa: E402
from topicd.spark.formats.codec import Codec  # noqa: E402
from topicd.spark.formats.loading import load  # noqa: E402

NOW = datetime(2026, 1, 31, 12, 0, 0, 123000, UTC)


def codec(tmp_path: Path, name: str, content: bytes, message: str | None = None) -> Codec:
    path = tmp_path / "schema"
    path.write_bytes(content)
    found = load(name, str(path), message)
    path.unlink()  # executors do not have it
    again: Codec = pickle.loads(pickle.dumps(found))
    return again


# ---- Avro ----

LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "paid", "type": "boolean"},
        {"name": "total", "type": logical("bytes", "decimal", precision=10, scale=2)},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "day", "type": logical("int", "date")},
        {"name": "at", "type": ["null", logical("long", "timestamp-millis")]},
        {"name": "local", "type": logical("long", "local-timestamp-micros")},
        {"name": "time", "type": logical("int", "time-millis")},
        {"name": "key", "type": logical("string", "uuid")},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "was", "type": "State"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "best", "type": ["null", "Line"]},
        {"name": "by", "type": {"type": "map", "values": "Line"}},
        {"name": "number", "type": ["int", "long"]},
        {"name": "share", "type": ["null", "float", "double"]},
    ],
}
ORDER_DDL = (
    "struct<`id`: bigint, `paid`: boolean, `total`: decimal(10, 2), `note`: string, `day`: date, `at`: timestamp_ltz, "
    "`local`: timestamp_ntz, `time`: int, `key`: string, `state`: string, `was`: string, `hash`: binary, "
    "`lines`: array<struct<`sku`: string, `n`: int>>, `best`: struct<`sku`: string, `n`: int>, "
    "`by`: map<string, struct<`sku`: string, `n`: int>>, `number`: bigint, `share`: double>"
)
KEY = uuid.UUID(int=7)
VALUE: dict[str, Any] = {
    "id": 2**40,
    "paid": True,
    "total": Decimal("12.50"),
    "note": None,
    "day": date(2026, 1, 31),
    "at": NOW,
    "local": NOW.replace(tzinfo=None),
    "time": 1234,
    "key": KEY,
    "state": "NEW",
    "was": "DONE",
    "hash": b"ab",
    "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
    "best": None,
    "by": {"x": {"sku": "c", "n": 3}},
    "number": 2**40,
    "share": 0.5,
}


def avro(value: Any, schema: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def test_avro_values_arrive_with_their_types(tmp_path: Path) -> None:
    found = codec(tmp_path, "avro", json.dumps(ORDER).encode())
    assert found.ddl() == ORDER_DDL
    plain = {**VALUE, "time": 1234}
    stored = avro({**plain, "time": 1234}, _plain_time(ORDER))
    line = pa.struct([("sku", pa.string()), ("n", pa.int32())])
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("total", pa.decimal128(10, 2)),
            ("note", pa.string()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("time", pa.int32()),
            ("key", pa.string()),
            ("was", pa.string()),
            ("hash", pa.binary()),
            ("lines", pa.list_(line)),
            ("best", line),
            ("by", pa.map_(pa.string(), line)),
            ("number", pa.int64()),
        ]
    )
    data = pa.array([stored, b"", stored[:-3], stored + b"\x00", b"\xff" * 40], pa.binary())
    rows = decoded(data, kind, found.decoder()).to_pylist()
    names = [field.name for field in kind]
    expected = {**{name: VALUE[name] for name in names}, "key": str(KEY), "by": [("x", {"sku": "c", "n": 3})]}
    assert rows == [expected, None, None, None, None]


def _plain_time(schema: dict[str, Any]) -> dict[str, Any]:
    fields = [{**field, "type": "int"} if field["name"] == "time" else field for field in schema["fields"]]
    return {**schema, "fields": fields}


def test_avro_need_not_be_a_record(tmp_path: Path) -> None:
    found = codec(tmp_path, "avro", b'{"type": "array", "items": "string"}')
    assert found.ddl() == "array<string>"
    assert found.decoder()(avro(["a", "b"], {"type": "array", "items": "string"})) == ["a", "b"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "is not an Avro schema"),
        ('{"type": "record", "name": "X"}', "record X has no fields"),
        ('{"type": "unheard"}', "is not an Avro schema"),
        ('["int", "string"]', "a union may be of one type and null"),
        ('"null"', "Spark has no type for Avro's 'null'"),
        ('{"type": "record", "name": "X", "fields": []}', "record X has no fields"),
        (
            '{"type": "record", "name": "X", "fields": [{"name": "next", "type": ["null", "X"]}]}',
            "X contains itself",
        ),
    ],
)
def test_an_avro_schema_that_spark_cannot_have_is_refused(tmp_path: Path, schema: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        codec(tmp_path, "avro", schema.encode())


# ---- Protobuf ----


def descriptors() -> bytes:
    """What protoc writes for:

    message Order {
      int32 id = 1;  optional string note = 2;  uint64 big = 3;  State state = 4;  Line best = 5;
      repeated Line lines = 6;  map<string, Line> by = 7;  google.protobuf.Timestamp at = 8;
      google.protobuf.Int64Value wrapped = 9;  bytes raw = 10;
      enum State { NEW = 0; DONE = 1; }  message Line { string sku = 1; }
    }
    """
    from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2

    found = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    order = file.message_type.add(name="Order")
    order.enum_type.add(name="State").value.extend(
        [descriptor_pb2.EnumValueDescriptorProto(name=name, number=n) for n, name in enumerate(("NEW", "DONE"))]
    )
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    entry = order.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=".shop.Order.Line")
    order.oneof_decl.add(name="_note")
    add = order.field.add
    add(name="id", number=1, type=5, label=1)
    add(name="note", number=2, type=9, label=1, proto3_optional=True, oneof_index=0)
    add(name="big", number=3, type=4, label=1)
    add(name="state", number=4, type=14, label=1, type_name=".shop.Order.State")
    add(name="best", number=5, type=11, label=1, type_name=".shop.Order.Line")
    add(name="lines", number=6, type=11, label=3, type_name=".shop.Order.Line")
    add(name="by", number=7, type=11, label=3, type_name=".shop.Order.ByEntry")
    add(name="at", number=8, type=11, label=1, type_name=".google.protobuf.Timestamp")
    add(name="wrapped", number=9, type=11, label=1, type_name=".google.protobuf.Int64Value")
    add(name="raw", number=10, type=12, label=1)
    return bytes(found.SerializeToString())


def order_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_values_arrive_with_their_types(tmp_path: Path) -> None:
    found = codec(tmp_path, "protobuf", descriptors())
    assert found.ddl() == (
        "struct<`id`: int, `note`: string, `big`: decimal(20, 0), `state`: string, `best`: struct<`sku`: string>, "
        "`lines`: array<struct<`sku`: string>>, `by`: map<string, struct<`sku`: string>>, `at`: timestamp_ltz, "
        "`wrapped`: bigint, `raw`: binary>"
    )
    order = order_class()(id=7, note="", big=2**64 - 1, state=1, raw=b"\xff")
    order.lines.add(sku="a")
    order.by["x"].sku = "c"
    order.at.FromDatetime(NOW)
    order.wrapped.value = 0
    line = pa.struct([("sku", pa.string())])
    kind = pa.struct(
        [
            ("id", pa.int32()),
            ("note", pa.string()),
            ("big", pa.decimal128(20, 0)),
            ("state", pa.string()),
            ("best", line),
            ("lines", pa.list_(line)),
            ("by", pa.map_(pa.string(), line)),
            ("at", pa.timestamp("us", "UTC")),
            ("wrapped", pa.int64()),
            ("raw", pa.binary()),
        ]
    )
    data = [order.SerializeToString(), b"", order_class()(state=9).SerializeToString(), b"\xff\xff"]
    rows = decoded(pa.array(data, pa.binary()), kind, found.decoder()).to_pylist()
    assert rows[0] == {
        "id": 7,
        "note": "",
        "big": Decimal(2**64 - 1),
        "state": "DONE",
        "best": None,
        "lines": [{"sku": "a"}],
        "by": [("x", {"sku": "c"})],
        "at": NOW,
        "wrapped": 0,
        "raw": b"\xff",
    }
    assert (rows[1]["id"], rows[1]["note"], rows[1]["at"], rows[1]["wrapped"]) == (0, None, None, None)
    assert rows[2]["state"] == "9"
    assert rows[3] is None


def test_a_message_that_contains_itself_is_refused(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorSet()
    file = found.file.add(name="a.proto", syntax="proto3")
    file.message_type.add(name="Node").field.add(name="next", number=1, type=11, label=1, type_name=".Node")
    file.message_type.add(name="Empty")
    with pytest.raises(InvalidRequest, match="message Node contains itself"):
        codec(tmp_path, "protobuf", found.SerializeToString(), "Node")
    with pytest.raises(InvalidRequest, match="message Empty has no fields"):
        codec(tmp_path, "protobuf", found.SerializeToString(), "Empty")
    with pytest.raises(InvalidRequest, match=r"messageName is needed: a\.proto has the messages Node, Empty"):
        codec(tmp_path, "protobuf", found.SerializeToString())
    with pytest.raises(InvalidRequest, match="schemaFile has no message 'Other'"):
        codec(tmp_path, "protobuf", found.SerializeToString(), "Other")
    del found.file[0]
    for content in (b"syntax = ...", found.SerializeToString()):
        with pytest.raises(InvalidRequest, match="is not a file of protoc"):
            codec(tmp_path, "protobuf", content)


def test_a_descriptor_file_without_its_imports_is_refused(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    del found.file[0]
    with pytest.raises(InvalidRequest, match="was it written with protoc --include_imports"):
        codec(tmp_path, "protobuf", found.SerializeToString(), "shop.Order")


# ---- both ----


@pytest.mark.parametrize(("name", "package"), [("avro", "fastavro"), ("protobuf", "google.protobuf")])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        InvalidRequest, match=rf"valueFormat={name} needs the package .*pip install 'topicd\[formats\]'"
    ):
        codec(tmp_path, name, b'"string"')


def test_a_type_of_the_user_that_does_not_fit_is_told(tmp_path: Path) -> None:
    found = codec(tmp_path, "avro", b'"string"')
    with pytest.raises(InvalidRequest, match="column data cannot be int64"):
        decoded(pa.array([avro("a", "string")], pa.binary()), pa.int64(), found.decoder())
