"""The digests of the three domains, kept in memory. Promise: equal to what the tables give at any moment; changed only
after what they speak of is written.

They are made when they are first asked for, in small pieces so that nobody waits long; what is written meanwhile is
noted and counted in at the end.
"""

from __future__ import annotations

import asyncio

from topicd.shards.chat.changes import Told
from topicd.shards.chat.digest import Digest
from topicd.shards.chat.domains import BY_NAME, DOMAINS
from topicd.shards.chat.store import Store

PIECE = 2_000  # rows between two looks at the loop


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
        self._noted: dict[str, list[tuple[bytes | None, bytes | None]]] | None = None
        self._lock = asyncio.Lock()

    async def get(self, domain: str, cutoff_ms: int) -> Digest:
        """Of what is behind a cutoff; kept for the store's own."""
        if cutoff_ms != self._cutoff_ms and domain == "messages":
            return await made(self._store, domain, cutoff_ms)
        if domain not in self._known:
            async with self._lock:
                await self._make_all()
        return self._known[domain]

    async def _make_all(self) -> None:
        if self._known:
            return
        cutoff_ms = self._cutoff_ms
        self._noted = {domain: [] for domain in DOMAINS}
        # Each scan begins where its notes do: nothing is written between the two.
        found: dict[str, Digest] = {}
        for domain in DOMAINS:
            self._noted[domain] = []
            found[domain] = await made(self._store, domain, cutoff_ms)
        noted, self._noted = self._noted, None
        for domain, changes in noted.items():
            for old, new in changes:
                found[domain].replace(old, new)
        if cutoff_ms == self._cutoff_ms:
            self._known = found
        else:
            await self._make_all()

    def written(self, told: Told) -> None:
        for domain, changes in told.records.items():
            if self._noted is not None:
                self._noted[domain] += changes
            elif self._known:
                digest = self._known[domain]
                for old, new in changes:
                    digest.replace(old, new)

    def cut(self, cutoff_ms: int) -> None:
        """The store's own cutoff has moved."""
        if cutoff_ms != self._cutoff_ms:
            self._cutoff_ms = cutoff_ms
            self._known = {}

    def forget(self) -> None:
        self._known = {}
