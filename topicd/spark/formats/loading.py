"""Values in a format that a schema file describes. Promise: the file is read on the driver alone and travels with the
query; a value that is not of that schema becomes null, as with JSON; what Spark has no type for is refused early.
"""

from __future__ import annotations

from pathlib import Path

from topicd.errors import InvalidRequest
from topicd.limits import MIB
from topicd.spark.formats.codec import AVRO, Codec

_FILE_MAX = 16 * MIB


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
