"""Messages as something else than bytes: a pair of functions, or one of the four names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from topicd.errors import InvalidRequest

T = TypeVar("T")
CodecName = Literal["bytes", "str", "json", "msgpack"]


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """None stands for: as it is."""

    encode: Callable[[T], bytes] | None
    decode: Callable[[bytes], T] | None


def codec_of(given: CodecName | Codec[T] | tuple[Callable[[T], bytes], Callable[[bytes], T]]) -> Codec[Any]:
    if isinstance(given, Codec):
        return given
    if isinstance(given, tuple) and len(given) == 2 and callable(given[0]) and callable(given[1]):
        return Codec(*given)
    if given == "bytes":
        return Codec(None, None)
    if given == "str":
        return Codec(_to_text, bytes.decode)
    if given == "json":
        return Codec(_to_json, json.loads)
    if given == "msgpack":
        import msgpack

        return Codec(msgpack.packb, lambda raw: msgpack.unpackb(raw, strict_map_key=False))
    raise InvalidRequest(f"codec is {given!r}; it may be bytes, str, json, msgpack or a pair of functions")


def _to_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"a message is text, not {type(value).__name__}")
    return value.encode()


def _to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
