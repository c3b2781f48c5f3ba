"""Values become frames. Promise: what cannot be stored is refused here, before a byte is sent."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgpack

from topicd._native import core
from topicd.client.core.records import Record, default_bytes
from topicd.errors import BatchTooLarge, InvalidRequest, TopicdError
from topicd.frames import codec_error, continue_batch
from topicd.limits import MAX_BATCH_RECORDS
from topicd.lists import check_list

Serializer: TypeAlias = Callable[[Any], bytes]
_LENGTH = struct.Struct("<I")  # of a frame, without this field
# (frames, number of records)
Encoded: TypeAlias = tuple[bytearray, int]


def _msgpack_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raw: bytes = msgpack.packb(value)
    return raw


NAMED: dict[str, Serializer] = {"json": default_bytes, "msgpack": _msgpack_bytes}


def named_serializer(given: str | Serializer) -> Serializer:
    """`json` (the default), `msgpack`, or a function from value to bytes. Bytes are never touched by the
    first two."""
    if callable(given):
        return given
    if given not in NAMED:
        raise InvalidRequest(f"serializer must be one of {', '.join(NAMED)} or a function, not {given!r:.100}")
    return NAMED[given]


def to_bytes(value: Any, serialize: Serializer) -> bytes:
    try:
        made = serialize(value)
    except TopicdError:
        raise
    except Exception as exc:
        raise InvalidRequest(f"data of type {type(value).__name__} cannot be serialised: {exc}") from exc
    if not isinstance(made, bytes):
        raise InvalidRequest(f"the serializer returned {type(made).__name__}, not bytes")
    return made


def label(value: str | bytes | None, what: str) -> bytes | None:
    """A tag or node as bytes; empty means none."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape") or None
    if isinstance(value, bytes):
        return value or None
    raise InvalidRequest(f"{what} must be text or bytes, not {type(value).__name__}")


def packed_meta(meta: dict[str, Any] | None) -> bytes | None:
    if not meta:
        return None
    if not isinstance(meta, dict):
        raise InvalidRequest(f"meta must be a dict, not {type(meta).__name__}")
    try:
        raw: bytes = msgpack.packb(meta)
    except Exception as exc:
        raise InvalidRequest(f"meta cannot be packed: {exc}") from None
    return raw


def encode(
    datas: Sequence[Any],
    tags: Sequence[bytes | None] | bytes | None = None,
    nodes: Sequence[bytes | None] | bytes | None = None,
    metas: Sequence[bytes | None] | None = None,
) -> bytearray:
    """One batch as frames; its violations are the errors of the contract."""
    try:
        return core.encode_batch(datas, tags, nodes, metas)
    except ValueError as exc:
        raise codec_error(exc) from None
    except TypeError as exc:
        raise InvalidRequest(f"records must be bytes: {exc}") from None


def encode_one(
    data: Any,
    tag: str | bytes | None,
    node: str | bytes | None,
    meta: dict[str, Any] | None,
    serialize: Serializer,
) -> bytearray:
    if type(data) is not bytes:
        data = to_bytes(data, serialize)
    metas = None if not meta else (packed_meta(meta),)
    return encode((data,), label(tag, "tag"), label(node, "node"), metas)


def encode_list(
    records: Sequence[Any],
    tag: str | bytes | None,
    node: str | bytes | None,
    default_node: bytes | None,
    serialize: Serializer,
) -> list[Encoded]:
    """The list of one publish_many as batches, at least one."""
    check_list(records, "records", "; publish takes one")
    if not isinstance(records, list | tuple):
        records = list(records)
    if not records:
        raise InvalidRequest("publish_many needs at least one record")
    return encode_many(records, label(tag, "tag"), label(node, "node") or default_node, serialize)


def encode_many(records: Sequence[Any], tag: bytes | None, node: bytes | None, serialize: Serializer) -> list[Encoded]:
    """A list of any length as batches, in order. Bytes go straight to the codec; Record, (data, tag) and
    (data, tag, node, meta) carry their own labels; anything else is serialised."""
    batches: list[Encoded] = []
    for at in range(0, len(records), MAX_BATCH_RECORDS):
        piece = records if len(records) <= MAX_BATCH_RECORDS else records[at : at + MAX_BATCH_RECORDS]
        batches.extend(_encode_piece(piece, tag, node, serialize))
    return batches


def _encode_piece(piece: Sequence[Any], tag: bytes | None, node: bytes | None, serialize: Serializer) -> list[Encoded]:
    try:
        # Optimistic: a list of bytes costs no look at each element here.
        return [(core.encode_batch(piece, tag, node, None), len(piece))]
    except TypeError:
        pass
    except ValueError as exc:
        error = codec_error(exc)
        if not isinstance(error, BatchTooLarge):
            raise error from None
    datas, tags, nodes, metas = _columns(piece, tag, node, serialize)
    return _split(datas, tags, nodes, metas)


def _columns(
    piece: Sequence[Any], tag: bytes | None, node: bytes | None, serialize: Serializer
) -> tuple[list[bytes], list[bytes | None], list[bytes | None], list[bytes | None]]:
    datas: list[bytes] = []
    tags: list[bytes | None] = []
    nodes: list[bytes | None] = []
    metas: list[bytes | None] = []
    for item in piece:
        if isinstance(item, Record):
            data, its_tag, its_node, its_meta = item.raw
        elif isinstance(item, tuple):
            data, its_tag, its_node, its_meta = _of_tuple(item, serialize)
        else:
            data = item if type(item) is bytes else to_bytes(item, serialize)
            its_tag = its_node = its_meta = None
        datas.append(data)
        tags.append(tag if its_tag is None else its_tag)
        nodes.append(node if its_node is None else its_node)
        metas.append(its_meta)
    return datas, tags, nodes, metas


def _of_tuple(item: tuple[Any, ...], serialize: Serializer) -> tuple[bytes, bytes | None, bytes | None, bytes | None]:
    if not 1 <= len(item) <= 4:
        raise InvalidRequest(f"a record as tuple is (data, tag, node, meta), not {len(item)} fields")
    data, tag, node, meta = (*item, None, None, None)[:4]
    return to_bytes(data, serialize), label(tag, "tag"), label(node, "node"), packed_meta(meta)


def _split(
    datas: list[bytes], tags: list[bytes | None], nodes: list[bytes | None], metas: list[bytes | None]
) -> list[Encoded]:
    """Halves until each part fits; a single record that does not fit is the caller's error."""
    try:
        plain = all(meta is None for meta in metas)
        return [(encode(datas, tags, nodes, None if plain else metas), len(datas))]
    except BatchTooLarge:
        if len(datas) == 1:
            raise
    half = len(datas) // 2
    first = _split(datas[:half], tags[:half], nodes[:half], metas[:half])
    return first + _split(datas[half:], tags[half:], nodes[half:], metas[half:])


def join_batches(batches: Sequence[Encoded]) -> Encoded:
    """Several encoded batches for one topic as one: every record but the last says that more follow."""
    joined = bytearray()
    last = 0
    for frames, _ in batches:
        if joined:
            continue_batch(joined, last)
        last = len(joined)
        joined += frames
        while (behind := last + _LENGTH.size + _LENGTH.unpack_from(joined, last)[0]) < len(joined):
            last = behind
    return joined, sum(count for _, count in batches)
