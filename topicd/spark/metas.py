"""Meta between msgpack, as it is stored, and the columns of Spark. Promise: as JSON it comes back with the types it
had; what JSON has no form for is an object with one key:

    {"$binary": "base64"}           bytes
    {"$ext": [type, "base64"]}      an extension type of msgpack, such as its timestamp
    {"$map": [[key, value], ...]}   a map whose keys are not all texts, or that looks like one of these

As a map of texts it is for looking: a text as it is, null as null, anything else as JSON; written again, all of it are
texts.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

import msgpack

from topicd.errors import InvalidRequest

_BINARY, _EXT, _MAP = "$binary", "$ext", "$map"
_TIMESTAMP = -1  # its type
_FORMS = (_BINARY, _EXT, _MAP)


# ---- reading ----


def as_json(packed: bytes) -> str:
    return _text(_shown(_unpacked(packed)))


def as_pairs(packed: bytes) -> list[tuple[str, str | None]]:
    meta = _unpacked(packed)
    return [
        (str(key), value if value is None or isinstance(value, str) else _text(_shown(value)))
        for key, value in meta.items()
    ]


def _unpacked(packed: bytes) -> dict[Any, Any]:
    # Timestamps as they are: as a date and time they would lose nanoseconds.
    found: dict[Any, Any] = msgpack.unpackb(packed, strict_map_key=False, timestamp=0)
    return found


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BINARY: base64.b64encode(value).decode()}
    if isinstance(value, msgpack.Timestamp):
        return {_EXT: [_TIMESTAMP, base64.b64encode(value.to_bytes()).decode()]}
    if isinstance(value, msgpack.ExtType):
        return {_EXT: [value.code, base64.b64encode(value.data).decode()]}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    if not isinstance(value, dict):
        return value
    if not all(isinstance(key, str) for key in value) or _is_form(value):
        return {_MAP: [[_shown(key), _shown(one)] for key, one in value.items()]}
    return {key: _shown(one) for key, one in value.items()}


def _is_form(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in _FORMS


# ---- writing ----


def from_json(text: str) -> bytes | None:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise InvalidRequest(f"meta is not JSON: {exc}") from None
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest("meta as JSON must be an object")
    try:
        stored = _stored(value)
    except (ValueError, TypeError, LookupError, binascii.Error):
        raise InvalidRequest(f"meta has a {', '.join(_FORMS)} that is none: {text!r:.200}") from None
    if stored is not None and not isinstance(stored, dict):
        raise InvalidRequest("meta as JSON must be an object")
    return _packed(stored)


def from_pairs(pairs: list[tuple[str, str | None]] | dict[str, str | None]) -> bytes | None:
    return _packed(dict(pairs))


def _packed(meta: dict[Any, Any] | None) -> bytes | None:
    try:
        packed: bytes | None = msgpack.packb(meta) if meta else None
    except OverflowError:
        raise InvalidRequest("meta has a whole number that needs more than 64 bits") from None
    return packed


def _stored(value: Any) -> Any:
    if isinstance(value, list):
        return [_stored(one) for one in value]
    if not isinstance(value, dict):
        return value
    if not _is_form(value):
        return {key: _stored(one) for key, one in value.items()}
    ((form, given),) = value.items()
    if form == _BINARY:
        return base64.b64decode(given, validate=True)
    if form == _EXT:
        code, data = given[0], base64.b64decode(given[1], validate=True)
        return msgpack.Timestamp.from_bytes(data) if code == _TIMESTAMP else msgpack.ExtType(code, data)
    return {_key(_stored(key)): _stored(one) for key, one in given}


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
