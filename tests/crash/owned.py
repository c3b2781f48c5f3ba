"""Topics with one writer each, so that every state is known exactly: what a TTL removes and what `retain: acked` frees
under kills. Nothing is asked of them before their writer is paused, with every request answered.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.crash.load import Worker
from topicd.client.blocking.client import Client

PACE_S = 0.01
CLOCK_SLACK_MS = 10


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Written:
    data: bytes
    sent_ms: int
    first_seq: int


class Expiring(Worker):
    """Writes records that expire. What is younger than the TTL is there, what is older is not, and a reader from the
    beginning is told of exactly what is missing."""

    TOPIC = "expiring"
    TTL_MS = 2_500

    def __init__(self, run_dir: Path, durability: str) -> None:
        super().__init__(self.TOPIC, run_dir)
        self._durability = durability
        self._written: list[Written] = []

    def prepare(self, client: Client) -> None:
        client.configure(self.TOPIC, ttl_ms=self.TTL_MS, durability=self._durability)

    def step(self, client: Client) -> None:
        data, sent_ms = b"%s/%d" % (self.TOPIC.encode(), len(self._written)), _now_ms()
        self._written.append(Written(data, sent_ms, client.publish(self.TOPIC, data)))
        time.sleep(PACE_S)

    def check(self, client: Client) -> list[str]:
        asked_ms = _now_ms()
        answer = client.fetch(self.TOPIC, 0, limit=100_000, max_bytes=8 << 20)
        answered_ms = _now_ms()
        problems = [] if answer.caught_up else [f"{len(answer)} records, and not all"]
        known = {written.data: written.first_seq for written in self._written}
        found = {record.data: record for record in answer}
        problems += [
            f"{r.seq} is {r.data!r}, stored at {known.get(r.data)}" for r in answer if known.get(r.data) != r.seq
        ]
        problems += [
            f"{written.first_seq}, {answered_ms - written.sent_ms} ms old, is lost"
            for written in self._written
            if written.sent_ms + self.TTL_MS > answered_ms + CLOCK_SLACK_MS and written.data not in found
        ]
        problems += [
            f"{record.seq} was served {asked_ms - record.ts} ms after it was stored"
            for record in answer
            if record.ts + self.TTL_MS <= asked_ms - CLOCK_SLACK_MS
        ]
        newest = self._written[-1].first_seq if self._written else 0
        if answer.head_seq != newest:
            problems.append(f"head is {answer.head_seq}, the last one stored was {newest}")
        gap, first = answer.tombstone, answer[0].seq if len(answer) else newest + 1
        told = None if gap is None else (gap.gap_from, gap.gap_to, str(gap.reason))
        if told != (None if first == 1 else (1, first - 1, "ttl")):
            problems.append(f"the first is {first} and the tombstone {told}")
        return [f"{self.TOPIC}: {problem}" for problem in problems]


class Retained(Worker):
    """Writes records and acknowledges them as two consumers. Exactly what both have acknowledged is gone."""

    TOPIC = "retained"
    CONSUMERS = ("ann", "bob")

    def __init__(self, run_dir: Path, durability: str, seed: int) -> None:
        super().__init__(self.TOPIC, run_dir)
        self._durability = durability
        self._random = Random(seed)
        self._newest = 0
        self._freed = 0
        self._acked = dict.fromkeys(self.CONSUMERS, 0)

    def prepare(self, client: Client) -> None:
        client.configure(self.TOPIC, retain="acked", durability=self._durability)
        for name in self.CONSUMERS:
            client.open_consumer(self.TOPIC, name)

    @staticmethod
    def _data(seq: int) -> bytes:
        return b"retained/%d" % seq

    def step(self, client: Client) -> None:
        self._newest += 1
        assert client.publish(self.TOPIC, self._data(self._newest)) == self._newest
        name = self._random.choice(self.CONSUMERS)
        deed = self._random.random()
        if deed < 0.3:
            self._acked[name] = self._random.randint(self._acked[name], self._newest)
            client.ack_consumer(self.TOPIC, name, self._acked[name])
        elif deed < 0.33:
            self._acked[name] = self._random.randint(self._freed, self._newest)
            client.reset_consumer(self.TOPIC, name, self._acked[name])
        self._freed = max(self._freed, min(self._acked.values()))
        time.sleep(PACE_S)

    def check(self, client: Client) -> list[str]:
        answer = client.fetch(self.TOPIC, 0, limit=100_000, max_bytes=8 << 20)
        found = [(record.seq, record.data) for record in answer]
        wanted = [(seq, self._data(seq)) for seq in range(self._freed + 1, self._newest + 1)]
        problems = []
        if found != wanted:
            lost, back = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
            problems.append(f"lost {lost[:5]}, there and not expected {back[:5]}, freed through {self._freed}")
        if answer.tombstone is not None:
            problems.append(f"what was acknowledged is freed silently, not with {answer.tombstone}")
        rows = {row.name: row.acked_seq for row in client.consumers(self.TOPIC)}
        for name, acked in self._acked.items():
            if (have := rows.get(name)) != acked:
                problems.append(f"consumer {name} acknowledged {acked}, found {have}")
        return [f"{self.TOPIC}: {problem}" for problem in problems]
