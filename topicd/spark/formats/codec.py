"""What the formats share: the face of a codec, and the refusals that all of them give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from topicd.errors import InvalidRequest

AVRO, PROTOBUF = "avro", "protobuf"

Convert = Callable[[Any], Any]


class Codec(Protocol):
    """Picklable: executors get it with the query."""

    def ddl(self) -> str:
        """Spark's type of a value."""

    def decoder(self) -> Callable[[bytes], Any]:
        """From stored bytes to what Arrow takes for that type; None where they are not of the schema."""


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
