"""Protobuf: each value one message, described by a file of `protoc --include_imports --descriptor_set_out=FILE`.

| Protobuf | Spark |
|---|---|
| message, repeated, map | struct, array, map |
| int32 and its kin; uint32, int64 and its kin; uint64 | int; bigint; decimal(20,0) |
| float, double, bool, string, bytes | float, double, boolean, string, binary |
| enum | string: its name, or the number where it has none |
| google.protobuf.Timestamp | timestamp |
| google.protobuf.Int64Value and its kin | the type of its value |

A field that tells "not set" from its default is null when it is not set; others have their default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from topicd.errors import InvalidRequest
from topicd.spark.formats.codec import PROTOBUF, Convert, missing, recursive, struct_ddl

# By number of the type in descriptor.proto.
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = 1, 2, 3, 4, 5, 6, 7, 8, 9
_GROUP, _MESSAGE, _BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = 10, 11, 12, 13, 14, 15, 16, 17, 18
_SCALARS = {
    _DOUBLE: "double",
    _FLOAT: "float",
    _INT64: "bigint",
    _SFIXED64: "bigint",
    _SINT64: "bigint",
    _UINT64: "decimal(20, 0)",
    _FIXED64: "decimal(20, 0)",
    _INT32: "int",
    _SFIXED32: "int",
    _SINT32: "int",
    _UINT32: "bigint",
    _FIXED32: "bigint",
    _BOOL: "boolean",
    _STRING: "string",
    _BYTES: "binary",
}
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}

_Found = tuple[str, Convert]


@dataclass(frozen=True, slots=True)
class Protobuf:
    descriptors: bytes
    message: str

    @classmethod
    def of(cls, descriptors: bytes, message: str | None) -> Protobuf:
        """The message by its full name; without one, the only one of the last file."""
        if message is not None:
            return cls(descriptors, message)
        last = _file_set(descriptors).file[-1]
        names = [".".join(filter(None, (last.package, found.name))) for found in last.message_type]
        if len(names) != 1:
            some = ", ".join(names) or "none"
            raise InvalidRequest(f"option messageName is needed: {last.name} has the messages {some:.500}")
        return cls(descriptors, names[0])

    def ddl(self) -> str:
        return _message(self._descriptor(), ())[0]

    def decoder(self) -> Callable[[bytes], Any]:
        from google.protobuf import message_factory
        from google.protobuf.message import DecodeError

        descriptor = self._descriptor()
        made = message_factory.GetMessageClass(descriptor)
        convert = _message(descriptor, ())[1]

        def decode(data: bytes) -> Any:
            try:
                return convert(made.FromString(data))
            except (DecodeError, ValueError, OverflowError):  # the others: a time outside of Python's calendar
                return None

        return decode

    def _descriptor(self) -> Any:
        from google.protobuf import descriptor_pool

        pool = descriptor_pool.DescriptorPool()
        try:
            for file in _file_set(self.descriptors).file:
                pool.Add(file)
            return pool.FindMessageTypeByName(self.message)
        except KeyError:
            raise InvalidRequest(f"option messageName: schemaFile has no message {self.message!r:.200}") from None
        except TypeError as exc:
            raise InvalidRequest(
                f"option schemaFile is not complete ({exc!s:.200}); was it written with protoc --include_imports?"
            ) from None


def _file_set(descriptors: bytes) -> Any:
    try:
        from google.protobuf import descriptor_pb2
        from google.protobuf.message import DecodeError
    except ImportError:
        raise missing(PROTOBUF, "protobuf") from None
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError:
        found = descriptor_pb2.FileDescriptorSet()
    if not found.file:
        raise InvalidRequest("option schemaFile is not a file of protoc --include_imports --descriptor_set_out=FILE")
    return found


def _message(descriptor: Any, within: tuple[str, ...]) -> _Found:
    name = descriptor.full_name
    if name == _TIMESTAMP:
        return "timestamp_ltz", lambda value: value.ToDatetime(tzinfo=UTC)
    if name in _WRAPPERS:
        kind, convert = _value(descriptor.fields_by_name["value"], within)
        return kind, lambda value: convert(value.value)
    if name in within:
        raise recursive(f"message {name}")
    if not descriptor.fields:
        raise InvalidRequest(f"option schemaFile: message {name} has no fields, and Spark has no type for that")
    found = [(field.name, *_field(field, (*within, name))) for field in descriptor.fields]

    def whole(value: Any) -> dict[str, Any]:
        return {field: convert(value) for field, _, convert in found}

    return struct_ddl([(field, kind) for field, kind, _ in found]), whole


def _field(field: Any, within: tuple[str, ...]) -> _Found:
    """How to get it out of its message."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key_kind, key_of = _value(field.message_type.fields_by_name["key"], within)
        kind, value_of = _value(field.message_type.fields_by_name["value"], within)
        return f"map<{key_kind}, {kind}>", lambda owner: [
            (key_of(key), value_of(value)) for key, value in getattr(owner, name).items()
        ]
    kind, convert = _value(field, within)
    if field.is_repeated:
        return f"array<{kind}>", lambda owner: [convert(value) for value in getattr(owner, name)]
    if field.has_presence:
        return kind, lambda owner: convert(getattr(owner, name)) if owner.HasField(name) else None
    return kind, lambda owner: convert(getattr(owner, name))


def _value(field: Any, within: tuple[str, ...]) -> _Found:
    if field.type in (_MESSAGE, _GROUP):
        return _message(field.message_type, within)
    if field.type == _ENUM:
        names = {number: found.name for number, found in field.enum_type.values_by_number.items()}
        return "string", lambda number: names.get(number, str(number))
    return _SCALARS[field.type], lambda value: value
