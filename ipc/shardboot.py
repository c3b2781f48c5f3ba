"""What a shard is told at its start: who the other shards are, how they wake each other, what a killed run left.

Written by the supervisor, read by the shards; on the way it is the extras of a BootInfo.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from topicd.errors import FormatError
from topicd.ipc.control import BootInfo, process_name
from topicd.paths import Instance

WAL = "wal"
DELIVERY = "dlv"


class ShardBoot(NamedTuple):
    kind: str  # WAL or DELIVERY
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    instance: str  # 16 hex characters
    run: int
    wal_shards: int
    delivery_shards: int
    bell_fds: dict[str, int]  # process name -> eventfd, inherited under the same number; in the order of their words
    wal_seed: int  # u64 from FORMAT
    old_instance: Instance | None = None  # WAL shards only: whose rings they drain before they serve
    power_lost: bool = False  # the machine went down since the last run, and that run did not end clean
    first_id: int = 0  # delivery shards only: topic ids [first_id, end_id)
    end_id: int = 0
    listen_fd: int = -1  # delivery shards only: the socket for their clients, inherited under the same number

    @property
    def name(self) -> str:
        return process_name(self.kind, self.index)

    def bell_word(self, name: str) -> int:
        """Where the word of a process is in the bells region."""
        return list(self.bell_fds).index(name)

    def extras(self) -> dict[str, Any]:
        """What a BootInfo of this shard carries beside what every process is told."""
        old = self.old_instance
        told = {**self._asdict(), "old_instance": old._asdict() if old else None}
        return {name: told[name] for name in self._fields if name not in BootInfo._fields}

    @classmethod
    def of(cls, info: BootInfo) -> ShardBoot:
        old = info.extras.get("old_instance")
        told = {**info.extras, "old_instance": Instance(**old) if old else None}
        try:
            return cls(kind=info.kind, index=info.index, instance=info.instance, run=info.run, **told)
        except TypeError as exc:
            raise FormatError(f"boot message of a shard: {exc}") from None
