"""The load of a crash test: producers, a watcher, and somebody who deletes and reconfigures. Everything they do is
told to the oracle before it is sent and when it is answered. They go on across restarts of the daemon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import topicd
from tests.support.oracle import Oracle, Seen
from topicd.client.blocking.client import Client
from topicd.errors import ConnectionLost, OutOfOrder, StorageFailed, TopicdError, TopicNotFound

PATIENCE_S = 90.0  # of every operation: longer than any restart
TAGS = (None, "red", "green")
BIG_BATCH = 48  # records of 40 KiB: more than the smallest ring holds
# After these the daemon may or may not have stored the batch.
UNKNOWN = (ConnectionLost, OutOfOrder, StorageFailed)


class Worker(threading.Thread):
    """Works step by step until stopped; pause() returns when the step under way is done."""

    def __init__(self, name: str, run_dir: Path) -> None:
        super().__init__(name=name, daemon=True)
        self._run_dir = run_dir
        self._may_go = threading.Event()
        self._idle = threading.Event()
        self._stopping = False
        self.error: BaseException | None = None
        self.steps = 0

    def run(self) -> None:
        try:
            with topicd.connect(self._run_dir, timeout=PATIENCE_S, wait=PATIENCE_S) as client:
                while self._wait_for_leave():
                    self.step(client)
                    self.steps += 1
        except BaseException as exc:
            self.error = exc
        finally:
            self._idle.set()

    def _wait_for_leave(self) -> bool:
        if not self._may_go.is_set():
            self._idle.set()
            self._may_go.wait()
            self._idle.clear()
        return not self._stopping

    def step(self, client: Client) -> None:
        raise NotImplementedError

    def go(self) -> None:
        self._idle.clear()
        self._may_go.set()

    def pause(self, timeout: float = PATIENCE_S) -> None:
        self._may_go.clear()
        if not self._idle.wait(timeout):
            raise AssertionError(f"{self.name} did not pause within {timeout:g} s")

    def stop(self) -> None:
        self._stopping = True
        self._may_go.set()
        self.join(PATIENCE_S)
        if self.is_alive():
            raise AssertionError(f"{self.name} did not stop within {PATIENCE_S:g} s")


class Producer(Worker):
    """Single records, batches, now and then one larger than the ring, to some topics in turn."""

    def __init__(self, name: str, run_dir: Path, oracle: Oracle, topics: Sequence[str], seed: int) -> None:
        super().__init__(name, run_dir)
        self._oracle = oracle
        self._topics = topics
        self._random = Random(seed)
        self._number = 0
        self.acks = 0

    def step(self, client: Client) -> None:
        chance = self._random
        topic = chance.choice(self._topics)
        size = chance.choice((1, 1, 1, 2, 5, 20))
        padding = chance.choice((10, 60, 60, 400))
        if chance.random() < 0.004:
            size, padding = BIG_BATCH, 40_000
        tag = chance.choice(TAGS)
        payloads = [self._payload(padding) for _ in range(size)]
        batch = self._oracle.submit(topic, self.name, payloads, tag)
        try:
            if size == 1 and chance.random() < 0.5:
                first = client.publish(topic, payloads[0], tag=tag)
            else:
                first = client.publish_many(topic, payloads, tag=tag).first_seq
        except UNKNOWN:
            return
        except TopicdError:
            self._oracle.refused(batch)
            raise
        self._oracle.acked(batch, first)
        self.acks += 1
        time.sleep(chance.random() * 0.004)  # the pace of the load, nothing waits for it

    def _payload(self, padding: int) -> bytes:
        self._number += 1
        return f"{self.name}/{self._number}/".encode().ljust(padding, b".")


class Churner(Worker):
    """Owns one topic: writes a little, deletes the topic, begins anew. Alone, so that every state is known."""

    def __init__(self, name: str, run_dir: Path, oracle: Oracle, topic: str, seed: int) -> None:
        super().__init__(name, run_dir)
        self._oracle = oracle
        self.topic = topic
        self._random = Random(seed)
        self._number = 0

    def step(self, client: Client) -> None:
        for _ in range(self._random.randint(1, 4)):
            self._number += 1
            data = f"{self.name}/{self._number}".encode()
            batch = self._oracle.submit(self.topic, self.name, [data])
            self._oracle.acked(batch, client.publish(self.topic, data))
        if self._random.random() < 0.3:
            # Not found: the answer to an earlier attempt was lost with a process.
            with suppress(TopicNotFound):
                client.delete_topic(self.topic)
            self._oracle.topic_deleted(self.topic)
        time.sleep(0.02)


class Meddler:
    """Deletes, changes of configuration and consumer cursors, called between other things by the round."""

    def __init__(self, oracle: Oracle, chance: Random, classes: Sequence[str]) -> None:
        self._oracle = oracle
        self._random = chance
        self._classes = classes
        self.configs: dict[str, dict[str, Any]] = {}  # acknowledged
        self.cursors: dict[tuple[str, str], int] = {}

    def act(self, client: Client, topic: str) -> str:
        """One random deed; what it was."""
        deed = self._random.choice((self._delete_below, self._delete_tag, self._configure, self._ack_consumer))
        return deed(client, topic)

    def _delete_below(self, client: Client, topic: str) -> str:
        newest = self._oracle.newest_acked(topic)
        before = self._random.randint(0, newest // 2)
        removal = self._oracle.delete(topic, before_seq=before)
        client.delete(topic, before_seq=before)
        self._oracle.deleted(removal)
        return f"delete {topic} below {before}"

    def _delete_tag(self, client: Client, topic: str) -> str:
        tag = self._random.choice([tag for tag in TAGS if tag])
        removal = self._oracle.delete(topic, tag=tag)
        match = self._random.choice((tag, tag[:2] + "*"))  # no other tag begins so
        client.delete(topic, match=match)
        self._oracle.deleted(removal)
        return f"delete {topic} tag {match}"

    def _configure(self, client: Client, topic: str) -> str:
        changes: dict[str, Any] = {"priority": self._random.randint(-10, 10)}
        if len(self._classes) > 1:
            changes["durability"] = self._random.choice(self._classes)
        client.configure(topic, **changes)
        self.configs.setdefault(topic, {}).update(changes)
        return f"configure {topic} {changes}"

    def _ack_consumer(self, client: Client, topic: str) -> str:
        client.open_consumer(topic, "reader")
        seq = max(self._random.randint(0, self._oracle.newest_acked(topic)), self.cursors.get((topic, "reader"), 0))
        client.ack_consumer(topic, "reader", seq)
        self.cursors[(topic, "reader")] = seq
        return f"ack {topic} at {seq}"

    def check(self, client: Client) -> list[str]:
        problems = []
        for topic, wanted in self.configs.items():
            found = client.state(topic).config.to_fields()
            if any(found[name] != value for name, value in wanted.items()):
                problems.append(f"{topic}: configured {wanted}, found {found}")
        for (topic, name), acked in self.cursors.items():
            found_seq = next((row.acked_seq for row in client.consumers(topic) if row.name == name), -1)
            if found_seq < acked:
                problems.append(f"{topic}: consumer {name} acknowledged {acked}, found {found_seq}")
        return problems


class Watcher(threading.Thread):
    """Follows topics from the beginning, across restarts, and keeps what it saw."""

    def __init__(self, run_dir: Path, topics: Sequence[str]) -> None:
        super().__init__(name="watcher", daemon=True)
        self._run_dir = run_dir
        self._topics = list(topics)
        self._watch: Any = None
        self._closing = False
        self.opened = threading.Event()
        self.seen: dict[str, list[Seen]] = {topic: [] for topic in topics}
        self.gaps: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with topicd.connect(self._run_dir, timeout=PATIENCE_S, wait=PATIENCE_S) as client:
                with client.watch(self._topics, "earliest") as self._watch:
                    self.opened.set()
                    for event in self._watch:
                        self._take(event)
        except BaseException as exc:
            if not self._closing:
                self.error = exc
        finally:
            self.opened.set()

    def _take(self, event: Any) -> None:
        if isinstance(event, topicd.Record):
            self.seen[event.topic].append(Seen(event.seq, event.data))
        else:
            self.gaps.append(f"{event.topic}: {event.tombstone}")

    def newest(self, topic: str) -> int:
        seen = self.seen[topic]
        return seen[-1].seq if seen else 0

    def stop(self) -> None:
        self._closing = True
        if self._watch is not None:
            self._watch.close()


def wait_for_acks(producers: Sequence[Producer], more: int, alive: Callable[[], None], timeout: float) -> None:
    """Until each producer had so many more acknowledgements."""
    goals = [producer.acks + more for producer in producers]
    deadline = time.monotonic() + timeout
    while any(p.acks < goal for p, goal in zip(producers, goals, strict=True)):
        for producer in producers:
            if producer.error is not None:
                raise producer.error
        alive()
        if time.monotonic() > deadline:
            raise AssertionError(f"producers make no progress for {timeout:g} s")
        time.sleep(0.005)
