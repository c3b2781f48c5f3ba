"""What happens to a machine in a sweep, and what must hold afterwards. A story is told to an oracle; its acts can be
played again and again on disks that fail or forget at another call each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.faults.machine import KIB, ConnectionGone, Machine, Ticket
from tests.support.faultfs import Crashed
from tests.support.oracle import Batch, Oracle
from topicd.errors import NotReady, OutOfOrder, StorageFailed, Throttled, TopicdError
from topicd.ipc.protocol.messages import Op

REFUSALS = (StorageFailed, Throttled, NotReady)
RETRIED = 6  # more than any scene has under way at once


class Story:
    """One machine, one oracle, and who said what."""

    def __init__(self, machine: Machine, oracle: Oracle | None = None) -> None:
        self.machine = machine
        self.oracle = oracle or Oracle()
        self.classes: dict[str, str] = {}
        self.configs: dict[str, dict[str, Any]] = {}  # acknowledged
        self.asked: dict[str, dict[str, Any]] = {}  # configurations whose answer is open
        self.cursors: dict[str, int] = {}
        self.refused: list[str] = []
        self.leaving: set[str] = set()  # topics whose deletion was asked for
        self._number = 0
        self._under_way: list[tuple[str, Batch, Ticket]] = []
        self._sent: dict[tuple[str, int], list[Batch]] = {}  # by topic and producer, in the order of their numbers

    def on(self, machine: Machine, oracle: Oracle | None = None) -> Story:
        """The same story about another machine, for instance its successor."""
        other = Story(machine, oracle or self.oracle.copy())
        other.classes, other.configs, other.cursors = dict(self.classes), dict(self.configs), dict(self.cursors)
        other.leaving, other.asked = set(self.leaving), dict(self.asked)
        other._number = self._number + 100_000
        if oracle is None:
            twins = self.oracle.twins(other.oracle)
            other._sent = {key: [twins[id(batch)] for batch in batches] for key, batches in self._sent.items()}
        return other

    # ---- deeds ----

    def topic(self, name: str, durability: str, **config: Any) -> None:
        """Made before anything fails."""
        self.machine.configure(name, durability=durability, **config)
        self.classes[name] = durability
        self.configs[name] = {"durability": durability, **config}
        self.oracle.topic(name, cap_records=config.get("cap_records", 0))

    def append(
        self, topic: str, records: int = 1, size: int = 20, *, tag: str | None = None, producer: int = 0
    ) -> None:
        self.append_together([(topic, records, size)], tag=tag, producer=producer)

    def append_together(
        self,
        batches: list[tuple[str, int, int]],
        *,
        tag: str | None = None,
        producer: int = 0,
        grouped: bool = True,
    ) -> None:
        """Several batches on their way at once: one group of the WAL. Not grouped: a group each, but the delivery
        shard looks at what became of them only after the last."""
        under_way: list[tuple[str, Batch, Ticket]] = []
        for topic, records, size in batches:
            payloads = [self._payload(topic, size) for _ in range(records)]
            batch = self.oracle.submit(topic, f"p{producer}", payloads, tag)
            if producer:
                # As a client does: what was under way on a lost connection goes first.
                under_way = [(t, b, self._current(t, b, ticket, producer)) for t, b, ticket in under_way]
            sent = self._sent.setdefault((topic, producer), []) if producer else []
            sent.append(batch)
            number = len(sent) if producer else 0
            request = self.machine.begin_append(topic, payloads, tag=tag, producer=producer, number=number)
            under_way.append((topic, batch, request))
            if not grouped:
                self.machine.turn_wals_only()
        self._under_way = under_way
        for topic, batch, request in under_way:
            with self._refusable(f"append to {topic}"):
                try:
                    self.oracle.acked(batch, self._finish(topic, batch, request, producer))
                except ConnectionGone:
                    continue  # nobody knows what became of it
                except (*REFUSALS, OutOfOrder):
                    self.oracle.refused(batch)
                    if producer:
                        self._sent[(topic, producer)].remove(batch)  # its number is free again
                    raise

    def hear(self) -> None:
        """A disk or a shard died: what the delivery shard tells clients before it notices counts as well."""
        for parts in self.machine.deliveries.values():
            with suppress(Exception, Crashed):
                parts.turn.doorbell()
        for topic, batch, ticket in self._under_way:
            if ticket.wire.answered(ticket.request_id):
                with suppress(TopicdError):
                    self.oracle.acked(batch, self.machine.finish_append(topic, ticket).first_seq)

    def append_to_ring(self, topic: str, records: int = 1) -> None:
        """Class memory: acknowledged before any WAL shard has looked at the ring."""
        payloads = [self._payload(topic, 20) for _ in range(records)]
        batch = self.oracle.submit(topic, "p0", payloads)
        ticket = self.machine.begin_append(topic, payloads)
        self.machine.turn_delivery_only()
        assert ticket.wire.answered(ticket.request_id)
        self.oracle.acked(batch, self.machine.finish_append(topic, ticket).first_seq)

    def _finish(self, topic: str, batch: Batch, ticket: Ticket, producer: int) -> int:
        """Its first seq. A producer whose connection is lost sends the batch again."""
        while True:
            try:
                return self.machine.finish_append(topic, ticket).first_seq
            except ConnectionGone:
                if not producer:
                    raise
            ticket = self._current(topic, batch, ticket, producer)

    def _current(self, topic: str, batch: Batch, ticket: Ticket, producer: int) -> Ticket:
        if not ticket.wire.dead or ticket.wire.answered(ticket.request_id):
            return ticket
        number = self._sent[(topic, producer)].index(batch) + 1
        return self.machine.begin_append(topic, batch.payloads, tag=batch.tag, producer=producer, number=number)

    def retry(self) -> list[str]:
        """Every producer sends its newest batches again, those that were answered and the one that was not."""
        found = []
        for (topic, producer), batches in self._sent.items():
            if topic not in self.machine.topics():
                continue
            for number, batch in list(enumerate(batches, 1))[-RETRIED:]:
                try:
                    answer = self.machine.append(topic, batch.payloads, tag=batch.tag, producer=producer, number=number)
                except OutOfOrder:
                    if self.classes[topic] == "fsync":
                        found.append(f"{topic}: producer {producer} must not send batch {number} again")
                    break  # the tail with its numbers was lost
                if batch.acked and answer.deduped and answer.first_seq != batch.first_seq:
                    found.append(f"{topic}: batch {number} acked as {batch.first_seq}, again {answer.first_seq}")
                if batch.acked and not answer.deduped and self.classes[topic] == "fsync":
                    found.append(
                        f"{topic}: batch {number} is stored twice, at {batch.first_seq} and {answer.first_seq}"
                    )
                self.oracle.acked(batch, answer.first_seq)
        return found

    def delete(self, topic: str, *, tag: str | None = None, before_seq: int = 0) -> None:
        removal = self.oracle.delete(topic, tag=tag, before_seq=before_seq)
        body = {"match": tag} if tag else {"before_seq": before_seq}
        with self._refusable(f"delete in {topic}"):
            self.machine.ask(topic, Op.DELETE_RECORDS, **body)
            self.oracle.deleted(removal)

    # ---- jobs ----

    def put(self, topic: str, tag: str, records: int = 2, **options: Any) -> None:
        """Jobs that go by a tag of their own; with options."""
        payloads = [self._payload(topic, 20) for _ in range(records)]
        batch = self.oracle.submit(topic, "p0", payloads, tag)
        with self._refusable(f"put to {topic}"):
            try:
                self.oracle.acked(batch, self.machine.put(topic, payloads, tag, options))
            except ConnectionGone:
                return
            except REFUSALS:
                self.oracle.refused(batch)
                raise

    def finish(self, topic: str, tag: str) -> None:
        """Claim what there is and acknowledge the jobs with this tag: an acknowledgement is a delete."""
        removal = self.oracle.delete(topic, tag=tag)
        with self._refusable(f"finish {tag} of {topic}"):
            try:
                jobs = self.machine.claim(topic)
                ours = [(job.seq, job.lease) for job in jobs if job.tag == tag]
                if ours and self.machine.ack(topic, ours) == len(ours):
                    self.oracle.deleted(removal)
            except ConnectionGone:
                return  # nobody knows what became of it

    def give_back(self, topic: str, tag: str, **how: Any) -> None:
        """Claim what there is and give back the jobs with this tag."""
        with self._refusable(f"give back {tag} of {topic}"):
            try:
                jobs = [job for job in self.machine.claim(topic) if job.tag == tag]
                leases = [job.lease for job in jobs]
                self.machine.ask(topic, Op.NACK, seqs=[job.seq for job in jobs], leases=leases, **how)
            except ConnectionGone:
                return

    def configure(self, topic: str, **config: Any) -> None:
        self.asked[topic] = {**self.configs[topic], **config}
        with self._refusable(f"configure {topic}"):
            self.machine.configure(topic, **config)
            self._configured(topic)
        self.asked.pop(topic, None)

    def _configured(self, topic: str) -> None:
        self.configs[topic] = self.asked.pop(topic)
        self.oracle.topic(topic, cap_records=self.configs[topic].get("cap_records", 0))

    def consume(self, topic: str, seq: int) -> None:
        with self._refusable(f"consume {topic}"):
            self.machine.ask(topic, Op.CONSUMER_OPEN, name="reader")
            self.machine.ask(topic, Op.CONSUMER_ACK, name="reader", seq=seq)
            self.cursors[topic] = max(seq, self.cursors.get(topic, 0))

    def delete_topic(self, topic: str) -> None:
        self.leaving.add(topic)
        with self._refusable(f"delete {topic}"):
            self.machine.ask(topic, Op.DELETE_TOPIC)
            self.oracle.topic_deleted(topic)
            self.leaving.discard(topic)
            del self.classes[topic], self.configs[topic]
            self._sent = {key: batches for key, batches in self._sent.items() if key[0] != topic}

    def make_topic(self, topic: str, durability: str) -> None:
        """In the middle of the story: it may be refused."""
        with self._refusable(f"make {topic}"):
            self.topic(topic, durability)

    def checkpoint(self) -> None:
        self.machine.checkpoint()

    def snapshot(self) -> None:
        self.machine.snapshot()

    def tick(self) -> None:
        self.machine.tick_wals()

    @contextmanager
    def _refusable(self, what: str) -> Iterator[None]:
        try:
            yield
        except (*REFUSALS, OutOfOrder) as exc:
            self.refused.append(f"{what}: {exc}")

    def _payload(self, topic: str, size: int) -> bytes:
        self._number += 1
        return f"{topic}/{self._number}/".encode().ljust(size, b".")

    # ---- what must hold ----

    def problems(self, *, power_lost: bool) -> list[str]:
        """Of the machine as it is now."""
        found = [f"damage: {line}" for line in self.machine.damage()]
        there = set(self.machine.topics())
        for topic, durability in self.classes.items():
            if topic not in there:
                if topic in self.leaving:
                    continue
                if durability in ("fsync", "disk") or not power_lost:
                    found.append(f"topic {topic} is lost")
                continue
            found += self._problems_of(topic, lossy=power_lost and durability != "fsync")
        return found

    def _problems_of(self, topic: str, *, lossy: bool) -> list[str]:
        state, records = self.machine.state(topic), self.machine.read(topic)
        config = state["config"]
        if topic in self.asked and all(config[k] == v for k, v in self.asked[topic].items()):
            self._configured(topic)
        gaps = list(self.machine.delivery_of(topic).catalog.by_name[topic].contents.lost) if lossy else []
        found = self.oracle.check(topic, records, head_seq=state["head_seq"], tail_may_be_lost=lossy, gaps=gaps)
        if state["count"] != len(records):
            found.append(f"{topic}: count says {state['count']}, {len(records)} are there")
        if records and state["earliest_seq"] != records[0].seq:
            found.append(f"{topic}: earliest_seq says {state['earliest_seq']}, the first is {records[0].seq}")
        if not 1 <= state["evict_floor"] <= state["earliest_seq"] <= state["head_seq"] + 1:
            found.append(f"{topic}: floors are out of order: {state}")
        if self.classes[topic] in ("fsync", "disk") and state["next_seq"] <= self.oracle.newest_acked(topic):
            found.append(f"{topic}: next seq {state['next_seq']} was acknowledged before")
        if lossy:
            return found
        wrong = {k: config[k] for k, v in self.configs[topic].items() if config[k] != v}
        if wrong:
            found.append(f"{topic}: configured {self.configs[topic]}, found {wrong}")
        if topic in self.cursors:
            rows = self.machine.ask(topic, Op.CONSUMER_LIST)["consumers"]
            if not any(row["acked_seq"] >= self.cursors[topic] for row in rows):
                found.append(f"{topic}: consumer acknowledged {self.cursors[topic]}, found {rows}")
        return found

    def accept_lost_memory(self) -> None:
        """After power loss: records of class memory that are not there may never have been, seqs and all."""
        for topic, durability in self.classes.items():
            if durability == "memory" and topic in self.machine.topics():
                self.oracle.accept(topic, self.machine.read(topic))

    def still_works(self) -> list[str]:
        """Every topic takes a record and gives it back."""
        self.refused.clear()
        for topic, durability in self.classes.items():
            if topic not in self.machine.topics():
                self.oracle.topic_deleted(topic)
                self.machine.configure(topic, durability=durability)
            self.append(topic)
        return [f"after the fault: {line}" for line in self.refused]


Act = Callable[[Story], None]


@dataclass
class Scene:
    """prepare() runs on a healthy disk, act() on one that fails."""

    name: str
    prepare: Act
    act: Act
    settings: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, int] = field(default_factory=dict)  # shard counts


def all_classes(story: Story) -> None:
    for durability in ("fsync", "disk", "memory"):
        story.topic(durability[0], durability)


def _append(story: Story) -> None:
    story.append("f", 2)
    story.append_together([("f", 1, 20), ("d", 3, 20), ("m", 2, 20), ("f", 2, 900)], producer=7)
    story.append("d", 2)
    story.append("m", 1)
    story.append_together([("d", 1, 20), ("m", 1, 20)])
    story.machine.advance(60)  # the background sync of class disk
    story.append("f", 1, producer=7)


def _rotate(story: Story) -> None:
    for n in range(9):
        story.append_together([("f", 1, 4 * KIB), ("d", 1, 4 * KIB), ("m", 1, 2 * KIB)], producer=7)
        if n % 3 == 0:
            story.machine.advance(60)


def _slow_delivery(story: Story) -> None:
    story.append_together([("d", 1, 20), ("f", 1, 20), ("d", 1, 20), ("m", 1, 20)], grouped=False, producer=7)
    story.append_together([("d", 2, 20), ("m", 2, 20), ("d", 1, 20), ("f", 1, 20), ("f", 1, 20)], grouped=False)
    story.append_together([("m", 1, 20), ("d", 1, 20)], grouped=False)
    story.append_together([("d", 1, 3 * KIB), ("f", 1, 3 * KIB)] * 3, grouped=False)


def _rotate_unsynced(story: Story) -> None:
    """Nobody waits for a sync: files end with bytes that only the rotation makes durable."""
    for n in range(5):
        story.append_together([("d", 1, 4 * KIB), ("m", 1, 3 * KIB), ("d", 1, 3 * KIB)], grouped=False, producer=7)
        if n == 3:
            story.append("f", 1)


def _large(story: Story) -> None:
    """Batches that do not fit the ring go through it in pieces."""
    story.append("f", 5, 5 * KIB, producer=7)
    story.append("d", 6, 4 * KIB, producer=7)
    story.append("f", 1)


def _tagged(story: Story) -> None:
    all_classes(story)
    for n in range(3):
        for topic in ("f", "d", "m"):
            story.append(topic, 4, tag=("red", "green")[n % 2])
    story.checkpoint()


def _checkpoint(story: Story) -> None:
    for topic in ("f", "d", "m"):
        story.append(topic, 5)
    story.checkpoint()
    for topic in ("f", "d"):
        story.append(topic, 12)
    story.checkpoint()
    story.append("f", 1)


def _snapshot(story: Story) -> None:
    story.configure("f", priority=3)
    story.consume("f", 5)
    story.snapshot()
    story.append("f", 2)
    story.append("d", 2)
    story.checkpoint()
    story.snapshot()
    story.configure("d", priority=4)
    story.snapshot()


def _delete(story: Story) -> None:
    story.delete("f", tag="red")
    story.delete("d", before_seq=6)
    story.append("f", 3, tag="red")
    story.checkpoint()
    story.append("f", 6, tag="blue")
    story.delete("f", tag="blue")  # before the segment is sealed
    story.checkpoint()
    story.delete("f", before_seq=3)
    story.snapshot()
    story.delete("f", tag="green")
    story.checkpoint()
    story.snapshot()
    story.append("f", 1)


def _floors(story: Story) -> None:
    for n in range(4):
        story.append("f", 5)
        story.append("d", 5)
        if n % 2:
            story.checkpoint()
    story.snapshot()
    story.configure("f", cap_records=4)
    story.append("f", 1)
    story.checkpoint()
    story.snapshot()


def _capped(story: Story) -> None:
    story.topic("f", "fsync", cap_records=10)
    story.topic("d", "disk", cap_records=6)


def _topics(story: Story) -> None:
    story.make_topic("x", "fsync")
    if "x" in story.classes:
        story.append("x", 3)
    story.checkpoint()
    story.delete_topic("f")
    if "f" not in story.classes:
        story.make_topic("f", "fsync")
    if "f" in story.classes:
        story.append("f", 2)
    story.snapshot()
    story.delete_topic("d")
    story.checkpoint()


def _recycle(story: Story) -> None:
    for _ in range(3):
        for _ in range(4):
            story.append_together([("f", 1, 5 * KIB), ("d", 1, 5 * KIB)], producer=7)
        story.checkpoint()
        story.snapshot()
        story.tick()
    for _ in range(12):
        story.append_together([("f", 1, 5 * KIB), ("d", 1, 5 * KIB)], producer=7)
    story.tick()  # nothing of this may go yet
    story.checkpoint()
    story.snapshot()
    story.snapshot()
    story.tick()  # two files and more go together


def _flood(story: Story) -> None:
    """More segments of one topic than are stored one by one: with a part of the active one before them, and without."""
    for topic in ("f", "d"):
        story.append(topic, 5, producer=7)
    story.checkpoint()
    for topic in ("f", "d"):
        story.append_together([(topic, 10, 20)] * 4, producer=7)
    story.checkpoint()
    story.append("f", 3, tag="red", producer=7)
    story.append_together([("f", 8, 20)] * 5, tag="blue", producer=7)
    story.checkpoint()


def _direct(story: Story) -> None:
    """Batches past the log: alone, several at once, with small ones before, between and behind them."""
    story.append("f", 4, 300, producer=7)
    story.append_together([("f", 1, 20), ("f", 3, 400), ("f", 1, 20), ("f", 5, 300)], producer=7)
    story.append_together([("f", 3, 500), ("d", 2, 20), ("f", 8, 200), ("f", 2, 30), ("m", 1, 20)], producer=7)
    story.append("f", 9, 200, producer=7)  # more than a segment holds: through the log
    story.checkpoint()
    story.append_together([("f", 4, 300), ("f", 4, 300)], producer=9)
    story.append("f", 1, producer=9)


def _direct_and_kept(story: Story) -> None:
    """What the log may forget, and what readers and deletes make of it."""
    story.append_together([("f", 4, 300), ("f", 1, 20), ("f", 4, 300)], tag="red", producer=7)
    story.snapshot()
    story.append("f", 6, 300, tag="blue", producer=7)
    story.delete("f", tag="red")
    story.checkpoint()
    story.snapshot()
    story.append_together([("f", 4, 300), ("f", 1, 20)], producer=7)
    story.delete("f", before_seq=6)
    story.snapshot()
    story.snapshot()
    story.append("f", 4, 300, producer=7)
    story.configure("f", cap_records=6)
    story.append("f", 4, 300, producer=7)
    story.checkpoint()


def _queues(story: Story) -> None:
    story.topic("f", "fsync", type="queue")
    story.topic("d", "disk", type="queue", leases_durable=True, keep_done_ms=0)
    for topic in ("f", "d"):
        story.append(topic, 3, tag="a")
        story.put(topic, "b", priority=9, group="g")


def _jobs(story: Story) -> None:
    """Jobs come with options, are finished out of order, given back and finished after all."""
    for topic in ("f", "d"):
        story.finish(topic, "b")
        story.put(topic, "c", delay_ms=1_000)
        story.give_back(topic, "a", kind="fail", reason="no luck", delay_ms=0)
    story.checkpoint()
    story.finish("f", "a")
    story.machine.advance(2_000)
    story.append("f", 9, tag="d")
    story.snapshot()
    story.finish("f", "c")
    story.finish("d", "c")
    story.machine.advance(31_000)  # leases end
    story.checkpoint()
    story.finish("f", "d")
    story.finish("d", "a")
    story.put("f", "e", records=1, unique="k")
    story.put("f", "x", records=1, unique="other")
    story.snapshot()
    story.finish("f", "e")


PAST_THE_LOG = {"direct_writes": "synced", "direct_bytes": KIB}
SCENES = [
    Scene("append", all_classes, _append),
    Scene("rotation", all_classes, _rotate),
    Scene("slow delivery", all_classes, _slow_delivery),
    Scene("rotation of unsynced files", all_classes, _rotate_unsynced),
    Scene("large batches", all_classes, _large),
    Scene("checkpoint and seal", _tagged, _checkpoint),
    Scene("snapshot", _tagged, _snapshot),
    Scene("delete", _tagged, _delete),
    Scene("floors", _capped, _floors),
    Scene("topics", _tagged, _topics),
    Scene("recycling", all_classes, _recycle),
    Scene("flood", all_classes, _flood),
    Scene("flood of direct writes", all_classes, _flood, settings=PAST_THE_LOG | {"direct_bytes": KIB // 4}),
    Scene("direct writes", all_classes, _direct, settings=PAST_THE_LOG),
    Scene("direct writes, kept", _tagged, _direct_and_kept, settings=PAST_THE_LOG),
    Scene("jobs", _queues, _jobs),
    Scene("two of each", all_classes, _rotate, machine={"wal_shards": 2, "delivery_shards": 2}),
]
