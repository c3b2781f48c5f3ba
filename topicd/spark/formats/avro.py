"""Avro: each value one datum in binary encoding, without header, of the schema in an .avsc file.

| Avro | Spark |
|---|---|
| record, array, map | struct, array, map<string, …> |
| enum, string with uuid | string |
| bytes, fixed; with decimal | binary; decimal |
| int with date; long with (local-)timestamp-millis, -micros | date; timestamp (timestamp_ntz) |
| union with null | the other type |
| union of int and long; of float and double | bigint; double |
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topicd.errors import InvalidRequest
from topicd.spark.formats.codec import AVRO, Convert, missing, recursive, struct_ddl

_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp_ltz",
    ("long", "timestamp-micros"): "timestamp_ltz",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
    ("string", "uuid"): "string",
}
_NESTED = ("type", "fields", "items", "values")  # where a schema has schemas in it
_DECIMAL = ["bytes", "fixed"]
_WIDENED = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}

_Found = tuple[str, Convert | None]  # the type as DDL; how to convert, None: as it is


@dataclass(frozen=True, slots=True)
class Avro:
    text: bytes

    def ddl(self) -> str:
        return _Walk().of(self._parsed())[0]

    def decoder(self) -> Callable[[bytes], Any]:
        from fastavro import schemaless_reader

        schema = self._parsed()
        convert = _Walk().of(schema)[1]

        def decode(data: bytes) -> Any:
            source = io.BytesIO(data)
            try:
                value = schemaless_reader(source, schema, None)
            except Exception:  # whatever bytes of something else lead to
                return None
            if source.tell() != len(data):
                return None
            return value if convert is None else convert(value)

        return decode

    def _parsed(self) -> Any:
        try:
            from fastavro import parse_schema
            from fastavro.schema import SchemaParseException, UnknownType
        except ImportError:
            raise missing(AVRO, "fastavro") from None
        try:
            return parse_schema(_without_unknown_logical(json.loads(self.text)))
        except (ValueError, KeyError, TypeError, AttributeError, SchemaParseException, UnknownType) as exc:
            raise InvalidRequest(f"option schemaFile is not an Avro schema: {exc!r:.200}") from None


def _without_unknown_logical(schema: Any) -> Any:
    """A logical type that Spark has no type for counts as what it is stored as."""
    if isinstance(schema, list):
        return [_without_unknown_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _without_unknown_logical(value) if name in _NESTED else value for name, value in schema.items()}
    stored, logical = kept.get("type"), kept.get("logicalType")
    known = _DECIMAL if logical == "decimal" else [kind for kind, name in _LOGICAL if name == logical]
    if logical is not None and stored not in known:
        del kept["logicalType"]
    return kept


class _Walk:
    """Along a parsed schema, in which a named type is spelled out once and then called by its name."""

    def __init__(self) -> None:
        self._named: dict[str, _Found] = {}
        self._open: set[str] = set()

    def of(self, schema: Any) -> _Found:
        if isinstance(schema, list):
            return self._union(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.of(kind)
        if isinstance(schema, dict):
            if kind in ("record", "error"):
                return self._record(schema)
            if kind in ("enum", "fixed"):
                found = ("string", None) if kind == "enum" else (_decimal(schema) or "binary", None)
                self._named[schema["name"]] = found
                return found
            if kind == "array":
                return _array(*self.of(schema["items"]))
            if kind == "map":
                return _map(*self.of(schema["values"]))
            logical = schema.get("logicalType")
            if logical is not None:
                found_kind = _decimal(schema) or _LOGICAL[kind, logical]
                return found_kind, str if logical == "uuid" else None
        return self._plain(kind)

    def _plain(self, kind: str) -> _Found:
        if kind in self._open:
            raise recursive(kind)
        if kind in self._named:
            return self._named[kind]
        if kind not in _PLAIN:
            raise InvalidRequest(f"option schemaFile: Spark has no type for Avro's {kind!r:.100}")
        return _PLAIN[kind], None

    def _union(self, schemas: list[Any]) -> _Found:
        rest = [schema for schema in schemas if schema != "null"]
        if len(rest) == 1:
            kind, convert = self.of(rest[0])
            return kind, None if convert is None else _unless_none(convert)
        wider = _WIDENED.get(frozenset(map(str, rest)))
        if wider is None:
            raise InvalidRequest(
                "option schemaFile: a union may be of one type and null, of int and long, or of float and double, "
                f"not {json.dumps(schemas, default=str):.200}"
            )
        return _PLAIN[wider], None

    def _record(self, schema: dict[str, Any]) -> _Found:
        name = schema["name"]
        self._open.add(name)
        found = [(field["name"], *self.of(field["type"])) for field in schema["fields"]]
        self._open.discard(name)
        if not found:
            raise InvalidRequest(f"option schemaFile: record {name} has no fields, and Spark has no type for that")
        converts = [(field, convert) for field, _, convert in found if convert is not None]

        def whole(value: dict[str, Any]) -> dict[str, Any]:
            for field, convert in converts:
                value[field] = convert(value[field])
            return value

        ddl = struct_ddl([(field, kind) for field, kind, _ in found])
        self._named[name] = ddl, whole if converts else None
        return self._named[name]


def _decimal(schema: dict[str, Any]) -> str | None:
    if schema.get("logicalType") != "decimal":
        return None
    return f"decimal({schema['precision']}, {schema.get('scale', 0)})"


def _unless_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _array(kind: str, convert: Convert | None) -> _Found:
    each = None if convert is None else (lambda values: [convert(value) for value in values])
    return f"array<{kind}>", each


def _map(kind: str, convert: Convert | None) -> _Found:
    if convert is None:
        return f"map<string, {kind}>", lambda values: list(values.items())
    return f"map<string, {kind}>", lambda values: [(key, convert(value)) for key, value in values.items()]
