"""Those on TCP that have not shown a valid token yet. Promise: they are few, in all and from one address; they do not
stay; whoever guesses tokens gets ever slower answers; and what they do fills no log. Who is known, and who comes from
this machine, notices nothing of them.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import OrderedDict

from topicd.shards.delivery.place import Place

log = logging.getLogger(__name__)

PATIENCE_S = 10.0  # from the accepted connection to the valid token, the handshake of TLS included
_ADDRESSES = 1_024  # whose wrong tokens are remembered
_FORGIVEN_S = 30.0  # an address without a wrong token for so long begins anew
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
_CROWD = 64  # wrong tokens within _FORGIVEN_S, from whatever addresses: then everybody's have the longest delay
_LINES = 10  # in the log
_LINES_S = 60.0


class Guest:
    """One of them, from the moment it is accepted."""

    __slots__ = ("address", "here")

    def __init__(self, address: bytes) -> None:
        self.address = address
        self.here = True


class Strangers:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._here: dict[bytes, int] = {}  # by address
        self._wrong: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # by address: how many, when the last was
        self._crowd = (0, 0.0)  # the same for all of them
        self._lines = (0, 0.0)  # in the log since
        self._unsaid = 0
        self.count = 0
        self.turned_away = 0

    def admit(self, host: str) -> Guest | None:
        """None: there are too many already."""
        limit = self._place.settings.max_unauthenticated
        address = address_of(host)
        here = self._here.get(address, 0)
        if self.count >= limit or here >= max(1, limit // 2):
            self.turned_away += 1
            self.say("too many connections without a token", host)
            return None
        self._here[address] = here + 1
        self.count += 1
        return Guest(address)

    def leave(self, guest: Guest) -> None:
        """It is known now, or it is gone."""
        if not guest.here:
            return
        guest.here = False
        self.count -= 1
        left = self._here[guest.address] - 1
        if left:
            self._here[guest.address] = left
        else:
            del self._here[guest.address]

    def delay(self, address: bytes) -> float:
        """It has shown a wrong token: how long until it hears so."""
        now = time.monotonic()
        wrong = _counted(self._wrong.pop(address, (0, now)), now)
        self._wrong[address] = wrong
        if len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)
        self._crowd = _counted(self._crowd, now)
        if self._crowd[0] > _CROWD:
            return _LONGEST_DELAY_S
        return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 1.5 ** (wrong[0] - 1))

    def say(self, reason: str, host: str = "") -> None:
        """A line in the log about whoever was refused, if there were not too many of late; the rest is counted."""
        now = time.monotonic()
        lines, since = self._lines
        if now - since > _LINES_S:
            self.tell_unsaid()
            lines, since = 0, now
        if lines < _LINES:
            log.warning("connection refused", extra={"reason": reason, **({"address": host} if host else {})})
        else:
            self._unsaid += 1
        self._lines = (lines + 1, since)

    def tell_unsaid(self) -> None:
        if self._unsaid:
            log.warning("more connections were refused", extra={"connections": self._unsaid})
            self._unsaid = 0

    def tick(self) -> None:
        """Once a second."""
        if self._unsaid and time.monotonic() - self._lines[1] > _LINES_S:
            self.tell_unsaid()


def _counted(wrong: tuple[int, float], now: float) -> tuple[int, float]:
    count, last = wrong
    return (1 if now - last > _FORGIVEN_S else count + 1), now


def address_of(host: str) -> bytes:
    """What counts as one: an IPv4 address, a network of 64 bits of IPv6."""
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    except OSError:
        return host.encode()
    if packed[:12] == bytes(10) + b"\xff\xff":
        return packed[12:]
    return packed[:8] if len(packed) == 16 else packed
