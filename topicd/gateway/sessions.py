"""Watch sessions: what a stream follows, and how far it has come. Promise: a session outlives its connections by
TTL_S, never less; an id of a frame says where every topic stood behind that frame.

An id is the URL-safe base64 of a JSON map topic -> seq. Of more than MAPPED topics it is a list of numbers in the order
of their names, with a checksum of these, so that it fits into a header.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from topicd.gateway.errors import capped
from topicd.gateway.feeds import Place, Wants
from topicd.gateway.records_json import Shape
from topicd.limits import MAX_SEQ

TTL_S = 300.0
MAPPED = 64
_NUMBERS = 0x01  # first byte of the other kind; no JSON begins with it


class Session:
    def __init__(self, key: bytes, owner: str | None, topics: dict[str, Place], wants: Wants, shape: Shape) -> None:
        self.wid = f"wid_{secrets.token_urlsafe(16)}"
        self.key = key  # digest of the key that made it; empty: none
        self.owner = owner  # its name: whose streams are counted
        self.topics = topics
        self.wants = wants
        self.shape = shape
        self.heartbeat_s = 15.0
        self.open = 0  # streams
        self.newest: object = None  # the stream that came last: its progress counts
        self.closed_at = 0.0
        self._order = sorted(topics)
        self._names = zlib.crc32("\n".join(self._order).encode())

    # ---- ids ----

    def id_at(self, seqs: dict[str, int]) -> bytes:
        if len(self._order) <= MAPPED:
            return _base64(msgspec.json.encode(seqs))
        numbers = msgspec.msgpack.encode([self._names, *(seqs[name] for name in self._order)])
        return _base64(bytes([_NUMBERS]) + numbers)

    def seqs_of(self, text: str) -> dict[str, int]:
        """What an id says; of one that cannot be read nothing, and of a seq that is none neither."""
        found: dict[str, Any]
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if raw[:1] == bytes([_NUMBERS]):
                names, *numbers = msgspec.msgpack.decode(raw[1:], type=list[int])
                found = dict(zip(self._order, numbers, strict=True)) if names == self._names else {}
            else:
                found = msgspec.json.decode(raw, type=dict[str, Any])
        except (ValueError, binascii.Error, RecursionError):
            return {}
        return {name: seq for name, seq in found.items() if type(seq) is int and 0 <= seq <= MAX_SEQ}

    def start(self, text: str) -> dict[str, Place]:
        """Where a stream begins that shows this id: never ahead of what was delivered."""
        said = self.seqs_of(text) if text else {}
        return {
            name: place._replace(seq=min(place.seq, said[name])) if name in said else place
            for name, place in self.topics.items()
        }


def _base64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


class Sessions:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sessions: dict[str, Session] = {}
        self._reclaimed = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session, most: int) -> None:
        self.check_room(most)
        session.closed_at = self._now()
        self._sessions[session.wid] = session

    def check_room(self, most: int) -> None:
        if not most:
            return
        if len(self._sessions) >= most or self._now() - self._reclaimed > 1.0:
            self._reclaim()
        if len(self._sessions) >= most:
            raise capped("max_watch_sessions", most)

    def get(self, wid: str) -> Session | None:
        found = self._sessions.get(wid)
        if found is not None and self._is_over(found):
            del self._sessions[wid]
            return None
        return found

    def opened(self, session: Session) -> None:
        session.open += 1

    def closed(self, session: Session) -> None:
        session.open -= 1
        session.closed_at = self._now()

    def _is_over(self, session: Session) -> bool:
        return not session.open and self._now() - session.closed_at > TTL_S

    def _reclaim(self) -> None:
        self._reclaimed = self._now()
        for wid in [wid for wid, one in self._sessions.items() if self._is_over(one)]:
            del self._sessions[wid]
