"""`python -m tests.crash.routers`: kill any process while routers copy, again and again, and compare every destination
with its source: what the router is meant for, in order, once, and what a reader has seen keeps its seq.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgpack

from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.client.blocking.client import Client
from topicd.client.core.records import Record
from topicd.errors import TopicdError
from topicd.supervisor.restarts import FAST_CRASHES, FAST_WINDOW_S

SOURCE = "kills.source"
PATIENCE_S = 60.0


class Way(NamedTuple):
    """A router, and which records of its source have a copy."""

    router: str
    source: str
    dest: str
    options: dict[str, object]
    meant: Callable[[Record], bool]


WAYS = [
    Way("all", SOURCE, "kills.all", {}, lambda record: True),
    Way("eu", SOURCE, "kills.eu", {"filter": "eu:*"}, lambda record: str(record.tag).startswith("eu:")),
    Way("stamped", SOURCE, "kills.stamped", {"exactly_once": True}, lambda record: True),
    Way("on", "kills.all", "kills.chain", {"set_tag": "copy:{tag}"}, lambda record: True),
    Way("both", SOURCE, "kills.mixed", {}, lambda record: True),
]
MIXED = "kills.mixed"  # somebody else writes there, too
FRESH = "kills.fresh"  # made anew in every round, so that each has a first direct write


class Round(NamedTuple):
    number: int
    victim: str
    records: int
    shards: int

    def __str__(self) -> str:
        return f"{self.victim:12} {self.shards} shards, {self.records} records in the source"


def run(rounds: int, seed: int, root: Path, tell: Callable[[Round], None]) -> None:
    chance = random.Random(seed)
    daemon = Daemon(root / "d", delivery_shards=chance.randint(1, 3), wal_shards=chance.randint(1, 2), **LIVELY)
    with daemon:
        client = daemon.client(timeout=PATIENCE_S)
        for way in WAYS:
            client.configure(way.dest, durability=chance.choice(["disk", "disk", "fsync", "memory"]))
            client.routers.create(way.router, way.source, way.dest, **way.options)
        client.publish(SOURCE, b"first", tag="eu:0")
        seen: dict[tuple[str, int], bytes] = {}
        killed: list[tuple[float, str]] = []
        for number in range(1, rounds + 1):
            fresh = _fresh(client, number, chance)
            victim = _round(daemon, client, chance, number, seen, fresh.dest, killed)
            _compare(client, seen, [*WAYS, fresh])
            client.routers.delete(fresh.router)
            seen = {key: data for key, data in seen.items() if key[0] != fresh.dest}
            client.delete_topic(fresh.dest)
            stored = client.state(SOURCE).head_seq
            tell(Round(number, victim, stored, int(daemon.settings["delivery_shards"])))


def _fresh(client: Client, number: int, chance: random.Random) -> Way:
    """A destination that nobody else has written to, until somebody does."""
    before, dest = client.state(SOURCE).head_seq, f"{FRESH}.{number}"
    client.configure(dest, durability=chance.choice(["disk", "memory"]))
    client.routers.create(dest, SOURCE, dest)
    return Way(dest, SOURCE, dest, {}, lambda record: record.seq > before)


def _round(
    daemon: Daemon,
    client: Client,
    chance: random.Random,
    number: int,
    seen: dict[tuple[str, int], bytes],
    fresh: str,
    killed: list[tuple[float, str]],
) -> str:
    """Write and read while somebody is killed."""
    stop, first = threading.Event(), chance.randrange(10)
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for n in range(chance.randint(5, 20)):
                tag = chance.choice(["eu:1", "us:1", "eu:2"])
                datas = [f"{number}-{n}-{i}".encode() for i in range(chance.randint(1, 200))]
                client.publish_many(SOURCE, datas, tag=tag)
                if n % 4 == 0:
                    client.publish(MIXED, b"direct")
                if n >= first:
                    client.publish(fresh, b"direct")
        except BaseException as exc:
            failed.append(exc)
        finally:
            stop.set()

    def read() -> None:
        while not stop.is_set():
            for dest in [*(way.dest for way in WAYS), fresh]:
                try:
                    _see(client, dest, seen)
                except TopicdError:
                    continue

    threads = [threading.Thread(target=work, daemon=True) for work in (write, read)]
    for thread in threads:
        thread.start()
    time.sleep(chance.random() * 0.15)
    victim = _kill(daemon, chance, killed)
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    if failed:
        raise failed[0]
    return victim


def _kill(daemon: Daemon, chance: random.Random, killed: list[tuple[float, str]]) -> str:
    """killed: when and whom so far; the supervisor gives up on one that dies too often, and a new one counts anew."""
    victim = chance.choice(["dlv", "dlv", "wal", "two", "everything", "stop"])
    lately = Counter(name for at, name in killed if time.monotonic() - at < FAST_WINDOW_S + 5)
    if victim in ("everything", "stop") or max(lately.values(), default=0) >= FAST_CRASHES - 1:
        victim = victim if victim == "stop" else "everything"
        killed.clear()
        daemon.kill_all(chance) if victim == "everything" else daemon.stop()
        daemon.restart(delivery_shards=chance.randint(1, 3), wal_shards=chance.randint(1, 2))
        return victim
    names = sorted(name for name in daemon.pids() if name.startswith("wal" if victim == "wal" else "dlv"))
    chosen = chance.sample(names, min(len(names), 2 if victim == "two" else 1))
    for name in chosen:
        daemon.kill(name)
        killed.append((time.monotonic(), name))
    return " ".join(chosen)


def _see(client: Client, topic: str, seen: dict[tuple[str, int], bytes]) -> None:
    """The newest few, as a reader finds them in the middle of things."""
    head = client.state(topic, touch=False).head_seq
    for record in client.read(topic, max(0, head - 50)):
        known = seen.setdefault((topic, record.seq), bytes(record.data))
        assert known == record.data, f"{topic}: seq {record.seq} was {known!r} and is {record.data!r}"


def _compare(client: Client, seen: dict[tuple[str, int], bytes], ways: list[Way]) -> None:
    """At rest."""
    for way in ways:
        wait_until(lambda way=way: _caught_up(client, way.router), f"router {way.router} to catch up", PATIENCE_S)
        meant = [bytes(record.data) for record in client.read(way.source) if way.meant(record)]
        found = [record for record in client.read(way.dest) if record.data != b"direct"]
        assert [bytes(record.data) for record in found] == meant, f"{way.dest} is not what {way.source} says"
        info = client.routers.get(way.router)
        assert info.forwarded_total == len(meant), f"{way.router} counts {info.forwarded_total} of {len(meant)}"
        if way.options.get("exactly_once"):
            stamps = [msgpack.unpackb(msgpack.packb(record.meta))["_topics_router"]["source_seq"] for record in found]
            assert stamps == sorted(set(stamps))
        by_seq = {record.seq: bytes(record.data) for record in client.read(way.dest)}
        moved = [key for key, data in seen.items() if key[0] == way.dest and by_seq.get(key[1]) != data]
        assert not moved, f"seqs that readers had seen have changed: {moved[:5]}"


def _caught_up(client: Client, router: str) -> bool:
    info = client.routers.get(router)
    return info.lag == 0 and info.waiting is None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.routers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    given = parser.parse_args()
    seed = secrets.randbits(31) if given.seed is None else given.seed
    print(f"seed {seed}, {given.rounds} rounds", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topicd-routers-") as scratch:
        try:
            run(given.rounds, seed, Path(scratch), lambda one: print(f"round {one.number} {one}", flush=True))
        except KeyboardInterrupt:
            return 130
        except Exception as exc:
            print(f"\nVIOLATION (seed {seed}): {exc}", *getattr(exc, "__notes__", []), sep="\n", flush=True)
            return 1
    took = time.monotonic() - began
    print(f"{given.rounds} rounds in {took:.0f} s, seed {seed}: every copy once, in order, in its place")
    return 0


if __name__ == "__main__":
    sys.exit(main())
