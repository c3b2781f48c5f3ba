"""Hostile bytes at every socket of a real daemon: `python -m tests.process.fuzz --count 100000 --seed 1`.

Promise: each connection gets answers or is closed as the protocol says, no process dies or restarts, memory stays
flat, no request fails inside the daemon, and a healthy client publishes and reads correctly all the while.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.process.fuzz_cases import DELIVERY, HISTORY, STRATEGIES, SUPERVISOR, Requests, Stream, World, foresee
from tests.process.procstat import pss_bytes
from tests.process.wire import Closed, Wire
from tests.support.daemon import Daemon, wait_until
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.limits import MIB
from topicd.placement import delivery_shard

SHARDS = 2
SETTINGS: dict[str, Any] = {
    "wal_shards": SHARDS,
    "delivery_shards": SHARDS,
    "ring_bytes": "1536KiB",
    "max_topics": 300,
    # What the fuzzer manages to store goes to disk soon: memory is measured.
    "checkpoint_bytes": "1MiB",
    "checkpoint_ms": 100,
    "snapshot_ms": 1000,
    "map_cache_bytes": "1MiB",
}
MEMORY = ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")
ANSWER_S = 30.0
LINGERING = 40
CASES_PER_CONNECTION = 20
TARGETS = [(DELIVERY, 0, 10.0), (DELIVERY, 1, 10.0), (SUPERVISOR, 0, 3.0), (HISTORY, 0, 0.3), (HISTORY, 1, 0.3)]


class Broken(AssertionError):
    """The daemon did not do what it promises; the message says how to see it again."""


@dataclass
class Report:
    cases: int = 0
    seconds: float = 0.0
    by_strategy: Counter[str] = field(default_factory=Counter)
    by_outcome: Counter[str] = field(default_factory=Counter)
    pss_before: Counter[str] = field(default_factory=Counter)
    pss_after: Counter[str] = field(default_factory=Counter)
    samples: list[int] = field(default_factory=list)  # anonymous memory, ten times during the run
    healthy_published: int = 0
    healthy_read: int = 0
    healthy_worst_ms: float = 0.0

    @property
    def growth_mib(self) -> float:
        return (self.pss_after["Pss"] - self.pss_before["Pss"]) / (1 << 20)

    def __str__(self) -> str:
        lines = [
            f"{self.cases} cases in {self.seconds:.1f} s",
            "memory of all processes, MiB: "
            + ", ".join(f"{k} {self.pss_before[k] / MIB:.1f} -> {self.pss_after[k] / MIB:.1f}" for k in MEMORY),
            "anonymous memory over the run, MiB: " + ", ".join(f"{size / MIB:.1f}" for size in self.samples),
            f"healthy client: {self.healthy_published} published, {self.healthy_read} read, "
            f"worst answer {self.healthy_worst_ms:.0f} ms",
            "cases: " + ", ".join(f"{name} {n}" for name, n in self.by_strategy.most_common()),
            "outcomes: " + ", ".join(f"{name} {n}" for name, n in self.by_outcome.most_common()),
        ]
        return "\n".join(lines)


class Healthy(threading.Thread):
    """Publishes to both shards, reads back and follows, and complains about everything that is not as it was."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(name="healthy", daemon=True)
        self._run_dir = run_dir
        self._stop_now = threading.Event()
        self.published = self.read = 0
        self.worst_s = 0.0
        self.problem: BaseException | None = None

    def stop(self) -> None:
        self._stop_now.set()
        self.join(120)
        if self.problem is not None:
            raise Broken(f"the healthy client failed: {self.problem!r}") from self.problem

    def run(self) -> None:
        try:
            links = [self._link(shard) for shard in range(SHARDS)]
            while not self._stop_now.is_set():
                for link in links:
                    self._round(*link)
                time.sleep(0.01)
            for wire, topic_id, _, sent in links:
                assert [row.data for row in wire.read_all(topic_id)] == sent
        except BaseException as exc:
            self.problem = exc

    def _link(self, shard: int) -> tuple[Wire, int, int, list[bytes]]:
        name = next(name for n in range(1000) if delivery_shard(name := f"healthy-{n}", SHARDS) == shard)
        wire = Wire(self._run_dir / f"dlv-{shard:02d}.sock", timeout=ANSWER_S)
        topic_id = wire.open(name, durability=["disk", "fsync"][shard])
        return wire, topic_id, wire.subscribe([{"topic": name}], credit=1 << 30), []

    def _round(self, wire: Wire, topic_id: int, subscription: int, sent: list[bytes]) -> None:
        datas = [b"%d-%d" % (topic_id, len(sent) + n) for n in range(3)]
        began = time.monotonic()
        answer = wire.append(topic_id, datas, producer=topic_id, batch_no=len(sent) // 3 + 1)
        self.worst_s = max(self.worst_s, time.monotonic() - began)
        assert (answer.first_seq, answer.count, answer.deduped) == (len(sent) + 1, 3, False), answer
        assert wire.fetch(topic_id, len(sent)).datas == datas
        pushed: list[bytes] = []
        while len(pushed) < 3:
            pushed += wire.pushed(subscription).datas
        assert pushed == datas
        sent += datas
        self.published += 3
        self.read += 6


class Fuzzer:
    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.report = Report()
        self._chance = random.Random(seed)
        self._seed = seed
        self._worlds = {kind: World(kind) for kind in (SUPERVISOR, HISTORY)}
        self._shards = [World(DELIVERY) for _ in range(SHARDS)]
        self._open: dict[tuple[str, int], tuple[Wire, int]] = {}
        self._lingering: deque[Wire] = deque()

    def run(self, count: int) -> Report:
        pids = self._pids()
        self._make_topics()
        healthy = Healthy(self.daemon.run.root)
        healthy.start()
        began = time.monotonic()
        warm = min(count // 4, 5000)
        for number in range(count):
            if number == warm:
                self._play_everything()
                self.report.pss_before = self._settled_pss()
            if number % max(1, count // 10) == 0:
                self.report.samples.append(sum(pss_bytes(pid, "Pss_Anon") for pid in pids.values()))
            self._case(number)
            if number % 1000 == 0 and healthy.problem is not None:
                break
        self._close_all()
        healthy.stop()
        report = self.report
        report.cases = count
        report.seconds = time.monotonic() - began
        report.pss_after = self._settled_pss()
        report.healthy_published, report.healthy_read = healthy.published, healthy.read
        report.healthy_worst_ms = healthy.worst_s * 1000
        self._check_processes(pids)
        self._check_log()
        self._check_sessions()
        return report

    def _play_everything(self) -> None:
        """Each strategy at each socket: what the largest of them need is reached before memory is measured."""
        for kind, shard, _ in TARGETS:
            for name in STRATEGIES[kind]:
                for _ in range(10):
                    self._try(f"before {name}", kind, shard, name)

    # ---- one case ----

    def _case(self, number: int) -> None:
        kind, shard = self._target()
        strategies = STRATEGIES[kind]
        name = self._chance.choices(list(strategies), [weight for _, weight in strategies.values()])[0]
        self.report.by_strategy[name] += 1
        self.report.by_outcome[self._try(f"case {number}", kind, shard, name)] += 1

    def _try(self, label: str, kind: str, shard: int, name: str) -> str:
        world = self._shards[shard] if kind != SUPERVISOR else self._worlds[SUPERVISOR]
        stream = STRATEGIES[kind][name][0](Requests(self._chance, world))
        try:
            return self._play(kind, shard, stream)
        except (TimeoutError, AssertionError) as exc:
            raise Broken(
                f"seed {self._seed} {label} ({name} at {kind} {shard}): {exc!r}\n{stream.data[:300]!r}"
            ) from exc

    def _target(self) -> tuple[str, int]:
        chosen = self._chance.choices(TARGETS, [weight for _, _, weight in TARGETS])[0]
        return chosen[0], chosen[1]

    def _play(self, kind: str, shard: int, stream: Stream) -> str:
        wire = self._wire(kind, shard, stream)
        forecast = foresee(stream.data, kind)
        try:
            for piece in _pieces(stream):
                wire.send_raw(piece)
        except (BrokenPipeError, ConnectionResetError):
            if not forecast.broken and kind != HISTORY:
                raise AssertionError("closed although nothing was wrong with the stream") from None
        if stream.hang_up:
            self._drop(kind, shard, wire)
            return "hung up"
        if stream.linger:
            self._linger(kind, shard, wire)
            return "left half open"
        if kind == HISTORY:
            self._drop(kind, shard, wire)
            return "history"
        outcome = self._expect_close(wire) if forecast.broken else self._expect_answers(wire, set(forecast.ids))
        if forecast.broken or forecast.rest or not stream.greet:
            self._drop(kind, shard, wire)
        return outcome

    def _expect_close(self, wire: Wire) -> str:
        replies = wire.wait_closed(ANSWER_S)
        assert replies, "closed without a word"
        assert (replies[-1].op, replies[-1].request_id) == (Op.ERROR, 0), f"the last word was {replies[-1]}"
        self._note(replies[-1].map)
        return "closed"

    def _expect_answers(self, wire: Wire, ids: set[int]) -> str:
        """Every request is answered; what else comes belongs to subscriptions and polls."""
        outcome = "silence"
        while ids:
            try:
                reply = wire.receive(ANSWER_S)
            except (Closed, ConnectionResetError):
                raise AssertionError(f"closed instead of answering {sorted(ids)}") from None
            if reply.request_id not in ids:
                continue
            ids.discard(reply.request_id)
            outcome = "answered"
            if reply.op == Op.ERROR:
                outcome = self._note(reply.map)
        return outcome

    @staticmethod
    def _note(error: dict[str, Any]) -> str:
        code = str(error["code"])
        assert code != "internal", error
        return code

    # ---- connections ----

    def _wire(self, kind: str, shard: int, stream: Stream) -> Wire:
        """The connection in use, or a new one where the case needs it or a few cases were played on it."""
        if not stream.greet or stream.linger:
            return Wire(self._path(kind, shard), greet=stream.greet and kind != HISTORY, timeout=ANSWER_S)
        wire, used = self._open.pop((kind, shard), (None, 0))
        if wire is None or used >= CASES_PER_CONNECTION:
            if wire is not None:
                wire.close()
            wire, used = Wire(self._path(kind, shard), timeout=ANSWER_S), 0
        self._open[kind, shard] = (wire, used + 1)
        return wire

    def _path(self, kind: str, shard: int) -> Path:
        run = self.daemon.run
        if kind == SUPERVISOR:
            return run.socket
        return run.delivery_socket(shard) if kind == DELIVERY else run.root / f"dlv-{shard:02d}.history.sock"

    def _drop(self, kind: str, shard: int, wire: Wire) -> None:
        wire.close()
        if self._open.get((kind, shard), (None, 0))[0] is wire:
            del self._open[kind, shard]

    def _linger(self, kind: str, shard: int, wire: Wire) -> None:
        if self._open.get((kind, shard), (None, 0))[0] is wire:
            del self._open[kind, shard]
        self._lingering.append(wire)
        if len(self._lingering) > LINGERING:
            self._lingering.popleft().close()

    def _close_all(self) -> None:
        for wire in [*self._lingering, *(wire for wire, _ in self._open.values())]:
            wire.close()
        self._lingering.clear()
        self._open.clear()

    # ---- the daemon ----

    def _make_topics(self) -> None:
        kinds = ["disk", "fsync", "memory", "ephemeral"]
        for n in range(24):
            name = f"fuzz-{n}"
            shard = delivery_shard(name, SHARDS)
            with Wire(self.daemon.run.delivery_socket(shard)) as wire:
                topic_id = wire.open(name, durability=kinds[n % 4], cap_records=1000, cap_bytes=1 << 20)
                wire.append(topic_id, [b"some", b"records"])
            self._shards[shard].topics.append((name, topic_id))
            self._shards[1 - shard].foreign.append(name)

    def _pids(self) -> dict[str, int]:
        return self.daemon.pids()

    def _settled_pss(self) -> Counter[str]:
        """Of all processes, once what was stored is on disk."""
        wait_until(lambda: all(self._stats(shard).get("tail_bytes", 0) < 1 << 20 for shard in range(SHARDS)), "quiet")
        return Counter({kind: sum(pss_bytes(pid, kind) for pid in self._pids().values()) for kind in MEMORY})

    def _stats(self, shard: int) -> dict[str, Any]:
        return self.daemon.stats(f"dlv-{shard:02d}")

    def _check_processes(self, pids: dict[str, int]) -> None:
        rows = self.daemon.status()["processes"]
        if {row["name"]: row["pid"] for row in rows} != pids or any(row["restarts"] for row in rows):
            raise Broken(f"processes changed: {pids} became {rows}\n{self.daemon.log_tail()}")

    def _check_log(self) -> None:
        if "Traceback" in self.daemon.log:
            raise Broken(f"something failed inside the daemon\n{self.daemon.log_tail()}")

    def _check_sessions(self) -> None:
        """Nobody who left is remembered."""
        for shard in range(SHARDS):
            wait_until(lambda shard=shard: self._stats(shard)["sessions"] <= 1, "sessions to end")  # type: ignore[misc]


def _pieces(stream: Stream) -> list[bytes]:
    size = -(-len(stream.data) // stream.pieces)
    return [stream.data[at : at + size] for at in range(0, len(stream.data), size)]


def fuzz(root: Path, count: int, seed: int) -> Report:
    with Daemon(root, **SETTINGS) as daemon:
        return Fuzzer(daemon, seed).run(count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        try:
            report = fuzz(Path(root), given.count, given.seed)
        except (Broken, TopicdError) as exc:
            print(exc)
            for note in getattr(exc, "__notes__", []):
                print(note)
            return 1
    print(report)
    if report.growth_mib >= 20:
        print(f"memory grew by {report.growth_mib:.1f} MiB")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
