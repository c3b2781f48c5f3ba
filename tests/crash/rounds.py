"""Rounds of killing. One generation is one data directory with its load and its oracle; every round kills something
at a random moment, brings the daemon back where nobody else does, and compares everything with the oracle.

A seed fixes every decision; the moments at which the machine carries them out are its own.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.load import Churner, Meddler, Producer, Watcher, wait_for_acks
from tests.crash.owned import Expiring, Retained
from tests.support.daemon import LIVELY, SUPERVISOR, Daemon, drain_topic, wait_until
from tests.support.oracle import Oracle, Seen, seen
from topicd.client.blocking.client import Client
from topicd.errors import TopicNotFound

CLASSES = ("fsync", "disk", "memory")
ROUNDS_PER_GENERATION = 10
PRODUCERS = 3
TOPICS_PER_CLASS = 2
CAPPED = "capped"
CAP = 700
CHURNED = "churned"
RECOVERY_S = 90.0
STOP_LIMIT_S = 10.0
# The supervisor gives up on a child that dies five times within 30 s; a round never pushes it there.
FAST_KILLS_MAX = 3
# Words of the log that no kill explains.
ALARMS = ("Traceback", "storage is damaged", "WAL is damaged", "checkpoint failed", "process failed", "giving up")


class Violation(AssertionError):
    pass


@dataclass(frozen=True)
class Options:
    rounds: int = 100
    seed: int = 1
    classes: Sequence[str] = CLASSES
    shards: Sequence[int] = (1, 2, 3)  # counts to choose from, for both kinds
    keep: Path = Path("var/crash")


@dataclass
class Report:
    """One round in a line."""

    number: int
    what: str
    seconds: float
    acked: int
    unanswered: int
    deeds: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        deeds = f"; {', '.join(self.deeds)}" if self.deeds else ""
        return f"{self.what}: {self.acked} acked, {self.unanswered} unanswered, {self.seconds:.1f} s{deeds}"


class Generation:
    """Open, some rounds, close."""

    def __init__(self, root: Path, options: Options, number: int) -> None:
        self.root = root
        self._options = options
        self._random = Random(f"{options.seed}/{number}")
        self.oracle = Oracle()
        # From a few records on, or never: past the log.
        direct = self._random.choice(("512", "2KiB", "1GiB"))
        self.daemon = Daemon(root, **LIVELY, **self._counts(), direct_writes="synced", direct_bytes=direct)
        self._fast_kills: dict[str, int] = {}
        self._log_seen = 0
        self.history: list[str] = [
            f"shards {self.daemon.settings['wal_shards']}x{self.daemon.settings['delivery_shards']}, direct {direct}"
        ]

    def _counts(self) -> dict[str, int]:
        chance, allowed = self._random, self._options.shards
        return {"wal_shards": chance.choice(allowed), "delivery_shards": chance.choice(allowed)}

    # ---- life ----

    def open(self) -> None:
        self.daemon.start().wait_ready()
        self._topics = [f"{cls}-{n}" for cls in self._options.classes for n in range(TOPICS_PER_CLASS)]
        client = self.daemon.client()
        for name in self._topics:
            client.configure(name, durability=name.split("-")[0])
            self.oracle.topic(name)
        client.configure(CAPPED, durability=self._options.classes[0], cap_records=CAP)
        self.oracle.topic(CAPPED, cap_records=CAP)
        run_dir, seed = self.daemon.run.root, self._random.getrandbits(32)
        classes = self._options.classes
        self._owned: list[Expiring | Retained] = [
            Expiring(run_dir, self._random.choice(classes)),
            Retained(run_dir, self._random.choice(classes), seed),
        ]
        for owned in self._owned:
            owned.prepare(client)
        client.close()
        self._producers = [
            Producer(f"p{n}", run_dir, self.oracle, [*self._topics, CAPPED], seed + n) for n in range(PRODUCERS)
        ]
        self._churner = Churner("churner", run_dir, self.oracle, CHURNED, seed)
        self._meddler = Meddler(self.oracle, self._random, self._options.classes)
        self._watcher = Watcher(run_dir, self._topics)
        self._watcher.start()
        if not self._watcher.opened.wait(RECOVERY_S):
            raise AssertionError("the watcher could not subscribe")
        for worker in self._workers:
            worker.start()

    @property
    def _workers(self) -> list[Any]:
        return [*self._producers, self._churner, *self._owned]

    def close(self) -> None:
        """A clean stop at the end: within its time, with nothing left behind."""
        for worker in self._workers:
            worker.stop()
        self._watcher.stop()
        stopped = self.daemon.stop()
        if stopped.code != 0 or stopped.seconds > STOP_LIMIT_S:
            raise Violation(f"clean stop: exit code {stopped.code} after {stopped.seconds:.1f} s")
        if left := self.daemon.shm_left():
            raise Violation(f"clean stop left shared memory behind: {left[:5]}")
        self.abandon()

    def abandon(self) -> None:
        self._stop_quietly()
        self.daemon.close()

    def _stop_quietly(self) -> None:
        for worker in self._workers if hasattr(self, "_watcher") else []:
            worker._stopping = True
            worker.go()
        if hasattr(self, "_watcher"):
            self._watcher.stop()

    # ---- a round ----

    def round(self, number: int) -> Report:
        began = time.monotonic()
        chance = self._random
        what, deed = chance.choices(
            [
                ("kill one", self._kill_one),
                ("kill two", self._kill_two),
                ("kill supervisor", self._kill_supervisor),
                ("kill all", self._kill_all),
                ("kill all twice", self._kill_all_twice),
                ("stop", self._stop_and_start),
            ],
            weights=[30, 10, 15, 25, 10, 10],
        )[0]
        for worker in self._workers:
            worker.go()
        wait_for_acks(self._producers, 3, self._check_workers, RECOVERY_S)
        deeds = self._meddle() if chance.random() < 0.35 else []
        time.sleep(chance.random() * 0.3)  # the moment of the kill
        detail = deed()
        self.history.append(f"round {number}: {what} {detail} {deeds}")
        wait_for_acks(self._producers, 2, self._check_workers, RECOVERY_S)
        for worker in self._workers:
            worker.pause()
        self._check_workers()
        self._check()
        acked, unanswered = self.oracle.counts()
        return Report(number, f"{what} {detail}", time.monotonic() - began, acked, unanswered, deeds)

    def _meddle(self) -> list[str]:
        client = self.daemon.client(timeout=RECOVERY_S)
        try:
            topics = self._random.sample(self._topics, k=min(2, len(self._topics)))
            return [self._meddler.act(client, topic) for topic in topics]
        finally:
            client.close()

    def _check_workers(self) -> None:
        for worker in [*self._workers, self._watcher]:
            if worker.error is not None:
                raise Violation(f"{worker.name} failed: {worker.error!r}") from worker.error

    # ---- kills ----

    def _children(self) -> list[str]:
        settings = self.daemon.settings
        names = [f"wal-{n:02d}" for n in range(settings["wal_shards"])]
        names += [f"dlv-{n:02d}" for n in range(settings["delivery_shards"])]
        return [name for name in names if self._fast_kills.get(name, 0) < FAST_KILLS_MAX]

    def _kill_one(self) -> str:
        return self._kill_some(1)

    def _kill_two(self) -> str:
        return self._kill_some(2)

    def _kill_some(self, count: int) -> str:
        names = self._children()
        if len(names) < count:
            return self._kill_all()
        chosen = self._random.sample(names, count)
        pids = self.daemon.pids()
        old = {name: self.daemon.kill(name) for name in chosen if name in pids}
        for name, pid in old.items():
            self._fast_kills[name] = self._fast_kills.get(name, 0) + 1
            self.daemon.wait_replaced(name, pid, RECOVERY_S)
        return " ".join(chosen)

    def _kill_supervisor(self) -> str:
        """Its children drain and leave by themselves; the next start waits for them."""
        self.daemon.kill(SUPERVISOR)
        return self._start_again()

    def _kill_all(self) -> str:
        self.daemon.kill_all(self._random)
        return self._start_again()

    def _kill_all_twice(self) -> str:
        """The second time while the daemon recovers."""
        self.daemon.kill_all(self._random)
        self._change_counts()
        self.daemon.start()
        time.sleep(self._random.random())
        self.daemon.kill_all(self._random)
        return self._start_again()

    def _stop_and_start(self) -> str:
        stopped = self.daemon.stop()
        if stopped.code != 0:
            raise Violation(f"clean stop ended with code {stopped.code}")
        return self._start_again()

    def _start_again(self) -> str:
        self._change_counts()
        self._fast_kills.clear()
        self.daemon.start().wait_ready(RECOVERY_S)
        settings = self.daemon.settings
        return f"-> {settings['wal_shards']}x{settings['delivery_shards']}"

    def _change_counts(self) -> None:
        if self._random.random() < 0.4:
            self.daemon.settings |= self._counts()

    # ---- comparing ----

    def _check(self) -> None:
        problems: list[str] = []
        client = self.daemon.client(timeout=RECOVERY_S)
        try:
            for topic in [*self._topics, CAPPED]:
                found = seen(drain_topic(client, topic))
                problems += self._check_topic(client, topic, found)
                if topic != CAPPED:
                    problems += self._check_watcher(topic, found)
            problems += self._check_churned(client)
            for owned in self._owned:
                problems += owned.check(client)
            problems += self._meddler.check(client)
        finally:
            client.close()
        problems += self._watcher.gaps
        problems += self._alarms()
        if problems:
            raise Violation("\n".join(problems))

    def _check_topic(self, client: Client, topic: str, found: list[Seen]) -> list[str]:
        state = client.state(topic)
        problems = self.oracle.check(topic, found, head_seq=state.head_seq)
        if state.count != len(found):
            problems.append(f"{topic}: count says {state.count}, {len(found)} are there")
        if found and state.earliest_seq != found[0].seq:
            problems.append(f"{topic}: earliest_seq says {state.earliest_seq}, the first is {found[0].seq}")
        return problems

    def _check_churned(self, client: Client) -> list[str]:
        try:
            return self.oracle.check(CHURNED, seen(drain_topic(client, CHURNED)))
        except TopicNotFound:
            return self.oracle.check(CHURNED, [])

    def _check_watcher(self, topic: str, found: list[Seen]) -> list[str]:
        newest = found[-1].seq if found else 0
        with suppress(AssertionError):
            wait_until(
                lambda: self._watcher.newest(topic) >= newest or self._watcher.error is not None,
                f"the watcher to reach {newest} of {topic}",
                RECOVERY_S,
            )
        return self.oracle.check_watched(topic, self._watcher.seen[topic], found)

    def _alarms(self) -> list[str]:
        log = self.daemon.log
        fresh, self._log_seen = log[self._log_seen :], len(log)
        return [f"log: {line}" for line in fresh.splitlines() if any(word in line for word in ALARMS)]

    def dump(self, target: Path, error: BaseException) -> None:
        """All that is needed to look into a violation."""
        target.mkdir(parents=True, exist_ok=True)
        watched = {t: [[s, d[:40].decode("latin-1")] for s, d in r] for t, r in self._watcher.seen.items()}
        self.oracle.dump(
            target / "oracle.json",
            options=vars(self._options),
            history=self.history,
            error=str(error),
            watched=watched,
        )
        (target / "error.txt").write_text("\n".join([*self.history, "", str(error), ""]))
        self.daemon.kill_all()
        shutil.copytree(self.root, target / "daemon", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))


def run(options: Options, scratch: Path, tell: Callable[[Report], None]) -> None:
    """All rounds. Violation, with everything kept in options.keep, at the first that fails."""
    done = generation_no = 0
    while done < options.rounds:
        generation = Generation(scratch / f"g{generation_no}", options, generation_no)
        try:
            generation.open()
            for _ in range(min(ROUNDS_PER_GENERATION, options.rounds - done)):
                tell(generation.round(done + 1))
                done += 1
            generation.close()
        except KeyboardInterrupt:
            raise
        except BaseException as exc:
            target = options.keep / f"seed-{options.seed}-round-{done + 1}"
            generation.dump(target, exc)
            exc.add_note(f"kept in {target}")
            raise
        finally:
            generation.abandon()
            shutil.rmtree(generation.root, ignore_errors=True)
        generation_no += 1
