"""The option schemaFile: a file of bounded size becomes a checked codec."""

from __future__ import annotations

from pathlib import Path

from topicd.errors import InvalidRequest
from topicd.limits import MIB
from topicd.spark.formats.avro import Avro
from topicd.spark.formats.codec import AVRO, Codec
from topicd.spark.formats.protobuf import Protobuf

_FILE_MAX = 16 * MIB


def load(name: str, path: str, message: str | None) -> Codec:
    content = _content(path)
    codec: Codec = Avro(content) if name == AVRO else Protobuf.of(content, message)
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
