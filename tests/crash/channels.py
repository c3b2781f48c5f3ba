"""Channels while everything is killed: joins, leaves, publishes and pops go on through SIGKILL of single shards and of
the whole daemon, and after each of them members, owners and history are exactly what was answered.

    python -m tests.crash.channels --rounds 20 --seed 7          (make channel-storm)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.support.daemon import Daemon
from topicd.client.blocking.channels import Channels
from topicd.errors import ConnectionLost, NotMember, QueueEmpty, TopicdError

WORKERS = 4
USERS = [f"user-{n}" for n in range(12)]
KEPT = 60  # messages of each channel
PATIENCE_S = 120.0


class Room:
    """What must be true of one channel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: set[str] = {"keeper"}  # who never leaves, and so owns it
        self.messages: list[tuple[int, bytes]] = []

    def problems(self, channels: Channels) -> list[str]:
        found = channels.members(self.name)
        problems = []
        if set(found.users) != self.members or found.users != sorted(found.users):
            problems.append(f"{self.name}: members {found.users}, not {sorted(self.members)}")
        if found.owner != "keeper":
            problems.append(f"{self.name}: owner {found.owner}")
        history = [(one.seq, one.data) for one in channels.history(self.name)]
        if history != self.messages[-KEPT:]:
            problems.append(f"{self.name}: history {history[-5:]} of {len(history)}, not {self.messages[-5:]}")
        return problems


class Pond:
    """What must be true of one queue: what was pushed comes out in order, at most once, and only what was under way
    when something died may be missing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pushed = 0
        self.popped: list[int] = []
        self.unknown = 0

    def problems(self, channels: Channels) -> list[str]:
        if self.popped != sorted(set(self.popped)):
            return [f"{self.name}: popped {self.popped}"]
        first, last = channels.seq(self.name)
        left = last - first + 1 if last else 0
        missing = self.pushed - len(self.popped) - left
        return [] if 0 <= missing <= self.unknown else [f"{self.name}: {missing} gone, {self.unknown} pops unanswered"]


class Worker(threading.Thread):
    """Has rooms of its own, so that it knows what they must be."""

    def __init__(self, daemon: Daemon, number: int, rooms: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._channels = daemon.client(timeout=PATIENCE_S).channels
        self._random = Random(seed * 1000 + number)
        self.rooms = [Room(f"w{number}/room {n}") for n in range(rooms)]
        self.ponds = [Pond(f"w{number}/queue {n}") for n in range(max(1, rooms // 10))]
        self.running = threading.Event()  # cleared: it comes to rest
        self.resting = threading.Event()
        self.ended = False
        self.error: BaseException | None = None
        self.done = 0

    def prepare(self) -> None:
        for room in self.rooms:
            self._channels.join(room.name, user="keeper")
            self._channels.set_config(room.name, persist=True, max_persist_messages=KEPT)
        for pond in self.ponds:
            self._channels.join(pond.name, user="keeper")
            self._channels.set_config(pond.name, persist=True, max_persist_messages=100_000)
            self._channels.set_type(pond.name, "fifo")

    def run(self) -> None:
        try:
            while not self.ended:
                if not self.running.is_set():
                    self.resting.set()
                    self.running.wait()
                    self.resting.clear()
                    continue
                self._step()
                self.done += 1
        except BaseException as exc:
            self.error = exc
        self.resting.set()

    def _step(self) -> None:
        room, chance = self._random.choice(self.rooms), self._random.random()
        if chance < 0.15:
            self._queue_step(self._random.choice(self.ponds))
        elif chance < 0.55:
            data = b"%d" % self._random.getrandbits(60)
            room.messages.append((self._channels.publish(room.name, data, user="keeper"), data))
        elif chance < 0.8 or len(room.members) == 1:
            user = self._random.choice(USERS)
            self._channels.join(room.name, user=user)
            room.members.add(user)
        else:
            user = self._random.choice(sorted(room.members - {"keeper"}))
            with suppress(NotMember):  # it was repeated, and the first time was heard
                self._channels.leave(room.name, user=user)
            room.members.discard(user)

    def _queue_step(self, pond: Pond) -> None:
        if self._random.random() < 0.6:
            self._channels.push(pond.name, b"%d" % pond.pushed, user="keeper")
            pond.pushed += 1
            return
        try:
            pond.popped.append(int(self._channels.pop(pond.name, user="keeper").data))
        except QueueEmpty:
            pass
        except ConnectionLost:
            pond.unknown += 1


def storm(root: Path, *, rounds: int, channels: int, shards: int, seed: int, pause_s: float = 0.6) -> list[str]:
    """Problems; empty when every promise held."""
    chance = Random(seed)
    settings: dict[str, Any] = {"delivery_shards": shards, "wal_shards": 2, "checkpoint_ms": 50, "snapshot_ms": 200}
    with Daemon(root, **settings) as daemon:
        workers = [Worker(daemon, number, channels // WORKERS, seed) for number in range(WORKERS)]
        for worker in workers:
            worker.prepare()
            worker.running.set()
            worker.start()
        problems: list[str] = []
        for number in range(rounds):
            time.sleep(pause_s * chance.uniform(0.3, 1.0))
            what = _strike(daemon, chance)
            time.sleep(pause_s * chance.uniform(0.1, 0.5))
            found = _compare(daemon, workers)
            print(
                f"round {number + 1}: {what}, {sum(w.done for w in workers)} steps, {len(found)} problems", flush=True
            )
            problems += [f"round {number + 1} ({what}): {line}" for line in found]
            if problems:
                break
        for worker in workers:
            worker.ended = True
            worker.running.set()
            worker.join(PATIENCE_S)
    return problems


def _strike(daemon: Daemon, chance: Random) -> str:
    if chance.random() < 0.5:
        daemon.kill_all(chance)
        daemon.start().wait_ready()
        return "everything killed"
    victims = [chance.choice([name for name in daemon.pids() if name.startswith(("dlv", "wal"))])]
    for name in victims:
        old = daemon.kill(name)
        daemon.wait_replaced(name, old)
    daemon.wait_ready()
    return f"{victims[0]} killed"


def _compare(daemon: Daemon, workers: list[Worker]) -> list[str]:
    for worker in workers:
        worker.running.clear()
    found: list[str] = []
    channels = daemon.client(timeout=PATIENCE_S).channels
    for worker in workers:
        if not worker.resting.wait(PATIENCE_S):
            found.append("a worker does not come to rest")
        if worker.error is not None:
            found.append(f"a worker ended with {worker.error!r}")
            continue
        try:
            found += [line for room in (*worker.rooms, *worker.ponds) for line in room.problems(channels)]
        except TopicdError as exc:
            found.append(f"{type(exc).__name__}: {exc}")
    for worker in workers:
        worker.running.set()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.channels")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--channels", type=int, default=200)
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        found = storm(Path(root), rounds=given.rounds, channels=given.channels, shards=given.shards, seed=given.seed)
    print("\n".join(found) or "every channel is as it was answered")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
