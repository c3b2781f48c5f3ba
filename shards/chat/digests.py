"""The digests of the three domains, kept in memory. Promise: equal to what the tables give at any moment; changed only
after what they speak of is written.

They are made when they are first asked for, in small pieces so that nobody waits long; what is written meanwhile is
noted and counted in at the end.
"""

from __future__ import annotations

import asyncio

from topicd.shards.chat import hlc, keys
from topicd.shards.chat.changes import Told
from topicd.shards.chat.digest import Digest
from topicd.shards.chat.domains import BY_NAME, DOMAINS
from topicd.shards.chat.store import SEEN_MSG, Store

PIECE = 2_000  # rows between two looks at the loop
_OTHERS = 1_000_000  # written messages by which the digest of another cutoff is forgotten, if nobody asks for it

Records = list[tuple[bytes | None, bytes | None]]  # (old, new) ids


async def made(store: Store, domain: str, cutoff_ms: int) -> Digest:
    """From the table alone, as it was when this began."""
    digest = Digest()
    for number, (record, _) in enumerate(BY_NAME[domain].ids(store, cutoff_ms)):
        digest.insert(record)
        if number % PIECE == PIECE - 1:
            await asyncio.sleep(0)
    return digest


class Digests:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Digest] = {}
        self._cutoff_ms = 0
        self._noted: dict[str, Records] | None = None
        self._lock = asyncio.Lock()
        self._changed = 0  # how often everything was forgotten
        # Of messages behind the cutoff of another store, which is later than the own one.
        self._other: Digest | None = None
        self._other_ms = 0
        self._other_idle = 0
        self._other_noted: Records | None = None

    async def get(self, domain: str, cutoff_ms: int) -> Digest:
        """Of what is behind a cutoff, and behind the store's own."""
        cutoff_ms = max(cutoff_ms, self._cutoff_ms)
        if cutoff_ms != self._cutoff_ms and domain == "messages":
            async with self._lock:
                return await self._get_other(cutoff_ms)
        if domain not in self._known:
            async with self._lock:
                await self._make_all()
        return self._known[domain]

    async def _make_all(self) -> None:
        while not self._known:
            changed = self._changed
            noted = self._noted = {domain: [] for domain in DOMAINS}
            # Each scan begins where its notes do: nothing is written between the two.
            found: dict[str, Digest] = {}
            try:
                for domain in DOMAINS:
                    noted[domain].clear()
                    found[domain] = await made(self._store, domain, self._cutoff_ms)
            finally:
                self._noted = None
            for domain, changes in noted.items():
                _count(found[domain], changes)
            if changed == self._changed:
                self._known = found

    async def _get_other(self, cutoff_ms: int) -> Digest:
        """Two stores that compare themselves ask for it some twenty times in a row."""
        while self._other is None or self._other_ms != cutoff_ms:
            self._other, self._other_ms = None, cutoff_ms
            changed = self._changed
            noted: Records = []
            self._other_noted = noted
            try:
                found = await made(self._store, "messages", cutoff_ms)
            finally:
                self._other_noted = None
            _count(found, self._behind(noted))
            if changed == self._changed:
                self._other = found
        self._other_idle = 0
        return self._other

    def written(self, told: Told) -> None:
        self._written_other(told.records["messages"])
        for domain, changes in told.records.items():
            if self._noted is not None:
                self._noted[domain] += changes
            elif self._known:
                _count(self._known[domain], changes)

    def _written_other(self, messages: Records) -> None:
        if self._other_noted is not None:
            self._other_noted += messages
        elif self._other is not None and messages:
            _count(self._other, self._behind(messages))
            self._other_idle += len(messages)
            if self._other_idle > _OTHERS:
                self._other = None

    def _behind(self, messages: Records) -> Records:
        """Those that are behind the other cutoff."""
        ids = [new for _, new in messages if new is not None]
        places = zip(ids, self._store.get_many(SEEN_MSG, ids), strict=True)
        return [
            (None, one)
            for one, place in places
            if place is not None and hlc.physical_ms(keys.stamp_of_seen(place)) > self._other_ms
        ]

    def cut(self, cutoff_ms: int) -> None:
        """The store's own cutoff has moved."""
        if cutoff_ms != self._cutoff_ms:
            self._cutoff_ms = cutoff_ms
            self.forget()

    def forget(self) -> None:
        """The store is another one, or another part of it counts."""
        self._known = {}
        self._other = None
        self._changed += 1


def _count(digest: Digest, changes: Records) -> None:
    for old, new in changes:
        digest.replace(old, new)
