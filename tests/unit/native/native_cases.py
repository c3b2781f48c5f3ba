"""Frames made by hand (struct and xxhash, not the code under test), and ways to spoil them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import xxhash
from hypothesis import strategies as st

from topicd._native.interface import Core

native: Core | None
try:
    import topicd._native._core as _core

    native = _core
except ImportError:
    native = None

HEADER = "<IBBQQQHHI"
TAG, NODE, DURABLE, MORE, META = 1, 2, 4, 8, 16


def body(payload: bytes, meta: bytes | None) -> bytes:
    return payload if meta is None else struct.pack("<H", len(meta)) + meta + payload


def blank(
    payload: bytes = b"",
    *,
    tag: bytes | None = None,
    node: bytes | None = None,
    meta: bytes | None = None,
    more: bool = False,
    type: int = 1,
    flags: int | None = None,
    topic_id: int = 0,
    seq: int = 0,
    ts: int = 0,
    checksum: int = 0,
) -> bytes:
    """A frame as a client sends it; flags given by hand are taken as they are."""
    data = body(payload, meta)
    if flags is None:
        present = ((TAG, tag is not None), (NODE, node is not None), (META, meta is not None), (MORE, more))
        flags = sum(bit for bit, is_set in present if is_set)
    rest = (node or b"") + (tag or b"") + data
    header = struct.pack(
        HEADER, 42 + len(rest), type, flags, topic_id, seq, ts, len(node or b""), len(tag or b""), len(data)
    )
    return header + rest + struct.pack("<Q", checksum)


def whole(payload: bytes = b"", **fields: Any) -> bytes:
    """A frame as it is stored: with its checksum."""
    frame = blank(payload, **fields)
    return frame[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(frame[4:-8]))


def outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """What a call gave or raised, comparable between implementations (wording of TypeErrors is their own)."""
    try:
        result = function(*args)
    except ValueError as exc:
        return "refused", exc.args
    except (TypeError, BufferError) as exc:
        return "misused", type(exc)
    return "gave", type(result), result


# ---- Hypothesis ----

maps = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=40),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
        max_leaves=8,
    ),
    max_size=4,
).map(msgpack.packb)
# Of two letters only, so that values are often equal, or prefixes of each other and of what follows them.
letters = st.text("ab", max_size=3).map(str.encode)
short = letters.filter(bool)
maybe = st.none() | short
words = st.integers(0, 2**64 - 1)
small = st.integers(0, 6)


@st.composite
def stored_frames(draw: st.DrawFn) -> bytes:
    """Valid frames: mostly appends of few topics with neighbouring seqs, some frames of other types."""
    frames, seq = [], draw(st.integers(1, 5) | st.just(2**64 - 3))
    for _ in range(draw(st.integers(0, 8))):
        seq = (seq + draw(st.sampled_from((1, 1, 1, 0, 2)))) % 2**64
        frames.append(
            whole(
                draw(letters | st.binary(max_size=20) | st.just(b"x" * 300)),
                tag=draw(maybe),
                node=draw(maybe),
                meta=draw(st.none() | maps),
                more=draw(st.booleans()),
                type=draw(st.sampled_from((1, 1, 1, 1, 1, 14, 6, 2))),
                topic_id=draw(st.sampled_from((7, 7, 7, 8))),
                seq=seq,
                ts=draw(small),
            )
        )
    return b"".join(frames)


@st.composite
def client_batches(draw: st.DrawFn) -> bytes:
    """Valid batches as a client sends them."""
    count = draw(st.integers(1, 6))
    return b"".join(
        blank(
            draw(st.binary(max_size=20)),
            tag=draw(maybe),
            node=draw(maybe),
            meta=draw(st.none() | maps),
            more=record < count - 1,
        )
        for record in range(count)
    )


FIELDS = {0: "<I", 4: "<B", 5: "<B", 14: "<Q", 30: "<H", 32: "<H", 34: "<I", 38: "<H"}


@st.composite
def spoiled(draw: st.DrawFn, good: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that were good: as they are, cut, with flipped bits, with a field of a header overwritten."""
    data = bytearray(draw(good))
    for _ in range(draw(st.integers(0, 2))):
        if not data:
            break
        match draw(st.sampled_from(("cut", "flip", "field", "tail"))):
            case "cut":
                del data[draw(st.integers(0, len(data))) :]
            case "flip":
                data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
            case "field":
                at, code = draw(st.sampled_from(sorted(FIELDS.items())))
                size = struct.calcsize(code)
                if at + size <= len(data):
                    top = 2 ** (8 * size) - 1
                    edges = st.sampled_from((0, 1, 2, 41, 42, top - 4, top - 3, top))
                    data[at : at + size] = struct.pack(code, draw(edges | st.integers(0, top)) & top)
            case "tail":
                data += draw(st.binary(max_size=60))
    return bytes(data)


hostile_frames = st.binary(max_size=120) | spoiled(stored_frames())
hostile_batches = st.binary(max_size=120) | spoiled(client_batches())
hostile_metas = st.binary(max_size=40) | spoiled(maps) | spoiled(maps).map(lambda b: b"\x81\x00" + b)
