"""What a topic's configuration means, as abilities. Promise: no other module asks for a durability class or a kind of
topic; a new one is written here.
"""

from __future__ import annotations

from topicd.config import Settings
from topicd.limits import MIB
from topicd.model import Durability, TopicConfig
from topicd.shards.delivery.writing.durability import NEED_OF, Need

# A topic in memory only, without a cap of its own, keeps this much.
EPHEMERAL_BYTES = 32 * MIB
# The most that segment_max_records and segment_max_bytes may be.
_UNLIMITED = 10_000_000
_UNLIMITED_BYTES = 1024 * MIB


class Policy:
    __slots__ = (
        *("cap_bytes", "cap_records", "capped", "evicts", "internal", "logged", "mark_need", "may_lose_tail"),
        *("need", "own", "rejects", "reserves", "schema", "synced", "tiered", "waits_for_marks", "yields"),
    )

    def __init__(self, config: TopicConfig, *, internal: bool, own: bool = False) -> None:
        durability = Durability(config.durability)
        self.internal = internal  # topicd's own: written and read once, whole, and deleted
        self.own = own  # of these, what nobody but topicd may change
        self.logged = durability != Durability.EPHEMERAL  # records go to the log, and from there to segments
        self.need = NEED_OF[durability]
        self.synced = durability == Durability.FSYNC
        # Seqs are promised ahead by marks in the log, where records may be lost and their seqs may not.
        self.reserves = durability in (Durability.DISK, Durability.EPHEMERAL)
        self.waits_for_marks = durability == Durability.DISK
        # The records of an ephemeral topic do not outlive the daemon, its seqs do: readers keep their cursors.
        self.mark_need = Need.SYNCED if self.logged else Need.PLACED
        # The class promises nothing for what was not synced when the machine went down.
        self.may_lose_tail = durability == Durability.MEMORY
        self.rejects = config.discard == "reject"
        self.cap_records = config.cap_records
        self.cap_bytes = config.cap_bytes
        self.schema = config.schema  # as text; None: any bytes
        self.capped = bool(config.cap_records or config.cap_bytes)
        # Old segments may leave the fast disk. Not those of jobs, which are read when they are handed out.
        self.tiered = self.logged and not internal and not own and config.type == "log"
        # Its followers wait first when the daemon is under pressure.
        self.yields = config.priority is not None and config.priority < 0
        # Records may have to go as soon as others came.
        self.evicts = self.capped or not self.logged

    @property
    def why_not_tiered(self) -> str:
        if self.internal or self.own:
            return "it is topicd's own"
        return "jobs are read when they are handed out" if self.logged else "an ephemeral topic has none"

    @property
    def change_need(self) -> Need:
        """Of a change that is answered when it is stored as the topic's class demands."""
        return max(self.need, Need.WRITTEN)

    @property
    def birth_need(self) -> Need:
        """The first block of seqs is reserved with the birth, so the birth is synced."""
        return Need.SYNCED if self.reserves_at_birth else Need.WRITTEN

    @property
    def reserves_at_birth(self) -> bool:
        return self.logged and not self.may_lose_tail

    @property
    def kept_records(self) -> int:
        """Beyond so many the oldest go; 0: no limit."""
        return 0 if self.rejects else self.cap_records

    @property
    def kept_bytes(self) -> int:
        kept = 0 if self.rejects else self.cap_bytes
        return kept if self.logged else min(kept or EPHEMERAL_BYTES, EPHEMERAL_BYTES)

    def may_go_direct(self, settings: Settings, *, copied: bool) -> bool:
        """May a large write go to its segment past the log?"""
        if not self.logged or settings.direct_writes == "none":
            return False
        return copied or self.internal or (self.synced and settings.direct_writes == "synced")

    def segment_limits(self, settings: Settings) -> tuple[int, int]:
        """The records and the bytes at which a segment is sealed. A seal, which is several syncs and another look at
        every byte, is worth nothing for topicd's own topics: only what a file can hold seals them."""
        if self.internal:
            return _UNLIMITED, _UNLIMITED_BYTES
        return settings.segment_max_records, settings.segment_max_bytes
