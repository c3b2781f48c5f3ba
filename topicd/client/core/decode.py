"""What readers make of the data: a named format, a model class or a function. Promise: what cannot be decoded is told
when it is looked at, with the record's place, and ends no loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import msgpack

from topicd.errors import InvalidRequest

Decoder: TypeAlias = Callable[[bytes], Any]
Decode: TypeAlias = str | type[Any] | Decoder | None  # as users say it

NAMED: dict[str, Decoder] = {
    "json": json.loads,
    "msgpack": msgpack.unpackb,
    "text": bytes.decode,
}


def decoder_of(decode: Decode) -> Decoder | None:
    """`"json"`, `"msgpack"`, `"text"`; a pydantic model; a msgspec Struct, dataclass or other type that msgspec reads
    from JSON; a function of the bytes."""
    if decode is None:
        return None
    if isinstance(decode, str):
        if decode not in NAMED:
            raise InvalidRequest(f"decode is {', '.join(NAMED)}, a class or a function, not {decode!r:.50}")
        return NAMED[decode]
    if isinstance(decode, type):
        return _of_class(decode)
    if not callable(decode):
        raise InvalidRequest(f"decode is {', '.join(NAMED)}, a class or a function, not {decode!r:.50}")
    return decode


def _of_class(model: type[Any]) -> Decoder:
    validate = getattr(model, "model_validate_json", None)
    if validate is not None:
        return validate  # type: ignore[no-any-return]
    import msgspec

    try:
        return msgspec.json.Decoder(model).decode
    except TypeError as exc:
        raise InvalidRequest(f"{model.__name__} cannot be read from JSON: {exc}") from None
