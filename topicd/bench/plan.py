"""Every line that `topicctl bench` prints, and how it is measured. Promise: what is done to the daemon that is given
happens in topics of our own, which are deleted; crashes, refusals and a count of all bytes happen to a daemon that is
nobody's (`Scratch`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from topicd.bench import crash, fan, loops
from topicd.bench.load import Figures, Load, Where
from topicd.bench.loops import Tick
from topicd.bench.work import batches, check, payloads, run, timed
from topicd.client.blocking.client import Client, connect
from topicd.errors import Internal, Throttled, TopicdError, TopicNotFound
from topicd.limits import MIB
from topicd.model import Durability

TESTS = {
    "A": "one append at a time",
    "B": "many appends in flight",
    "C": "batches",
    "D": "reading what C wrote",
    "E": "from publish to a subscriber",
    "fanout": "from publish to each of many subscribers",
    "router": "the same through a router",
    "eviction": "appends to a topic at its cap",
    "recovery": "from a crash to the first record read",
    "throttling": "writes that are refused",
    "bytes": "bytes for each record in log and segments",
}
ON_SCRATCH = frozenset({"recovery", "throttling", "bytes"})

CAP_BATCHES = 10  # a cap of so many batches
SETTLE_S = 60.0
ROUNDS = 2  # of what is compared, one behind the other
REFUSED_TIMEOUT_S = 0.2  # less than a refusal asks to wait: it is raised at once
TOTAL_BYTES = 8 * MIB
UNDER_WAY_BYTES = MIB
RECORD = 1_000  # bytes; a batch of a thousand is as much as may be under way
COUNTED_RECORDS = 20_000
COUNTED_BATCH = 100

_NO_CHECKPOINTS = {"checkpoint_ms": "86400000", "checkpoint_bytes": "4GiB"}


class Scratch(Protocol):
    """A daemon on an empty directory that nobody else knows; gone when the `with` is left."""

    @property
    def where(self) -> Where: ...

    @property
    def data(self) -> Path: ...

    def kill9(self) -> None: ...

    def launch(self) -> object:
        """Again, after kill9(); it does not wait until it serves."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report: what has no meaning for it is None."""

    test: str
    name: str
    records_per_s: float | None = None
    mb_per_s: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    last_p50_us: float | None = None  # the last of many subscribers
    last_p99_us: float | None = None
    publish_p50_us: float | None = None  # what the writer waited, beside many subscribers
    seconds: float | None = None
    bytes_per_record: float | None = None
    ratio: float | None = None  # of the rate without


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is measured, and how much of it."""

    load: Load
    tests: Sequence[str]
    watchers: Sequence[int]
    records: int  # that are stored when the crash comes
    durability: Durability | None = None  # None: single appends of each class, all else as `disk`

    @property
    def classes(self) -> list[Durability]:
        return list(Durability) if self.durability is None else [self.durability]

    @property
    def usual(self) -> Durability:
        return self.durability or Durability.DISK


Show = Callable[[str, str], AbstractContextManager[Tick]]
MakeScratch = Callable[[dict[str, str]], AbstractContextManager[Scratch]]


def line(test: str, name: str, found: Figures, **more: float) -> Line:
    return Line(
        test,
        name,
        records_per_s=found.get("rate"),
        mb_per_s=found.get("mb_s"),
        p50_us=found.get("p50"),
        p99_us=found.get("p99"),
        p999_us=found.get("p999"),
        last_p50_us=found.get("last_p50"),
        last_p99_us=found.get("last_p99"),
        publish_p50_us=found.get("publish_p50"),
        seconds=found.get("seconds"),
        **more,
    )


class Plan:
    def __init__(
        self, wanted: Wanted, topic: str, where: Where, client: Client | None, show: Show, scratch: MakeScratch
    ) -> None:
        """client: of the daemon that is measured, if a test wants one."""
        self._wanted = wanted
        self._load = wanted.load
        self._topic = topic
        self._where = where
        self._client = client
        self._show = show
        self._scratch = scratch
        self.made: list[str] = []  # topics, to be deleted

    @property
    def client(self) -> Client:
        if self._client is None:
            raise RuntimeError("this test needs a daemon")
        return self._client

    def measure(self, test: str) -> Iterator[Line]:
        yield from _LINES[test](self)

    def clean(self, but: str = "") -> dict[str, TopicdError]:
        """Deletes the topics that were made, but one; those that could not be deleted, and why."""
        left: dict[str, TopicdError] = {}
        names, self.made = self.made, [name for name in self.made if name == but]
        for name in names:
            if name == but:
                continue
            try:
                self.client.delete_topic(name)
            except TopicdError as error:
                left[name] = error
        return left

    def check_rights(self) -> None:
        """Raises what the daemon says, before anything is measured, if our topics may not be made, used or deleted."""
        with contextlib.suppress(TopicNotFound):
            self.client.delete_topic(f"{self._topic}.rights")
        name = self._make("rights")
        self.client.publish(name, b"")
        self.client.fetch(name, limit=1)
        self.client.delete_topic(name)
        self.made.remove(name)

    def main_topic(self) -> str:
        """Where A to E happen; D reads what C wrote."""
        self.client.configure(self._topic, durability=_word(self._wanted.usual))
        return self._topic

    def _make(self, what: str, durability: Durability | None = None, **config: Any) -> str:
        name = f"{self._topic}.{what}"
        self.client.configure(name, durability=_word(durability or self._wanted.usual), **config)
        self.made.append(name)
        return name

    def _measured(self, test: str, name: str, loop: Callable[[Tick], Figures], **more: float) -> Line:
        with self._show(test, name) as tick:
            return line(test, name, loop(tick), **more)

    # ---- the daemon that is given ----

    def singles(self) -> Iterator[Line]:
        for durability in self._wanted.classes:
            topic = self._topic if durability is self._wanted.usual else self._make(durability.value, durability)
            single = partial(loops.single, self.client, topic, self._load)
            yield self._measured("A", f"single appends, {durability.value}", single)

    def in_flight(self) -> Iterator[Line]:
        flight, topic, load = self._load.in_flight, self._topic, self._load
        yield self._measured("B", f"pipeline of {flight}", lambda tick: loops.window(self.client, topic, load, tick))
        yield self._measured(
            "B", f"asyncio, {flight} tasks", lambda tick: run(loops.tasks(self._where, topic, load, tick))
        )

    def batched(self) -> Iterator[Line]:
        load = self._load
        yield self._measured(
            "C", f"batches of {load.batch:,}", lambda tick: loops.batched(self.client, self._topic, load, tick)
        )

    def reading(self) -> Iterator[Line]:
        """Of what C wrote; without C it is written now."""
        client, topic = self.client, self._topic
        if "C" not in self._wanted.tests:
            list(self.batched())
        state = client.state(topic, touch=False)
        begin = max(0, state.head_seq - state.count)
        load = replace(self._load, records=state.count)
        yield self._measured("D", "reading", lambda tick: loops.read(client, topic, load, begin, tick))
        yield self._measured("D", "history", lambda tick: loops.descriptors(client, topic, load, begin, tick))
        name = f"{loops.DIFF_LIMIT} from a cursor"
        yield self._measured("D", name, lambda tick: loops.diff(client, topic, load, begin, tick))

    def pushed(self) -> Iterator[Line]:
        yield self._measured(
            "E", "push", lambda tick: loops.push(self.client, self._where, self._topic, self._load, tick)
        )

    def fanned_out(self) -> Iterator[Line]:
        for watchers in self._wanted.watchers:
            topic = self._make(f"fanout-{watchers}")
            self.client.publish(topic, payloads(self._load.size, 1)[0])
            publish = partial(self.client.publish, topic)
            fanned = partial(fan.fan_out, publish, fan.watches(self._where), topic, watchers, self._load)
            yield self._measured("fanout", f"{watchers:,} watchers", fanned)

    def routed(self) -> Iterator[Line]:
        source, dest, name = self._make("source"), self._make("dest"), f"{self._topic}.router"
        self.client.routers.create(name, source, dest)
        try:
            yield self._measured(
                "router",
                "push through a router",
                lambda tick: loops.push(self.client, self._where, source, self._load, tick, at=dest),
            )
        finally:
            with contextlib.suppress(TopicdError):
                self.client.routers.delete(name)

    def evicting(self) -> Iterator[Line]:
        cap = CAP_BATCHES * self._load.batch
        free, full = self._make("free"), self._make("full", cap_records=cap)
        for batch in batches(payloads(self._load.size), self._load.batch, cap):
            self.client.publish_many(full, batch)
        load = replace(self._load, seconds=self._load.seconds / ROUNDS)
        rates: dict[str, list[Figures]] = {free: [], full: []}
        with self._show("eviction", f"at a cap of {cap:,} records") as tick:
            for _ in range(ROUNDS):
                for topic, found in rates.items():
                    found.append(loops.batched(self.client, topic, load, tick))
        without, at_cap = (_mean(found) for found in rates.values())
        yield line("eviction", "batches, no cap", without)
        yield line("eviction", f"batches, cap of {cap:,}", at_cap, ratio=at_cap["rate"] / without["rate"])
        yield self._measured(
            "eviction", f"single, cap of {cap:,}", lambda tick: loops.single(self.client, full, load, tick)
        )

    # ---- a daemon of nobody's ----

    def recovering(self) -> Iterator[Line]:
        records = self._wanted.records
        for name, settings in (("from segments", {}), ("from the log alone", _NO_CHECKPOINTS)):
            with self._show("recovery", name) as tick, self._scratch(settings) as scratch:
                found = _recovered(scratch, records, self._load, tick, absorbed=not settings)
            yield line("recovery", f"{records:,} records, {name}", found)

    def throttled(self) -> Iterator[Line]:
        settings = {"max_inflight_bytes": str(UNDER_WAY_BYTES), "max_total_bytes": str(TOTAL_BYTES)}
        with self._scratch(settings) as scratch, connect(**scratch.where._asdict()) as client:
            load = replace(self._load, size=RECORD, batch=UNDER_WAY_BYTES // RECORD)
            client.configure("overload", durability="disk", cap_bytes=TOTAL_BYTES // 4)
            yield self._measured(
                "throttling",
                f"batches, {UNDER_WAY_BYTES // MIB} MiB may be under way",
                lambda tick: loops.batched(client, "overload", load, tick),
            )
            _until(client, "dlv", lambda page: page["throttled"] > 0, "writes to be refused", some=True)
            client.delete_topic("overload")
            yield self._measured(
                "throttling", "refused writes", lambda tick: _refused(scratch.where, client, self._load, tick)
            )
            yield self._measured(
                "throttling", "until there is room again", lambda _: _room_again(scratch.where, client)
            )

    def weighed(self) -> Iterator[Line]:
        size = self._load.size
        with self._show("bytes", "log and segments") as tick, self._scratch({}) as scratch:
            with connect(**scratch.where._asdict()) as client:
                client.configure("weighed", durability="disk")
                before = _sum(_until(client, "wal", lambda page: True, "the log's counters"), "bytes")
                for batch in batches(payloads(size), COUNTED_BATCH, COUNTED_RECORDS):
                    client.publish_many("weighed", batch)
                    tick(len(batch))
                logged = _sum(_until(client, "wal", lambda page: True, "the log's counters"), "bytes") - before
                _until_absorbed(client)
                stored = sum(file.stat().st_size for file in (scratch.data / "topics").rglob("*") if file.is_file())
        for name, found in (("in the log", logged), ("in segments", stored)):
            each = found / COUNTED_RECORDS
            yield Line("bytes", name, bytes_per_record=each, ratio=each / size)


_LINES: dict[str, Callable[[Plan], Iterator[Line]]] = {
    "A": Plan.singles,
    "B": Plan.in_flight,
    "C": Plan.batched,
    "D": Plan.reading,
    "E": Plan.pushed,
    "fanout": Plan.fanned_out,
    "router": Plan.routed,
    "eviction": Plan.evicting,
    "recovery": Plan.recovering,
    "throttling": Plan.throttled,
    "bytes": Plan.weighed,
}


def _word(durability: Durability) -> Literal["memory", "disk", "fsync"]:
    return durability.value  # type: ignore[return-value]


def _mean(found: list[Figures]) -> Figures:
    return {name: sum(one[name] for one in found) / len(found) for name in ("rate", "mb_s")}


# ---- on a scratch daemon ----


def _recovered(scratch: Scratch, records: int, load: Load, tick: Tick, *, absorbed: bool) -> Figures:
    topic = "recovered"
    with connect(**scratch.where._asdict()) as client:
        client.configure(topic, durability="fsync")
        with client.producer(max_inflight=loops.BATCHES) as sender:
            for batch in batches(payloads(load.size), load.batch, records):
                sender.send_many(topic, batch)
                tick(len(batch))
        if absorbed:
            _until_absorbed(client)
    with contextlib.ExitStack() as stack:

        def read_one() -> int:
            again = stack.enter_context(connect(**scratch.where._asdict(), wait=SETTLE_S, timeout=SETTLE_S))
            return len(again.fetch(topic, limit=1))

        found = crash.recover(scratch.kill9, scratch.launch, read_one)
    with connect(**scratch.where._asdict()) as client:
        check("the daemon", client.state(topic).count, records)
    return found


def _refused(where: Where, client: Client, load: Load, tick: Tick) -> Figures:
    """One write at a time to a daemon that may store no more: each is an answer with what limit it is, and when to come
    again."""
    topic = "refused"
    client.configure(topic, durability="disk")
    with connect(**where._asdict(), timeout=REFUSED_TIMEOUT_S) as hasty:
        batch = payloads(RECORD, COUNTED_BATCH)
        with contextlib.suppress(Throttled):
            for _ in range(2 * TOTAL_BYTES // (RECORD * COUNTED_BATCH)):
                hasty.publish_many(topic, batch)

        def publish(data: bytes) -> None:
            if not _is_refused(hasty, topic, data):
                raise Internal("a write was taken beyond max_total_bytes")
            tick(1)

        # Larger than what is left.
        return timed(publish, payloads(max(load.size, RECORD * COUNTED_BATCH), 1), load.seconds)


def _room_again(where: Where, client: Client) -> Figures:
    """From the end of a delete that makes room to the first write that is taken."""
    topic = "refused.too"
    client.configure(topic, durability="disk")
    data = payloads(RECORD * COUNTED_BATCH, 1)[0]
    with connect(**where._asdict(), timeout=REFUSED_TIMEOUT_S) as hasty:
        client.delete_topic("refused")
        begun = time.monotonic()
        while _is_refused(hasty, topic, data):
            if time.monotonic() - begun > SETTLE_S:
                raise Internal(f"writes are refused {SETTLE_S:g} s after there was room")
        return {"seconds": time.monotonic() - begun}


def _is_refused(client: Client, topic: str, data: bytes) -> bool:
    try:
        client.publish(topic, data)
    except Throttled:
        return True
    return False


def _until_absorbed(client: Client) -> None:
    _until(client, "dlv", lambda page: not page["tail_bytes"], "all records to be in segments")


def _until(
    client: Client, kind: str, holds: Callable[[dict[str, Any]], bool], what: str, *, some: bool = False
) -> list[dict[str, Any]]:
    """The counters of all processes of a kind that were written from now on, once they hold for all of them or, with
    `some`, for one."""
    begun = time.monotonic()
    while time.monotonic() - begun < SETTLE_S:
        rows = [row for row in client.status()["processes"] if row["name"].startswith(kind)]
        pages = [row["stats"] for row in rows if row["stats"] and row["stats"]["heartbeat"] > begun]
        if pages and len(pages) == len(rows) and (any if some else all)(map(holds, pages)):
            return pages
        time.sleep(0.02)
    raise Internal(f"waited {SETTLE_S:g} s in vain for {what}")


def _sum(pages: list[dict[str, Any]], key: str) -> int:
    return sum(int(page[key]) for page in pages)
