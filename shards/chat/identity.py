"""What a user wants others to know: an opaque blob, for example a public key. Promise: the latest stamp wins, and of
two blobs with the same stamp the one that sorts higher, so that all stores keep the same; there is no history.

Value: 8 bytes packed time, then the blob of at most BLOB_MAX bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from blake3 import blake3

from topicd.errors import InvalidRequest
from topicd.shards.chat import keys

BLOB_MAX = 1_024
STAMP = 8


class Identity(NamedTuple):
    stamp: int
    blob: bytes

    def to_value(self) -> bytes:
        return keys.u64(self.stamp) + self.blob

    @classmethod
    def from_value(cls, value: bytes) -> Identity:
        return cls(keys.parse_u64(value[:STAMP]), value[STAMP:])


def checked_blob(blob: bytes) -> bytes:
    if not isinstance(blob, bytes) or not 1 <= len(blob) <= BLOB_MAX:
        found = f"{len(blob)} bytes" if isinstance(blob, bytes) else type(blob).__name__
        raise InvalidRequest(f"an identity has 1 to {BLOB_MAX} bytes, this one is {found}")
    return blob


def wins(incoming: Identity, stored: Identity | None) -> bool:
    """Shall it be stored?"""
    return stored is None or incoming > stored


def record_id(user: bytes, identity: Identity) -> bytes:
    return blake3(keys.sized("a user id", user, keys.USER) + identity.to_value()).digest()
