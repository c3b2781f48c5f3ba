"""Keys that one job holds at a time. Promise: while a key is held, whoever publishes under it finds the job that holds
it, stored or on its way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DONE, START, TIME = "done", "start", "time"


class Held(NamedTuple):
    seq: int
    until: str  # DONE, START or TIME
    until_ms: int  # for TIME


class UniqueKeys:
    def __init__(self) -> None:
        self._by_key: dict[str, Held] = {}
        self._by_seq: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def holder(self, key: str, now_ms: int) -> Held | None:
        held = self._by_key.get(key)
        if held is not None and held.until == TIME and held.until_ms <= now_ms:
            self._forget(held.seq)
            return None
        return held

    def key_of(self, seq: int) -> str:
        return self._by_seq.get(seq, "")

    def hold(self, key: str, seq: int, until: str, until_ms: int) -> None:
        before = self._by_key.get(key)
        if before is not None:
            self._by_seq.pop(before.seq, None)
        self._by_key[key] = Held(seq, until, until_ms)
        self._by_seq[seq] = key

    def started(self, seq: int) -> None:
        """It is handed out."""
        key = self._by_seq.get(seq)
        if key is not None and self._by_key[key].until == START:
            self._forget(seq)

    def ended(self, seq: int) -> None:
        """There is no such job any more."""
        key = self._by_seq.get(seq)
        if key is not None and self._by_key[key].until != TIME:
            self._forget(seq)

    def take_back(self, seq: int) -> None:
        """It was never stored."""
        if seq in self._by_seq:
            self._forget(seq)

    def _forget(self, seq: int) -> None:
        key = self._by_seq.pop(seq, None)
        if key is not None:
            del self._by_key[key]

    def expire(self, now_ms: int) -> None:
        over = [held.seq for held in self._by_key.values() if held.until == TIME and held.until_ms <= now_ms]
        for seq in over:
            self._forget(seq)

    def rows(self, visible: int) -> list[list[Any]]:
        return [[key, *held] for key, held in self._by_key.items() if held.seq <= visible]

    def restore(self, rows: list[Any]) -> None:
        for key, seq, until, until_ms in rows:
            self.hold(str(key), int(seq), str(until), int(until_ms))

    def seqs(self) -> list[int]:
        return [held.seq for held in self._by_key.values() if held.until != TIME]
