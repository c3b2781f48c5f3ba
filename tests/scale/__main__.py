"""A hundred thousand topics in one shard: created, written, checkpointed under load, restarted, killed. `make scale`.

Every figure has a bar where one is promised; a process that was replaced without having been killed here fails the
run, and so does a record that is missing at the end.

    python -m tests.scale [--topics 100000] [--dir DIR]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.process.wire import Wire, append_body, batch, packed
from tests.support.daemon import Daemon, wait_until
from topicd.errors import Throttled
from topicd.ipc.protocol.messages import Op

TOGETHER = 500  # requests under way
SHARD = "dlv-00"
READY_S = 300.0
IDLE_S = 5.0
PING_S = 0.01


class Bar(NamedTuple):
    what: str
    value: float
    unit: str
    most: float | None = None

    @property
    def missed(self) -> bool:
        return self.most is not None and self.value > self.most


class Pings:
    """How long PING takes on a connection of its own, again and again while something else happens."""

    def __init__(self, path: Path) -> None:
        self._wire = Wire(path, timeout=READY_S)
        self._over = threading.Event()
        self.took: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Pings:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._wire.close()

    def _run(self) -> None:
        while not self._over.wait(PING_S):
            began = time.monotonic()
            self._wire.ask(Op.PING)
            self.took.append((time.monotonic() - began) * 1000)

    @property
    def median(self) -> float:
        return statistics.median(self.took)

    @property
    def worst(self) -> float:
        return max(self.took)


class Scale:
    def __init__(self, root: Path, topics: int) -> None:
        settings = {"wal_shards": 1, "delivery_shards": 1, "max_topics": max(topics, 100_000), "stop_timeout_s": 120}
        self.daemon = Daemon(root, **settings)
        self.names = [f"scale.{number:06d}" for number in range(topics)]
        self.bars: list[Bar] = []
        self.ids: list[int] = []
        self.rounds = 0  # records in each topic
        self.killed = 0

    def run(self) -> bool:
        with self.daemon:
            self._measure()
            self._check()
            restarts = {row["name"]: row["restarts"] for row in self.daemon.status()["processes"]}
        fine = {"wal-00", SHARD} <= restarts.keys() and not any(restarts.values())
        fine = fine and not any(bar.missed for bar in self.bars)
        for bar in self.bars:
            bound = f" (bar {bar.most:g})" if bar.most is not None else ""
            print(f"{bar.what:<52} {bar.value:10.1f} {bar.unit}{bound}{'  MISSED' if bar.missed else ''}")
        print(f"processes replaced that nobody killed: {sum(restarts.values())}")
        return fine

    def _measure(self) -> None:
        self._note("create", self._create, per=len(self.names))
        self._note("write a record to each", self._write, per=len(self.names))
        self._ping("ping while idle", lambda: time.sleep(IDLE_S), most=50.0)
        self._ping("ping while every topic is written and checkpointed", self._write_and_checkpoint)
        self._note("list all", self._check)
        self._note("clean stop", self._stopped, unit="s")
        self._note("start after a clean stop", self._start, unit="s", most=20.0)
        self._ping("ping while idle after a start", lambda: time.sleep(IDLE_S), most=50.0)
        self._write()
        self._note("shard killed, until it serves again", self._kill_shard, unit="s", most=20.0)
        self._check()
        self._write()
        self.daemon.kill_all()
        self._note("start after SIGKILL of everything", self._start, unit="s", most=20.0)
        self._bar("memory of the shard", self._resident() / (1 << 20), "MiB")

    # ---- steps ----

    def _create(self) -> None:
        self.ids = self._many(Op.OPEN, [{"topic": name} for name in self.names], lambda reply: reply["topic_id"])

    def _write(self) -> None:
        self.rounds += 1
        frames = bytes(batch([b"x" * 100]))
        with self._wire() as wire:
            for at in range(0, len(self.ids), TOGETHER):
                sent = []
                out = bytearray()
                for topic_id in self.ids[at : at + TOGETHER]:
                    sent.append(wire.next_id())
                    out += packed(Op.APPEND, sent[-1], append_body(topic_id, frames, 1))
                wire.send_raw(out)
                for request_id in sent:
                    wire.appended(request_id)

    def _write_and_checkpoint(self) -> None:
        """Until all of it is in segments."""
        self._write()
        self._write()
        wait_until(lambda: self.daemon.stats(SHARD)["tail_bytes"] == 0, "the checkpoint", READY_S)

    def _stopped(self) -> None:
        stopped = self.daemon.stop(timeout=READY_S)
        assert stopped.code == 0, self.daemon.log_tail()

    def _start(self) -> None:
        self.daemon.start().wait_ready(READY_S)

    def _kill_shard(self) -> None:
        self.daemon.wait_replaced(SHARD, self.daemon.kill(SHARD), READY_S)

    def _check(self) -> None:
        """Every topic is there with every record."""
        found: dict[str, int] = {}
        after = ""
        with self._wire() as wire:
            while True:
                page = wire.ask(Op.LIST, {"limit": 1000, "after": after})
                found |= {row["topic"]: row["count"] for row in page["topics"]}
                if page["next"] is None:
                    break
                after = page["next"]
        assert found == dict.fromkeys(self.names, self.rounds), f"{len(found)} topics, {set(found.values())} records"

    # ---- means ----

    def _wire(self) -> Wire:
        return Wire(self.daemon.run.delivery_socket(0), timeout=READY_S)

    def _many(self, op: Op, bodies: list[dict[str, str]], take: Callable[[dict[str, int]], int]) -> list[int]:
        found: list[int] = []
        with self._wire() as wire:
            for at in range(0, len(bodies), TOGETHER):
                left = bodies[at : at + TOGETHER]
                while left:
                    ids = [wire.next_id() for _ in left]
                    wire.send_raw(b"".join(packed(op, id, body) for id, body in zip(ids, left, strict=True)))
                    again = []
                    for request_id, body in zip(ids, left, strict=True):
                        try:
                            found.append(take(wire.wait(request_id).checked(op).map))
                        except Throttled:
                            again.append(body)  # ids are on their way from the supervisor
                    left = again
        return found

    def _note(
        self, what: str, do: Callable[[], None], *, unit: str = "s", per: int = 0, most: float | None = None
    ) -> None:
        print(f"... {what}", file=sys.stderr, flush=True)
        began = time.monotonic()
        do()
        took = time.monotonic() - began
        self._bar(what, took, unit, most)
        if per:
            self._bar(f"{what}, per second", per / took, "1/s")

    def _ping(self, what: str, do: Callable[[], None], most: float | None = None) -> None:
        print(f"... {what}", file=sys.stderr, flush=True)
        with Pings(self.daemon.run.delivery_socket(0)) as pings:
            do()
        self._bar(f"{what}, median", pings.median, "ms")
        self._bar(f"{what}, worst", pings.worst, "ms", most)

    def _bar(self, what: str, value: float, unit: str, most: float | None = None) -> None:
        self.bars.append(Bar(what, value, unit, most))
        print(f"    {what}: {value:.1f} {unit}", file=sys.stderr, flush=True)

    def _resident(self) -> int:
        return next(row["rss"] for row in self.daemon.status()["processes"] if row["name"] == SHARD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, default=None, help="where the data lies; default: a temporary directory")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as root:
        sys.exit(0 if Scale(Path(root), given.topics).run() else 1)


if __name__ == "__main__":
    main()
