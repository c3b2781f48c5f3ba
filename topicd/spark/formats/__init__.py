"""Values in a format that a schema file describes. Promise: the file is read on the driver alone and travels with the
query; a value that is not of that schema becomes null, as with JSON; what Spark has no type for is refused early.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from topicd.errors import InvalidRequest
from topicd.limits import MIB

AVRO, PROTOBUF = "avro", "protobuf"
_FILE_MAX = 16 * MIB

Convert = Callable[[Any], Any]


class Codec(Protocol):
    """Picklable: executors get it with the query."""

    def ddl(self) -> str:
        """Spark's type of a value."""

    def decoder(self) -> Callable[[bytes], Any]:
        """From stored bytes to what Arrow takes for that type; None where they are not of the schema."""


def load(name: str, path: str, message: str | None) -> Codec:
    """The codec of a schema file, checked."""
    content = _content(path)
    codec: Codec
    if name == AVRO:
        from topicd.spark.formats.avro import Avro

        codec = Avro(content)
    else:
        from topicd.spark.formats.protobuf import Protobuf

        codec = Protobuf.of(content, message)
    codec.ddl()
    return codec


def _content(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_MAX + 1)
    except OSError as exc:
        raise InvalidRequest(f"option schemaFile: {path!r:.200} cannot be read: {exc.strerror}") from None
    if len(content) > _FILE_MAX:
        raise InvalidRequest(f"option schemaFile: {path!r:.200} has more than {_FILE_MAX // MIB} MiB")
    return content


def missing(name: str, package: str) -> InvalidRequest:
    return InvalidRequest(
        f"valueFormat={name} needs the package {package}, on the driver and on every executor: "
        "pip install 'topicd[formats]'"
    )


def struct_ddl(fields: list[tuple[str, str]]) -> str:
    named = ("`{}`: {}".format(name.replace("`", "``"), kind) for name, kind in fields)
    return f"struct<{', '.join(named)}>"


def recursive(name: str) -> InvalidRequest:
    return InvalidRequest(f"option schemaFile: {name} contains itself, and Spark has no type for that")
