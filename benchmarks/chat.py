"""`make bench ONLY=chat`: a chat store with a million messages in ten thousand chats: sends, inboxes, pages, and
what it costs two stores to find their differences. Figures are for docs/performance.md; run it with nothing beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import topicd
import topicd.aio
from benchmarks import procs
from topicd.client.blocking.chat import Chat
from topicd.errors import TopicdError
from topicd.tokens import new_token

TEXT = "What is said in a chat is mostly short, and some of it is a little longer than that."
BATCH = 500


class Store:
    """One daemon with a chat store."""

    def __init__(self, root: Path, run: Path, tokens: Path, port: int) -> None:
        self.root = root
        self.run = run
        self.port = port
        self._flags = [
            *(f"--data-dir={root}/data", f"--run-dir={run}", "--chat", f"--chat-listen=127.0.0.1:{port}"),
            *(f"--tokens-file={tokens}", "--wal-shards=1", "--delivery-shards=1"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds until it serves."""
        began = time.monotonic()
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "topicd", *self._flags], stdout=log, stderr=log)
        while True:
            try:
                with topicd.connect(self.run, timeout=300, wait=300) as client:
                    client.chat.stats(rows=False)
                return time.monotonic() - began
            except TopicdError:
                if self._process.poll() is not None:
                    raise SystemExit(f"the daemon has ended: {(self.root / 'log').read_text()[-2000:]}") from None
                time.sleep(0.05)

    def cpu_s(self) -> dict[str, float]:
        """By kind of process, what it has used so far, and this one beside them."""
        found = {"client": time.process_time()}
        for pid in procs.tree(self._process.pid) if self._process is not None else ():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            name = next((word for word in words if word.startswith(b"topicd")), b"topicd").decode()
            found[name] = found.get(name, 0.0) + procs.cpu_seconds([pid])
        return found

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(120)
            self._process = None


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def load(store: Store, messages: int, chats: int, members: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    users = [f"u{number}" for number in range(chats)]
    belong = {f"c{number}": rng.sample(users, members) for number in range(chats)}
    async with topicd.aio.connect(store.run, timeout=120) as client:
        chat = client.chat
        began = time.monotonic()
        for at in range(0, chats, 200):
            rooms = list(belong)[at : at + 200]
            await asyncio.gather(*(chat.add(room, user) for room in rooms for user in belong[room]))
        adding = time.monotonic() - began
        rooms = list(belong)
        made = iter(range(0, messages, BATCH))

        async def send() -> None:
            for _ in made:
                rows = [(room, TEXT, rng.choice(belong[room])) for room in rng.choices(rooms, k=BATCH)]
                results = await chat.send_many(rows)
                assert not any(isinstance(one, TopicdError) for one in results)

        before, began = store.cpu_s(), time.monotonic()
        await asyncio.gather(*(send() for _ in range(4)))
        took, used = time.monotonic() - began, store.cpu_s()
    return {
        "adds_per_s": chats * members / adding,
        "sends_per_s": messages / took,
        "cpu_us_per_message": {name: (used[name] - before[name]) / messages * 1e6 for name in used},
        "users": users,
        "rooms": rooms,
    }


def timed(count: int, work: Callable[[], object]) -> dict[str, float]:
    """µs."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1e6)
    took.sort()
    return {"p50_us": statistics.median(took), "p99_us": took[int(len(took) * 0.99)]}


def at_rest(chat: Chat, rooms: list[str], users: list[str]) -> dict[str, Any]:
    rng = random.Random(1)
    member = {room: chat.members(room)[0].user for room in rng.sample(rooms, 200)}

    def send() -> None:
        room = rng.choice(list(member))
        chat.send(room, TEXT, user=member[room])

    return {
        "send": timed(500, send),
        "inbox": timed(1_000, lambda: chat.inbox(rng.choice(users))),
        "range of 50": timed(1_000, lambda: chat.read(rng.choice(rooms), newest=True, limit=50)),
    }


def differences(here: Store, there: Store, secret: str, rooms: list[str], newest: int) -> dict[str, Any]:
    """What is newest, by both methods."""
    found: dict[str, Any] = {}
    target = f"tcp://127.0.0.1:{there.port}"
    rng = random.Random(2)
    with topicd.connect(here.run, timeout=600) as client:
        chat = client.chat
        owner = {room: chat.members(room)[0].user for room in rng.sample(rooms, 100)}
        for method in ("negentropy", "digest"):
            chat.sync(target, token=secret, method=method)  # makes what is kept
            chat.send_many([(room, TEXT, owner[room]) for room in rng.choices(list(owner), k=newest)])
            found[f"{newest} newest, {method}"] = _figures(chat.sync(target, token=secret, method=method))
    return found


def _figures(sync: dict[str, Any]) -> dict[str, Any]:
    one = sync["domains"]["messages"]
    return {
        "found": one["sent"] + one["received"],
        "finding_bytes": one["finding_bytes"],
        "bytes": sync["bytes_out"] + sync["bytes_in"],
        "seconds": sync["seconds"],
        "equal": sync["equal"],
    }


def scatter(here: Store, there: Store, secret: str, count: int, messages: int) -> dict[str, Any]:
    """Messages that one store lacks, evenly over its whole time: one in so many is taken out of a copy of the store
    before it is started, together with its id, which is what a store that was away at these moments looks like."""
    from topicd.shards.chat import keys
    from topicd.shards.chat.store import DEFAULT, MESSAGES, SEEN_MSG, RocksStore, Writes

    found: dict[str, Any] = {}
    for method in ("negentropy", "digest"):
        there.stop()
        store = RocksStore(there.root / "data" / "chat" / "shard-00" / "rocks").open()
        writes, step = Writes(), max(1, messages // count)
        for number, (record, key) in enumerate(store.scan(SEEN_MSG)):
            if number % step == 0:
                writes.delete(SEEN_MSG, record)
                writes.delete(MESSAGES, key)
                place = keys.parse_message_key(key)
                writes.delete(DEFAULT, keys.arrival_key(place.chat, place.seq))
        store.write(writes)
        store.close()
        there.start()
        with topicd.connect(here.run, timeout=600) as client:
            target = f"tcp://127.0.0.1:{there.port}"
            found[f"{count} scattered, {method}"] = _figures(client.chat.sync(target, token=secret, method=method))
    return found


def directory_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())


def bench(work_dir: Path, *, quick: bool) -> int:
    return measure(work_dir, *((20_000, 2_000, 3, 500) if quick else (1_000_000, 10_000, 3, 10_000)))


def measure(root: Path, messages: int, chats: int, members: int, scattered: int) -> int:
    secret, digest = new_token()
    figures: dict[str, Any] = {}
    tokens = root / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "peer"\nsha256 = "{digest}"\nscopes = ["sync"]\n')
    with tempfile.TemporaryDirectory(prefix="topicd-chat-") as sockets:
        here = Store(root / "a", Path(sockets) / "a", tokens, free_port())
        there = Store(root / "b", Path(sockets) / "b", tokens, free_port())
        try:
            here.start()
            loaded = asyncio.run(load(here, messages, chats, members, 7))
            rooms, users = loaded.pop("rooms"), loaded.pop("users")
            _say(figures, loaded)
            with topicd.connect(here.run, timeout=600) as client:
                _say(figures, at_rest(client.chat, rooms, users))
            here.stop()
            data = here.root / "data"
            _say(figures, {"store_bytes_per_message": directory_bytes(data / "chat") / messages})
            shutil.copytree(data, there.root / "data")
            _say(figures, {"start_s": here.start()})
            there.start()
            _say(figures, differences(here, there, secret, rooms, 100))
            _say(figures, scatter(here, there, secret, scattered, messages))
        finally:
            here.stop()
            there.stop()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--chats", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--scattered", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topicd-bench-chat-", dir="/tmp") as scratch:
        return measure(Path(scratch), given.messages, given.chats, given.members, given.scattered)


def _say(figures: dict[str, Any], more: dict[str, Any]) -> None:
    figures.update(more)
    print(json.dumps(more), flush=True)


if __name__ == "__main__":
    sys.exit(main())
