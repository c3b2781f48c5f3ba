"""Records between frames and JSON text. Promise: what was written as JSON comes back as those very bytes; what is no
JSON comes back as {"$binary": base64}.

The data of a record is stored as the JSON text it came as. Meta is a msgpack map in a frame: an object becomes one if
nothing of it would be lost, else a map with the one key META_TEXT, which holds the text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
import msgspec

from topicd._native.interface import Decoded
from topicd.gateway.errors import invalid
from topicd.limits import MAX_META, MAX_META_KEYS

META_TEXT = "$json"

_any_text = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.encode


class Shape(NamedTuple):
    """What of a record is told."""

    tags: bool = False
    meta: bool = True
    data: bool = True


# ---- reading ----


def is_json(data: bytes) -> bool:
    try:
        _any_text.decode(data)
        if not data.isascii():
            data.decode()
    except (ValueError, RecursionError):  # msgspec's own are ValueErrors
        return False
    return True


def data_text(data: bytes) -> bytes:
    if is_json(data):
        return data
    return b'{"$binary":"%b"}' % base64.b64encode(data)


def label_text(raw: bytes) -> bytes:
    """A tag or node; one that is no UTF-8 has signs in its place."""
    return _encode(raw.decode("utf-8", "replace"))


def meta_text(packed: bytes) -> bytes:
    """The map of a frame as a JSON object."""
    try:
        found = msgpack.unpackb(packed, strict_map_key=False)
    except (ValueError, RecursionError):
        return b'{"$binary":"%b"}' % base64.b64encode(packed)
    if not isinstance(found, dict):
        return b'{"$binary":"%b"}' % base64.b64encode(packed)
    text = found.pop(META_TEXT, None)
    if not isinstance(text, bytes) or not is_json(text) or not text.startswith(b"{"):
        return _encode(_plain(found))
    if not found:
        return text
    # Something was added to it on its way: by a router, for example.
    inside = text[1:-1].strip()
    added = _encode(_plain(found))[1:-1]
    return b"{" + inside + (b"," if inside else b"") + added + b"}"


def _plain(value: Any) -> Any:
    """Without what JSON does not know."""
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, bytes):
        return {"$binary": base64.b64encode(value).decode()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def record_text(record: Decoded, shape: Shape) -> bytes:
    seq, ts, node, tag, meta, data = record
    if not (node or tag or meta) and shape.data:
        return b'{"$seq":%d,"$ts":%d,"data":%b}' % (seq, ts, data_text(data))
    parts = [b'{"$seq":%d,"$ts":%d' % (seq, ts)]
    if node:
        parts.append(b'"$node":' + label_text(node))
    if tag and shape.tags:
        parts.append(b'"$tag":' + label_text(tag))
    if shape.data:
        parts.append(b'"data":' + data_text(data))
    if meta and shape.meta:
        parts.append(b'"meta":' + meta_text(meta))
    return b",".join(parts) + b"}"


def records_text(records: Sequence[Decoded], shape: Shape) -> bytes:
    return b"[" + b",".join([record_text(record, shape) for record in records]) + b"]"


def compact(text: bytes) -> bytes:
    """JSON without spaces and line ends between its tokens."""
    if b" " in text or b"\n" in text or b"\r" in text or b"\t" in text:
        return msgspec.json.format(text, indent=-1)
    return text


# ---- writing ----


def packed_meta(text: bytes) -> bytes | None:
    """A JSON object as the meta of a frame; None for an empty one."""
    if len(text) > MAX_META:
        raise invalid(f"meta has at most {MAX_META} bytes, this one has {len(text)}")
    try:
        found = _object.decode(text)
    except RecursionError:
        raise invalid("meta is nested too deeply") from None
    except ValueError:
        return _unusual(text)
    _check_keys(found)
    if not found:
        return None
    packed = _lossless(found, text)
    return packed if packed is not None and len(packed) <= MAX_META else _as_text(text)


def _as_text(text: bytes) -> bytes:
    packed: bytes = msgpack.packb({META_TEXT: text})
    if len(packed) > MAX_META:
        raise invalid(f"meta has at most {MAX_META} bytes, this one is too close to that")
    return packed


def _unusual(text: bytes) -> bytes:
    """An object with numbers that no float holds; anything else is refused."""
    try:
        found = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not is_json(text):
        raise invalid("meta must be an object")
    _check_keys(found)
    return _as_text(text)


def _check_keys(found: dict[str, Any]) -> None:
    if len(found) > MAX_META_KEYS:
        raise invalid(f"meta has at most {MAX_META_KEYS} keys, this one has {len(found)}")


def _lossless(found: dict[str, Any], text: bytes) -> bytes | None:
    """The map, if it says all that the text says."""
    if META_TEXT in found:
        return None
    try:
        packed: bytes = msgpack.packb(found)
    except (OverflowError, ValueError):
        return None
    again = _encode(found)
    if again in (text, msgspec.json.format(text, indent=-1)):
        return packed
    return packed if _exactly(again) == _exactly(text) else None


def _exactly(text: bytes) -> Any:
    """What it says, with numbers as they are spelled."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)
