"""Hostile requests at the HTTP face of a real daemon: `python -m tests.process.web.fuzz --count 100000 --seed 1`.

Promise: every connection gets answers of the contract or is closed, none of them 500; what was smuggled is not served;
no process dies, nothing fails inside, memory stays flat, no place of a stream or body is lost; and a healthy client is
served as under as many ordinary requests: its p99 grows by RATIO_MAX at most.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.process.procstat import pss_bytes
from tests.process.web.hostile import STRATEGIES, Case, chosen
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web
from topicd.bench.worker import READY, Worker
from topicd.limits import MIB

SETTINGS: dict[str, Any] = {"wal_shards": 2, "delivery_shards": 2, "max_topics": 200, "checkpoint_bytes": "1MiB"}
ENVIRON = {"TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0"}
ANSWER_S = 20.0
LINGERING = 150
GROWTH_MIB = 20
RATIO_MAX = 2.0
PLAYERS = 4
STATUSES = frozenset({100, 101, 200, 201, 204, 304, 400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429, 503})
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Za-z ]+\r\n")


class Broken(AssertionError):
    """The daemon did not do what it promises."""


@dataclass
class Report:
    cases: int = 0
    seconds: float = 0.0
    by_strategy: Counter[str] = field(default_factory=Counter)
    by_outcome: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)  # of the gateway, ten times during the run
    quiet_p99_ms: float = 0.0
    hostile_p99_ms: float = 0.0
    healthy: int = 0

    @property
    def growth_mib(self) -> float:
        """From a third of the run to its end, when all have left: before, caches fill."""
        settled = self.memory[len(self.memory) // 3 :]
        return (settled[-1] - settled[0]) / MIB if settled else 0.0

    @property
    def ratio(self) -> float:
        return self.hostile_p99_ms / self.quiet_p99_ms if self.quiet_p99_ms else 0.0

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.cases} cases in {self.seconds:.1f} s",
                "memory of the gateway, MiB: " + ", ".join(f"{size / MIB:.1f}" for size in self.memory),
                f"healthy client: {self.healthy} writes and reads, p99 {self.hostile_p99_ms:.1f} ms; "
                f"{self.quiet_p99_ms:.1f} ms under ordinary requests ({self.ratio:.2f} x)",
                "cases: " + ", ".join(f"{name} {n}" for name, n in self.by_strategy.most_common()),
                "outcomes: " + ", ".join(f"{name} {n}" for name, n in self.by_outcome.most_common()),
            )
        )


def healthy(link: Connection, port: int, topic: str) -> list[float]:
    """In a process of its own: writes and reads back until it is told to end; how long each pair took."""
    http = HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)

    def ask(path: str, body: Any) -> Any:
        http.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = http.getresponse()
        assert answer.status in (200, 201), (answer.status, answer.read())
        return json.loads(answer.read())

    took: list[float] = []
    link.send(READY)
    while not link.poll():
        head, began = len(took), time.monotonic()
        assert ask(f"/v0/topics/{topic}", {"records": [{"data": head}]})["first_seq"] == head + 1
        found = ask(f"/v0/topics/{topic}/diff", {"from_seq": head})
        took.append(time.monotonic() - began)
        assert [record["data"] for record in found["records"]] == [head], found
        time.sleep(0.005)
    link.recv()
    return took


class Player:
    """One who sends case after case, each on a connection of its own."""

    def __init__(self, port: int, report: Report) -> None:
        self._port = port
        self._report = report
        self._lingering: deque[socket.socket] = deque()

    def play(self, name: str, case: Case) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_S)
        try:
            outcome = self._exchange(sock, case)
        except TimeoutError:
            raise Broken(f"{name}: neither answered nor closed within {ANSWER_S:g} s: {case.data[:300]!r}") from None
        self._report.by_strategy[name] += 1
        self._report.by_outcome[outcome] += 1
        self._report.cases += 1
        if outcome != "left lying":
            sock.close()

    def _exchange(self, sock: socket.socket, case: Case) -> str:
        try:
            size = -(-len(case.data) // case.pieces)
            for at in range(0, len(case.data), size):
                sock.sendall(case.data[at : at + size])
            if case.stays:
                self._leave(sock)
                return "left lying"
            sock.shutdown(socket.SHUT_WR)
            received = b""
            while piece := sock.recv(1 << 18):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            return "reset"
        except OSError as exc:
            if exc.errno == 107:  # not connected any more
                return "reset"
            raise
        return self._judge(case, received)

    def _judge(self, case: Case, received: bytes) -> str:
        if not received:
            return "closed"
        if case.version == 2 and not received.startswith(b"HTTP/"):
            return "frames"
        statuses = [int(found) for found in _STATUS.findall(received)]
        if not statuses or not received.startswith(b"HTTP/1.1 "):
            raise Broken(f"no HTTP came back but {received[:200]!r} to {case.data[:300]!r}")
        if not set(statuses) <= STATUSES:
            raise Broken(f"answered {statuses} to {case.data[:500]!r}")
        if case.answers is not None and len(statuses) > case.answers:
            raise Broken(f"{len(statuses)} answers, at most {case.answers} were due, to {case.data[:500]!r}")
        return str(statuses[-1])

    def _leave(self, sock: socket.socket) -> None:
        self._lingering.append(sock)
        if len(self._lingering) > LINGERING:
            self._lingering.popleft().close()

    def close(self) -> None:
        while self._lingering:
            self._lingering.popleft().close()


class Fuzzer:
    def __init__(self, daemon: Daemon, seed: int, only: str = "") -> None:
        self.daemon = daemon
        self.report = Report()
        self._only = only
        self._seed = seed
        self._web = Web(daemon)

    def run(self, count: int) -> Report:
        for n in range(8):
            self._web("PUT", f"/v0/topics/fuzz.{n}", {"cap_records": 1_000, "cap_bytes": MIB})
        self._web("PUT", "/v0/topics/queue", {"type": "queue"})
        self._web.write("victim", "alive")
        pids = self.daemon.pids()
        self.report.quiet_p99_ms = self._load("healthy.quiet", max(50, count // 10), hostile=False)
        self.report = Report(quiet_p99_ms=self.report.quiet_p99_ms)
        began = time.monotonic()
        self.report.hostile_p99_ms = self._load("healthy.hostile", count, hostile=True)
        self.report.seconds = time.monotonic() - began
        self._check(pids)
        self._await_memory(pids["gateway-00"])
        return self.report

    def _await_memory(self, gateway: int) -> None:
        """What it has when all have left, and it has had the time to give back."""
        self.report.memory.append(0)
        deadline = time.monotonic() + 15
        while True:
            self.report.memory[-1] = pss_bytes(gateway, "Pss_Anon")
            if self.report.growth_mib < GROWTH_MIB / 2 or time.monotonic() > deadline:
                return
            time.sleep(0.5)

    def _load(self, topic: str, count: int, *, hostile: bool) -> float:
        problems: list[BaseException] = []
        with Worker(healthy, self._web.port, topic) as worker:
            worker.wait_ready()
            self._play_all(count, hostile, problems)
            worker.go()
            took: list[float] = worker.result()
        if problems:
            raise problems[0]
        self.report.healthy = len(took)
        return sorted(took)[int(len(took) * 0.99)] * 1000

    def _play_all(self, count: int, hostile: bool, problems: list[BaseException]) -> None:
        players = [threading.Thread(target=self._play, args=(n, count, hostile, problems)) for n in range(PLAYERS)]
        for player in players:
            player.start()
        for player in players:
            player.join()

    def _play(self, number: int, count: int, hostile: bool, problems: list[BaseException]) -> None:
        chance = random.Random(f"{self._seed}-{number}")
        player = Player(self._web.port, self.report)
        mine = count // PLAYERS + (number < count % PLAYERS)
        gateway = self.daemon.pids()["gateway-00"]
        try:
            for n in range(mine):
                name = (self._only or chosen(chance)) if hostile else "valid"
                player.play(name, STRATEGIES[name][0](chance))
                if number == 0 and n % max(1, mine // 10) == 0:
                    with contextlib.suppress(OSError):
                        self.report.memory.append(pss_bytes(gateway, "Pss_Anon"))
                if problems:
                    return
        except BaseException as exc:
            exc.add_note(f"player {number}, case {n}, seed {self._seed}")
            problems.append(exc)
        finally:
            player.close()

    def _check(self, pids: dict[str, int]) -> None:
        rows = self.daemon.status()["processes"]
        if {row["name"]: row["pid"] for row in rows if row["pid"]} != pids or any(row["restarts"] for row in rows):
            raise Broken(f"processes changed: {pids} became {rows}\n{self.daemon.log_tail()}")
        if "Traceback" in self.daemon.log:
            raise Broken(f"something failed inside the daemon\n{self.daemon.log_tail()}")
        found = self._web("POST", "/v0/topics/victim/diff")
        if [record["data"] for record in found.body["records"]] != ["alive"]:
            raise Broken(f"the victim of smuggled requests was reached: {found.raw!r}")
        self._web.close()

        def idle() -> bool:
            stats = self.daemon.stats("gateway-00")
            return stats["streams"] == 0 and stats["body_bytes"] == 0 and stats["connections"] == 0

        wait_until(idle, "streams, bodies and connections of those who left to be forgotten", 90)


def fuzz(root: Path, count: int, seed: int, only: str = "") -> Report:
    with Daemon(root, env=ENVIRON, **SETTINGS) as daemon:
        return Fuzzer(daemon, seed, only).run(count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", choices=sorted(STRATEGIES), default="", help="one kind of hostility")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        try:
            report = fuzz(Path(root), given.count, given.seed, given.only)
        except AssertionError as exc:
            print(exc)
            for note in getattr(exc, "__notes__", []):
                print(note)
            return 1
    print(report)
    if report.growth_mib >= GROWTH_MIB:
        print(f"memory grew by {report.growth_mib:.1f} MiB")
        return 1
    if report.ratio > RATIO_MAX:
        print(f"the healthy client's p99 grew {report.ratio:.2f} times")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
