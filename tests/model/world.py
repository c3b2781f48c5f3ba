"""A real daemon and the model side by side: every action is done to both, and every answer is compared.

An action takes plain values, so that a failing sequence can be replayed and shortened. Positions are given relative
to something (`Pos`), so that they stay meaningful when earlier actions are left out.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from tests.process.wire import Fetched, Reply, Row, Wire, batch, fetched, owner
from tests.support.daemon import Daemon
from tests.support.timewarp import ENVIRON, PATIENCE_S, run_once
from tests.support.topicmodel import Clock, Expected, Gap, Match, Rec, Refused, TopicModel
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import MessageFlag

START_MS = 1_900_000_000_000  # ahead of the real clock, which a daemon shows until it is told otherwise
CONSUMERS = ("ann", "bob", "eve")
LONG_POLL_MS = 30_000
SUBSCRIBERS_MAX = 4
KILLS_MAX = 3  # more within half a minute, and the supervisor gives up
Plain = tuple[bytes, str | None, str | None, dict[str, Any] | None]


class Pos(NamedTuple):
    """A seq: an anchor (zero, earliest, floor, middle or head) and a distance from it."""

    anchor: str
    delta: int

    def of(self, topic: TopicModel | None) -> int:
        if topic is None:
            return max(0, self.delta)
        base = {
            "zero": 0,
            "earliest": topic.earliest,
            "floor": topic.evict_floor,
            "middle": (topic.earliest + topic.head) // 2,
            "head": topic.head,
        }[self.anchor]
        return max(0, base + self.delta)


class Sent(NamedTuple):
    """A batch of a producer, as it would be sent again."""

    producer: int
    batch_no: int
    records: list[Plain]


@dataclass
class Subscriber:
    slot: int
    wire: Wire
    id: int
    topic_id: int
    cursor: int
    credit: int
    match: Match | None
    nodes: tuple[str, ...]
    gap: Gap | None = None  # told with the first answer
    expected: list[Gap | Rec] = field(default_factory=list)
    got: list[Gap | Rec] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)


class World:
    def __init__(self, root: Path, *, pure: bool = False, **settings: Any) -> None:
        env = {**ENVIRON, **({"TOPICD_PURE": "1"} if pure else {})}
        # Long periods: checkpoints and snapshots happen when an action asks for them, or once a second at random.
        lively = {"delivery_shards": 2, "wal_shards": 2, "segment_max_records": 7, "snapshot_ms": 100}
        self.daemon = Daemon(root, env=env, **{**lively, "ring_bytes": "1536KiB", "wal_file_bytes": "3MiB", **settings})
        self.clock = Clock(START_MS)
        self.subscribers: list[Subscriber] = []
        self.journal_path = root / "journal.txt"
        self.steps = 0
        self.compared = 0
        self._wires: list[Wire] = []
        self._examples = 0
        self._written = 0
        self._next_producer = 1
        self._failed = False
        self._kills = 0  # of shards since the daemon was started
        self.reset()

    # ---- life ----

    def open(self) -> None:
        self.daemon.start().wait_ready()
        self._connect()

    def close(self) -> None:
        self._disconnect()
        self.daemon.close()

    def reset(self) -> None:
        """Other topics, nothing known of them. After a difference another daemon, too: it must show from scratch."""
        if self._failed:
            self._renew()
        self._examples += 1
        self.topics: dict[int, TopicModel] = {}
        self.ids: dict[int, int] = {}
        self.old_ids: dict[int, int] = {}
        self.subscribers = []
        self.sent: dict[int, list[Sent]] = {}
        self.producers: dict[tuple[int, int], int] = {}
        self.journal: list[str] = []

    def finish(self) -> None:
        """The end of an example: everything is compared once more, then its topics go."""
        self._failed = isinstance(sys.exc_info()[1], Exception)
        if self._failed:
            return
        for slot in list(self.topics):
            self.audit(slot)
        for sub in self.subscribers:
            sub.wire.close()
        for slot in list(self.topics):
            self._wire(slot).ask(Op.DELETE_TOPIC, {"topic": self.name(slot)})

    def _renew(self) -> None:
        self._failed = False
        self._kills = 0
        self._disconnect()
        self.keep(self.daemon.root.parent / "failed" / f"example-{self._examples:04d}")
        self.daemon.close()
        shutil.rmtree(self.daemon.data.root)
        self.daemon.log_path.unlink()
        self.journal_path.unlink()
        self.open()

    def _connect(self) -> None:
        count = int(self.daemon.settings["delivery_shards"])
        self._wires = [Wire(self.daemon.run.delivery_socket(i), timeout=PATIENCE_S) for i in range(count)]
        self._set_clock()

    def _disconnect(self) -> None:
        for wire in [*self._wires, *(sub.wire for sub in self.subscribers)]:
            wire.close()
        self._wires = []
        self.subscribers = []

    def _set_clock(self) -> None:
        for wire in self._wires:
            assert wire.ask(Op.DEBUG, {"set_ms": self.clock.now_ms})["now_ms"] == self.clock.now_ms

    def name(self, slot: int) -> str:
        return f"e{self._examples}.{slot}"

    def _wire(self, slot: int) -> Wire:
        path = owner(self.daemon.run.root, self.name(slot), len(self._wires))
        return next(wire for wire in self._wires if wire.path == path)

    def note(self, what: str, /, **values: Any) -> None:
        self.steps += 1
        line = f"{self.steps} e{self._examples} {what} " + " ".join(f"{k}={v!r}" for k, v in values.items())
        self.journal.append(line)
        with self.journal_path.open("a") as file:
            file.write(line + "\n")

    # ---- comparing ----

    def _both(self, expected: Callable[[], Any], actual: Callable[[], Any], what: str) -> tuple[Any, Any] | None:
        """Both results, or None if both refused in the same way."""
        self.compared += 1
        try:
            wanted, code = expected(), ""
        except Refused as exc:
            wanted, code = None, exc.code
        try:
            found = actual()
        except TopicdError as exc:
            assert exc.code == code, f"{what}: refused with {exc.code} ({exc}), expected {code or wanted!r}"
            return None
        assert not code, f"{what}: answered {found!r}, expected {code}"
        return wanted, found

    def _not_found(self, slot: int, actual: Callable[[], Any], what: str) -> None:
        def missing() -> None:
            raise Refused("topic_not_found")

        self._both(missing, actual, what)

    def check_state(self, slot: int) -> None:
        if slot not in self.topics:
            return
        wanted = self.topics[slot].state()
        found = self._wire(slot).ask(Op.STATE, {"topic": self.name(slot), "touch": False})
        wrong = {name: (found[name], value) for name, value in wanted.items() if found[name] != value}
        assert not wrong, f"state of {self.name(slot)} differs (daemon, model): {wrong}"
        self.compared += 1

    def _compare_read(self, wanted: Expected, found: Fetched, *, metadata_only: bool, what: str) -> None:
        want = [_bare(rec) if metadata_only else rec for rec in wanted.records]
        got = [_rec(row) for row in found.rows]
        assert got == want, f"{what}: records {_short(got)}, expected {_short(want)}"
        gap = None if found.tombstone is None else Gap(**found.tombstone)
        assert gap == wanted.gap, f"{what}: tombstone {gap}, expected {wanted.gap}"
        next_from = found.next_from_seq
        assert wanted.low <= next_from <= wanted.high, f"{what}: next {next_from} not in {wanted.low}..{wanted.high}"
        assert found.caught_up == (next_from >= wanted.head), f"{what}: caught_up {found.caught_up} at {next_from}"
        assert (found.head_seq, found.earliest_seq) == (wanted.head, wanted.earliest), what

    def audit(self, slot: int) -> None:
        """Everything there is, with and without limits."""
        topic = self.topics[slot]
        wire, topic_id = self._wire(slot), self.ids[slot]
        for from_seq, limit in ((0, 100_000), (topic.earliest, 3)):
            wanted = topic.read(from_seq, limit=limit)
            found = wire.fetch(topic_id, from_seq, limit=limit)
            self._compare_read(wanted, found, metadata_only=False, what=f"audit of {self.name(slot)} from {from_seq}")
        self.check_state(slot)
        self._compare_consumers(slot)

    # ---- topics ----

    def create_forbidden(self, slot: int) -> None:
        """OPEN with create: false."""
        self.note("create_forbidden", slot=slot)

        def ask() -> dict[str, Any]:
            return self._wire(slot).ask(Op.OPEN, {"topic": self.name(slot), "create": False})

        if slot not in self.topics:
            self._not_found(slot, ask, "open without create")
            return
        answer = ask()
        topic = self.topics[slot]
        assert answer["topic_id"] == self.ids[slot]
        assert (answer["created"], answer["head_seq"]) == (False, topic.head)

    def _open(self, slot: int) -> None:
        """Lazy creation with defaults, as on a first write."""
        answer = self._wire(slot).ask(Op.OPEN, {"topic": self.name(slot)})
        assert answer["created"] == (slot not in self.topics)
        if slot not in self.topics:
            self._made(slot, TopicModel(self.clock), answer["topic_id"])

    def _made(self, slot: int, model: TopicModel, topic_id: int) -> None:
        assert topic_id > self.old_ids.get(slot, 0), "topic ids are never reused"
        self.topics[slot], self.ids[slot] = model, topic_id
        self.sent[slot] = []

    def configure(self, slot: int, fields: dict[str, Any]) -> None:
        self.note("configure", slot=slot, fields=fields)

        def model() -> TopicModel:
            if slot in self.topics:
                self.topics[slot].configure(fields)
                return self.topics[slot]
            return TopicModel(self.clock, **fields)

        def daemon() -> dict[str, Any]:
            return self._wire(slot).ask(Op.CONFIGURE, {"topic": self.name(slot), "config": fields})

        both = self._both(model, daemon, f"configure {fields}")
        if both is not None:
            topic, answer = both
            assert answer["created"] == (slot not in self.topics)
            if slot not in self.topics:
                self._made(slot, topic, answer["topic_id"])
            assert answer["config"] == topic.config
        self._settle(slot)

    def delete_topic(self, slot: int, if_empty: bool) -> None:
        self.note("delete_topic", slot=slot, if_empty=if_empty)

        def daemon() -> dict[str, Any]:
            return self._wire(slot).ask(Op.DELETE_TOPIC, {"topic": self.name(slot), "if_empty": if_empty})

        if slot not in self.topics:
            self._not_found(slot, daemon, "delete topic")
            return

        def model() -> None:
            if if_empty and self.topics[slot].state()["count"]:
                raise Refused("conflict")

        both = self._both(model, daemon, f"delete topic, if_empty {if_empty}")
        if both is None:
            return
        assert both[1]["topic_id"] == self.ids[slot]
        for sub in [sub for sub in self.subscribers if sub.slot == slot]:
            self._drain(sub)
            told = [(notice["event"], notice["topic_id"]) for notice in sub.notices]
            assert told == [("topic_deleted", self.ids[slot])], f"subscriber was told {sub.notices}"
            sub.wire.close()
            self.subscribers.remove(sub)
        self.old_ids[slot] = self.ids.pop(slot)
        del self.topics[slot]

    def list_topics(self, limit: int) -> None:
        self.note("list_topics", limit=limit)
        prefix = f"e{self._examples}."
        found: list[dict[str, Any]] = []
        for wire in self._wires:
            after: Any = ""
            while after is not None:
                page = wire.ask(Op.LIST, {"prefix": prefix, "after": after, "limit": limit})
                names = [row["topic"] for row in page["topics"]]
                assert names == sorted(names) and len(names) <= limit
                found += page["topics"]
                after = page["next"]
        rows = {row["topic"]: row for row in found}
        assert len(rows) == len(found)
        assert sorted(rows) == sorted(self.name(slot) for slot in self.topics)
        for slot, topic in self.topics.items():
            state, row = topic.state(), rows[self.name(slot)]
            for field_name in ("head_seq", "earliest_seq", "count", "bytes"):
                assert row[field_name] == state[field_name], f"list: {row}, expected {state}"
            assert (row["topic_id"], row["durability"]) == (self.ids[slot], topic.config["durability"])
        self.compared += 1

    # ---- writing ----

    def _records(self, shapes: Sequence[tuple[int, str | None, str | None, bool]]) -> list[Plain]:
        """Every record has bytes of its own; (size, tag, node, with meta)."""
        made: list[Plain] = []
        for size, tag, node, with_meta in shapes:
            self._written += 1
            data = (b"%d." % self._written * (size // 2 + 1))[:size] if size else b""
            made.append((data, tag, node, {"n": self._written} if with_meta else None))
        return made

    def append(
        self, slot: int, shapes: Sequence[tuple[int, str | None, str | None, bool]], key: str | None = None
    ) -> None:
        self.note("append", slot=slot, shapes=list(shapes), key=key)
        self._open(slot)
        self._append(slot, self._records(shapes), key=key)
        self._settle(slot)

    def produce(self, slot: int, who: int, shapes: Sequence[tuple[int, str | None, str | None, bool]]) -> None:
        """The next batch of a producer."""
        self.note("produce", slot=slot, who=who, shapes=list(shapes))
        self._open(slot)
        topic = self.topics[slot]
        producer = self.producers.setdefault((self.ids[slot], who), self._next_producer)
        self._next_producer = max(self._next_producer, producer + 1)
        known = topic.producers.get(producer)
        sent = Sent(producer, known.last_no + 1 if known else 1, self._records(shapes))
        if self._append(slot, sent.records, producer=producer, batch_no=sent.batch_no):
            self.sent[slot].append(sent)
        self._settle(slot)

    def send_again(self, slot: int, back: int) -> None:
        """A retry of one of the newest batches."""
        self.note("send_again", slot=slot, back=back)
        if slot not in self.topics or not self.sent[slot]:
            return
        sent = self.sent[slot][max(-len(self.sent[slot]), -1 - back)]
        if sent.producer not in self.topics[slot].producers:
            return  # forgotten with its ephemeral topic
        self._append(slot, sent.records, producer=sent.producer, batch_no=sent.batch_no)
        self._settle(slot)

    def send_too_early(self, slot: int, who: int, ahead: int) -> None:
        self.note("send_too_early", slot=slot, who=who, ahead=ahead)
        if slot not in self.topics:
            return
        known = self.topics[slot].producers.get(self.producers.get((self.ids[slot], who), 0))
        if known is not None:
            producer = self.producers[(self.ids[slot], who)]
            records = self._records([(3, None, None, False)])
            self._append(slot, records, producer=producer, batch_no=known.last_no + 2 + ahead)
        self._settle(slot)

    def _append(self, slot: int, records: list[Plain], **how: Any) -> bool:
        topic, wire, topic_id = self.topics[slot], self._wire(slot), self.ids[slot]
        options = {**how}
        if how.get("key") is not None:
            options["key"] = how["key"].encode()
        else:
            options.pop("key", None)
        frames = _frames(records)

        def daemon() -> tuple[int, int, int, bool]:
            answer = wire.appended(wire.send_append(topic_id, frames, len(records), **options))
            return answer.first_seq, answer.count, answer.head_seq, answer.deduped

        both = self._both(lambda: topic.append(records, **how), daemon, f"append of {len(records)}")
        if both is None:
            return False
        wanted, found = both
        assert found == wanted, f"append answered {found}, expected {wanted}"
        return True

    # ---- removing ----

    def delete(self, slot: int, before: Pos | None, match: Match | None) -> None:
        self.note("delete", slot=slot, before=before, match=match)
        topic = self.topics.get(slot)
        request: dict[str, Any] = {"topic": self.name(slot)}
        before_seq = None if before is None else before.of(topic)
        if before_seq is not None:
            request["before_seq"] = before_seq
        if match is not None:
            request["match"] = match.wire()

        def daemon() -> dict[str, Any]:
            return self._wire(slot).ask(Op.DELETE_RECORDS, request)

        if topic is None:
            self._not_found(slot, daemon, "delete")
            return
        live = list(topic.live)
        both = self._both(lambda: topic.delete(before_seq, match), daemon, f"delete {request}")
        if both is not None:
            wanted, found = both
            wrong = {name: (found[name], value) for name, value in wanted.items() if found[name] != value}
            assert not wrong, f"delete {request} differs (daemon, model): {wrong}"
            if match is not None:
                # Records that match but are dead already may be counted: they are in the tables of their segments.
                assert found["examined"] >= wanted["deleted"]
            else:
                assert found["examined"] == 0, f"{found['examined']} of {len(live)} were looked at"
        self._settle(slot)

    def advance(self, ms: int) -> None:
        self.note("advance", ms=ms)
        self.clock.now_ms += ms
        self._set_clock()

    # ---- reading ----

    def read(
        self,
        slot: int,
        start: Pos,
        *,
        limit: int = 0,
        max_bytes: int = 0,
        match: Match | None = None,
        nodes: tuple[str, ...] = (),
        age_ms: int | None = None,
        old_epoch: bool = False,
        metadata_only: bool = False,
    ) -> None:
        options = {"limit": limit, "max_bytes": max_bytes, "match": match, "nodes": nodes, "age_ms": age_ms}
        self.note("read", slot=slot, start=start, old_epoch=old_epoch, metadata_only=metadata_only, **options)
        topic = self.topics.get(slot)
        if topic is None:
            self._not_found(slot, lambda: self._wire(slot).fetch(self.old_ids.get(slot, 1 << 60)), "read")
            return
        from_seq = start.of(topic)
        from_ts = None if age_ms is None else self.clock.now_ms - age_ms
        epoch = self.old_ids.get(slot) if old_epoch else self.ids[slot]
        chosen = _chosen(match, nodes, from_ts, epoch)
        wanted = topic.read(
            from_seq,
            limit=limit,
            max_bytes=max_bytes,
            match=match,
            nodes=nodes,
            from_ts=from_ts,
            other_epoch=epoch is not None and epoch != self.ids[slot],
        )
        flags = int(MessageFlag.METADATA_ONLY) if metadata_only else 0
        found = self._wire(slot).fetch(
            self.ids[slot], from_seq, limit=limit, max_bytes=max_bytes, flags=flags, **chosen
        )
        self.compared += 1
        what = f"read of {self.name(slot)} from {from_seq} {options}"
        self._compare_read(wanted, found, metadata_only=metadata_only, what=what)

    def read_through(self, slot: int, limit: int, max_bytes: int, match: Match | None, nodes: tuple[str, ...]) -> None:
        """Page by page from the beginning: each passing record once, in order, whatever the pages are."""
        self.note("read_through", slot=slot, limit=limit, max_bytes=max_bytes, match=match, nodes=nodes)
        topic = self.topics.get(slot)
        if topic is None:
            return
        everything = topic.read(0, limit=100_000, match=match, nodes=nodes)
        got: list[Rec] = []
        from_seq, pages = 0, 0
        while True:
            found = self._wire(slot).fetch(
                self.ids[slot], from_seq, limit=limit, max_bytes=max_bytes, **_chosen(match, nodes, None, None)
            )
            got += [_rec(row) for row in found.rows]
            assert (found.tombstone is not None) == (everything.gap is not None and pages == 0)
            pages += 1
            if found.caught_up:
                break
            assert found.next_from_seq > from_seq, f"reading stands still at {from_seq}"
            from_seq = found.next_from_seq
        assert got == everything.records, f"pages give {_short(got)}, expected {_short(everything.records)}"
        self.compared += pages

    def long_poll(
        self, slot: int, shapes: Sequence[tuple[int, str | None, str | None, bool]], match: Match | None
    ) -> None:
        """Somebody waits at the head; a write answers him if it is for him."""
        self.note("long_poll", slot=slot, shapes=list(shapes), match=match)
        topic = self.topics.get(slot)
        if topic is None:
            return
        from_seq = topic.head
        with Wire(self._wire(slot).path, timeout=PATIENCE_S) as waiter:
            chosen = _chosen(match, (), None, None)
            request = waiter.send_fetch(self.ids[slot], from_seq, wait_ms=LONG_POLL_MS, **chosen)
            waiter.ask(Op.PING)
            topic.read(from_seq)
            before = topic.head
            self._append(slot, self._records(shapes))
            wanted = topic.read(from_seq, match=match)
            waiter.ask(Op.PING)
            if wanted.records or wanted.gap is not None:
                answer = waiter.fetched(request)
                self._compare_read(wanted, answer, metadata_only=False, what=f"long poll from {before}")
            else:
                assert not any(reply.request_id == request for reply in waiter._inbox), "nothing was there to tell"
        self._settle(slot)

    # ---- subscriptions ----

    def subscribe(
        self, slot: int, start: Pos | None, credit: int, match: Match | None, nodes: tuple[str, ...], old_epoch: bool
    ) -> None:
        """From a position, or from the tail."""
        self.note("subscribe", slot=slot, start=start, credit=credit, match=match, nodes=nodes, old_epoch=old_epoch)
        if len(self.subscribers) >= SUBSCRIBERS_MAX:
            return
        topic = self.topics.get(slot)
        entry: dict[str, Any] = {"topic": self.name(slot)}
        if start is None:
            entry["tail"] = True
        else:
            entry["from_seq"] = start.of(topic)
            if old_epoch and slot in self.old_ids:
                entry["epoch"] = self.old_ids[slot]
        wire = Wire(self._wire(slot).path, timeout=PATIENCE_S)
        options = {k: v for k, v in _chosen(match, nodes, None, None).items() if v}
        if topic is None:
            self._not_found(slot, lambda: wire.subscribe([entry], credit, **options), "subscribe")
            wire.close()
            return
        topic.expire()
        sub_id = wire.subscribe([entry], credit, **options)
        cursor = topic.head if start is None else entry["from_seq"]
        sub = Subscriber(slot, wire, sub_id, self.ids[slot], cursor, credit, match, nodes)
        if "epoch" in entry:
            sub.cursor, sub.gap = 0, topic.recreated()
        self.subscribers.append(sub)
        self._settle(slot)

    def grant(self, which: int, credit: int) -> None:
        self.note("grant", which=which, credit=credit)
        if not self.subscribers:
            return
        sub = self.subscribers[which % len(self.subscribers)]
        sub.credit += credit
        sub.wire.credit(sub.id, credit)
        self._settle(sub.slot)

    def unsubscribe(self, which: int) -> None:
        self.note("unsubscribe", which=which)
        if self.subscribers:
            sub = self.subscribers.pop(which % len(self.subscribers))
            self._drain(sub)
            sub.wire.ask(Op.UNSUBSCRIBE, {"subscription": sub.id})
            sub.wire.close()

    def _settle(self, slot: int) -> None:
        """After a change: the topic's state, and what its subscribers have been pushed."""
        for sub in self.subscribers:
            if sub.slot == slot:
                self._pump(sub)
                self._drain(sub)
        self.check_state(slot)

    def _pump(self, sub: Subscriber) -> None:
        """What the daemon pushes now: everything behind the cursor, while there is credit."""
        topic = self.topics[sub.slot]
        while sub.credit > 0 and (sub.cursor < topic.head or sub.gap is not None):
            found = topic.read(sub.cursor, limit=100_000, max_bytes=256 << 10, match=sub.match, nodes=sub.nodes)
            gap, sub.gap = sub.gap or found.gap, None
            sub.cursor = found.low
            sub.credit -= sum(rec.size for rec in found.records)
            sub.expected += [*([gap] if gap is not None else []), *found.records]

    def _drain(self, sub: Subscriber) -> None:
        """A ping is answered behind whatever was pushed before."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ping = sub.wire.send(Op.PING, {})
            while (reply := sub.wire.receive()).request_id != ping:
                self._take(sub, reply)
            if len(sub.got) >= len(sub.expected) or time.monotonic() > deadline:
                break
        self.compared += 1
        assert sub.got == sub.expected, f"subscriber got {_short(sub.got)}, expected {_short(sub.expected)}"

    def _take(self, sub: Subscriber, reply: Reply) -> None:
        assert reply.request_id == sub.id
        if reply.op == Op.NOTICE:
            sub.notices.append(reply.map)
            return
        assert reply.op == Op.PUSH
        push = fetched(reply)
        assert push.topic_id == sub.topic_id
        if push.tombstone is not None:
            sub.got.append(Gap(**push.tombstone))
        sub.got += [_rec(row) for row in push.rows]

    # ---- consumers ----

    def consumer(self, slot: int, action: str, name: str, start: dict[str, Any] | None, seq: Pos) -> None:
        """start: as on the wire, with Pos for a seq and an age for a time."""
        self.note("consumer", slot=slot, action=action, name=name, start=start, seq=seq)
        topic = self.topics.get(slot)
        request: dict[str, Any] = {"topic": self.name(slot), "name": name}
        resolved = self._start(topic, start)
        if action in ("open", "reset") and resolved is not None:
            request["start"] = resolved
        if action == "ack":
            request["seq"] = seq.of(topic)

        def daemon() -> dict[str, Any]:
            return self._wire(slot).ask(Op[f"CONSUMER_{action.upper()}"], request)

        if topic is None:
            self._not_found(slot, daemon, "consumer")
            return
        calls = {
            "open": lambda: topic.open_consumer(name, resolved),
            "reset": lambda: topic.reset_consumer(name, resolved),
            "ack": lambda: topic.ack(name, request["seq"]),
            "remove": lambda: topic.remove_consumer(name),
        }
        both = self._both(calls[action], daemon, f"consumer {request}")
        if both is not None:
            wanted, found = both
            wrong = {name: (found[name], value) for name, value in wanted.items() if found[name] != value}
            assert not wrong, f"consumer {request} differs (daemon, model): {wrong}"
        self._compare_consumers(slot)
        self._settle(slot)

    def _start(self, topic: TopicModel | None, start: dict[str, Any] | None) -> dict[str, Any] | None:
        if start is None or "at" in start:
            return start
        if "age" in start:
            return {"ts": self.clock.now_ms - start["age"]}
        return {"seq": start["seq"].of(topic)}

    def _compare_consumers(self, slot: int) -> None:
        wanted = self.topics[slot].consumer_rows()
        found = self._wire(slot).ask(Op.CONSUMER_LIST, {"topic": self.name(slot)})["consumers"]
        got = [{key: row[key] for key in ("name", "acked_seq", "head_seq", "lag")} for row in found]
        assert got == wanted, f"consumers of {self.name(slot)}: {got}, expected {wanted}"

    # ---- what must not be noticed ----

    def checkpoint(self) -> None:
        """Everything to segments, as far as it goes at once."""
        self.note("checkpoint")
        self._until("checkpoint", "checkpoints")

    def snapshot(self) -> None:
        """Metadata to disk; whole dead segments are dropped, half-dead ones rewritten."""
        self.note("snapshot")
        self._until("snapshot", "snapshots")

    def _until(self, what: str, counter: str) -> None:
        for wire in self._wires:
            assert run_once(wire, what, counter)["damage"] == 0, f"damage was found\n{self.daemon.log_tail()}"

    def restart(self, kill: bool, **settings: Any) -> None:
        self.note("restart", kill=kill, **settings)
        self._kills = 0
        self._disconnect()
        if kill:
            self.daemon.kill_all()
        else:
            stopped = self.daemon.stop()
            assert stopped.code == 0, f"exit code {stopped.code}\n{self.daemon.log_tail()}"
        self.daemon.settings |= settings
        self.daemon.start().wait_ready()
        self._back(lambda slot: True, crashed=kill)

    def kill_shard(self, index: int) -> None:
        """One delivery shard dies; its successor takes over."""
        self.note("kill_shard", index=index)
        if self._kills >= KILLS_MAX:
            self.restart(kill=True)
            return
        self._kills += 1
        index %= len(self._wires)
        self._disconnect()
        name = f"dlv-{index:02d}"
        count = len(self.daemon.pids())
        self.daemon.wait_replaced(name, self.daemon.kill(name))
        assert len(self.daemon.pids()) == count
        path = self.daemon.run.delivery_socket(index)
        shards = int(self.daemon.settings["delivery_shards"])
        self._back(lambda slot: owner(self.daemon.run.root, self.name(slot), shards) == path, crashed=True)

    def _back(self, restarted: Callable[[int], bool], *, crashed: bool) -> None:
        self._connect()
        for wire in self._wires:
            assert wire.ask(Op.DEBUG, {})["damage"] == 0, f"damage was found\n{self.daemon.log_tail()}"
        for slot, topic in self.topics.items():
            if restarted(slot):
                if crashed:
                    state = self._wire(slot).ask(Op.STATE, {"topic": self.name(slot), "touch": False})
                    gap = self._wire(slot).fetch(self.ids[slot]).tombstone
                    reason = None if gap is None else gap["reason"]
                    topic.crashed(state["head_seq"], state["evict_floor"], state["last_write_ts"], reason)
                else:
                    topic.restarted()
                if topic.ephemeral:
                    self.sent[slot].clear()
                    self.producers = {key: p for key, p in self.producers.items() if key[0] != self.ids[slot]}
            self.audit(slot)

    def keep(self, where: Path) -> Path:
        """Everything that explains a difference."""
        where.mkdir(parents=True, exist_ok=True)
        for path in (self.journal_path, self.daemon.log_path):
            if path.exists():
                shutil.copy(path, where / path.name)
        return where


def _frames(records: list[Plain]) -> bytearray:
    datas, tags, nodes, metas = zip(*records, strict=True)
    return batch(
        datas,
        [None if tag is None else tag.encode() for tag in tags],
        [None if node is None else node.encode() for node in nodes],
        [None if meta is None else msgpack.packb(meta) for meta in metas],
    )


def _chosen(match: Match | None, nodes: Sequence[str], from_ts: int | None, epoch: int | None) -> dict[str, Any]:
    given = {"match": match and match.wire(), "nodes": list(nodes) or None, "from_ts": from_ts, "epoch": epoch}
    return {name: value for name, value in given.items() if value is not None}


def _rec(row: Row) -> Rec:
    meta = None if row.meta is None else msgpack.unpackb(row.meta)
    return Rec(
        row.seq,
        row.ts,
        row.data,
        row.tag and row.tag.decode(),
        row.node and row.node.decode(),
        meta,  # type: ignore[arg-type]
    )


def _bare(rec: Rec) -> Rec:
    return Rec(rec.seq, rec.ts, b"", rec.tag, rec.node, None)


def _short(found: Sequence[Gap | Rec]) -> list[Any]:
    return [
        item if isinstance(item, Gap) else (item.seq, item.ts, item.tag, item.node, item.data[:12]) for item in found
    ]
