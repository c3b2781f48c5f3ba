"""The actions of the world as rules, with the values they may take."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.model.world import CONSUMERS, Pos, World
from tests.support.topicmodel import Match

TAGS = ("a", "a:1", "a:2", "ab", "b", "z" * 256)
NODES = ("n1", "n2", "n" * 128)

slots = st.integers(0, 2)
seldom = st.integers(0, 9)  # 0: do it. A restart takes as long as a thousand of anything else
positions = st.builds(
    Pos, st.sampled_from(("zero", "earliest", "floor", "middle", "head")), st.integers(-4, 4) | st.integers(-40, 40)
)
matches = st.builds(Match, st.sampled_from(TAGS)) | st.builds(
    Match, st.sampled_from(("", "a", "a:", "ab", "q")), st.just(True)
)
node_lists = st.lists(st.sampled_from((*NODES, "nobody")), max_size=3, unique=True).map(tuple)
sizes = st.sampled_from((0, 1, 5, 20, 100)) | st.integers(0, 300) | st.just(5000)
shapes = st.tuples(sizes, st.none() | st.sampled_from(TAGS), st.none() | st.sampled_from(NODES), st.booleans())
batches = st.lists(shapes, min_size=1, max_size=10)
starts = (
    st.none()
    | st.sampled_from(({"at": "earliest"}, {"at": "latest"}))
    | st.builds(lambda pos: {"seq": pos}, positions)
    | st.builds(lambda age: {"age": age}, st.integers(0, 3000))
)

GOOD = {
    "ttl_ms": st.sampled_from((0, 0, 1, 50, 1000, 5000)),
    "cap_records": st.sampled_from((0, 0, 1, 3, 8, 20)),
    "cap_bytes": st.sampled_from((0, 0, 1, 200, 1000, 20_000)),
    "discard": st.sampled_from(("old", "old", "reject")),
    "durability": st.sampled_from(("memory", "disk", "disk", "fsync", "ephemeral")),
    "priority": st.none() | st.integers(-1000, 1000),
    "auto_priority": st.booleans(),
    "dedupe_node": st.booleans(),
    "retain": st.sampled_from(("all", "acked")),
    "idempotency_window_ms": st.sampled_from((0, 10, 1000, 120_000)),
    "type": st.sampled_from(("log", "log", "log", "queue")),
    "durable": st.booleans(),
}
BAD = {
    "ttl_ms": st.sampled_from((-1, "soon", 1.5, None, True, 2**63)),
    "cap_records": st.sampled_from((-1, [], False)),
    "cap_bytes": st.sampled_from((-1, 2**63)),
    "discard": st.sampled_from(("new", 0, None)),
    "durability": st.sampled_from(("DISK", "", 1)),
    "priority": st.sampled_from((-1001, 1001, "high")),
    "lease_ms": st.sampled_from((99, 86_400_001)),
    "claim_jitter_ms": st.sampled_from((-1, 5001)),
    "idempotency_window_ms": st.sampled_from((-1, 86_400_001)),
    "dead_letter": st.sampled_from((".x", "", 5, "a/b")),
    "dedupe_node": st.sampled_from((0, "yes")),
    "durable": st.sampled_from((1, "true")),
    "nonsense": st.just(1),
}


class TopicMachine(RuleBasedStateMachine):
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.world.reset()

    def teardown(self) -> None:
        self.world.finish()

    # ---- writing ----

    @rule(slot=slots, shape=shapes)
    def append_one(self, slot: int, shape: Any) -> None:
        self.world.append(slot, [shape])

    @rule(slot=slots, batch=batches)
    def append_batch(self, slot: int, batch: Any) -> None:
        self.world.append(slot, batch)

    @rule(slot=slots, batch=batches)
    def append_another(self, slot: int, batch: Any) -> None:
        self.world.append(slot, batch)

    @rule(slot=slots, batch=batches, key=st.sampled_from(("k1", "k2", "k" * 256)))
    def append_with_key(self, slot: int, batch: Any, key: str) -> None:
        self.world.append(slot, batch, key)

    @rule(slot=slots, who=st.integers(0, 2), batch=batches)
    def produce(self, slot: int, who: int, batch: Any) -> None:
        self.world.produce(slot, who, batch)

    @rule(slot=slots, back=st.integers(0, 20))
    def send_again(self, slot: int, back: int) -> None:
        self.world.send_again(slot, back)

    @rule(slot=slots, who=st.integers(0, 2), ahead=st.integers(0, 3))
    def send_too_early(self, slot: int, who: int, ahead: int) -> None:
        self.world.send_too_early(slot, who, ahead)

    # ---- topics ----

    @rule(slot=slots, fields=st.fixed_dictionaries({}, optional=GOOD))
    def configure(self, slot: int, fields: dict[str, Any]) -> None:
        self.world.configure(slot, fields)

    @rule(slot=slots, name=st.sampled_from(sorted(GOOD)), data=st.data())
    def configure_field(self, slot: int, name: str, data: st.DataObject) -> None:
        self.world.configure(slot, {name: data.draw(GOOD[name])})

    @rule(
        slot=slots, name=st.sampled_from(sorted(BAD)), data=st.data(), fields=st.fixed_dictionaries({}, optional=GOOD)
    )
    def configure_wrongly(self, slot: int, name: str, data: st.DataObject, fields: dict[str, Any]) -> None:
        self.world.configure(slot, {**fields, name: data.draw(BAD[name])})

    @rule(slot=slots, if_empty=st.booleans())
    def delete_topic(self, slot: int, if_empty: bool) -> None:
        self.world.delete_topic(slot, if_empty)

    @rule(slot=slots, limit=st.integers(0, 4))
    def look(self, slot: int, limit: int) -> None:
        if limit:
            self.world.list_topics(limit)
        else:
            self.world.create_forbidden(slot)

    # ---- removing ----

    @rule(slot=slots, before=positions)
    def delete_before(self, slot: int, before: Pos) -> None:
        self.world.delete(slot, before, None)

    @rule(slot=slots, match=matches)
    def delete_tag(self, slot: int, match: Match) -> None:
        self.world.delete(slot, None, match)

    @rule(slot=slots, before=st.none() | positions, match=st.none() | matches)
    def delete(self, slot: int, before: Pos | None, match: Match | None) -> None:
        self.world.delete(slot, before, match)

    @rule(ms=st.sampled_from((1, 10, 51, 1000, 5001)) | st.integers(1, 200_000))
    def advance(self, ms: int) -> None:
        self.world.advance(ms)

    # ---- reading ----

    @rule(
        slot=slots,
        start=positions,
        limit=st.integers(0, 12),
        max_bytes=st.sampled_from((0, 0, 1, 100, 500)),
        match=st.none() | matches,
        nodes=node_lists,
        metadata_only=st.booleans(),
    )
    def read(self, slot: int, start: Pos, **options: Any) -> None:
        self.world.read(slot, start, **options)

    @rule(
        slot=slots,
        start=positions,
        limit=st.integers(1, 12),
        age_ms=st.none() | st.integers(0, 6000),
        old=st.booleans(),
    )
    def read_from_time(self, slot: int, start: Pos, limit: int, age_ms: int | None, old: bool) -> None:
        self.world.read(slot, start, limit=limit, age_ms=age_ms, old_epoch=old)

    @rule(
        slot=slots,
        limit=st.integers(1, 9),
        max_bytes=st.sampled_from((0, 1, 300)),
        match=st.none() | matches,
        nodes=node_lists,
    )
    def read_through(self, slot: int, limit: int, max_bytes: int, match: Match | None, nodes: tuple[str, ...]) -> None:
        self.world.read_through(slot, limit, max_bytes, match, nodes)

    @rule(slot=slots, batch=batches, match=st.none() | matches)
    def long_poll(self, slot: int, batch: Any, match: Match | None) -> None:
        self.world.long_poll(slot, batch, match)

    @rule(
        slot=slots,
        start=st.none() | positions,
        credit=st.sampled_from((1, 300, 1 << 20)),
        match=st.none() | matches,
        nodes=node_lists,
        old_epoch=st.booleans(),
    )
    def subscribe(self, slot: int, **options: Any) -> None:
        self.world.subscribe(slot, **options)

    @rule(which=st.integers(0, 3), credit=st.sampled_from((1, 400, 1 << 20)))
    def grant(self, which: int, credit: int) -> None:
        self.world.grant(which, credit)

    @rule(which=st.integers(0, 3))
    def unsubscribe(self, which: int) -> None:
        self.world.unsubscribe(which)

    # ---- consumers ----

    @rule(slot=slots, name=st.sampled_from(CONSUMERS), start=starts)
    def open_consumer(self, slot: int, name: str, start: Any) -> None:
        self.world.consumer(slot, "open", name, start, Pos("zero", 0))

    @rule(slot=slots, name=st.sampled_from(CONSUMERS), seq=positions)
    def ack(self, slot: int, name: str, seq: Pos) -> None:
        self.world.consumer(slot, "ack", name, None, seq)

    @rule(slot=slots, name=st.sampled_from(CONSUMERS), action=st.sampled_from(("reset", "remove")), start=starts)
    def change_consumer(self, slot: int, name: str, action: str, start: Any) -> None:
        self.world.consumer(slot, action, name, start, Pos("zero", 0))

    # ---- what must not be noticed ----

    @rule(chance=st.integers(0, 3), snapshot=st.booleans())
    def checkpoint(self, chance: int, snapshot: bool) -> None:
        if chance == 0:
            self.world.checkpoint()
            if snapshot:
                self.world.snapshot()

    @rule(
        chance=seldom,
        kill=st.booleans(),
        checkpoint_ms=st.sampled_from((10, 86_400_000)),
        segment_max_records=st.sampled_from((1, 7, 7, 50)),
        delivery_shards=st.sampled_from((2, 2, 2, 1, 3)),
        wal_shards=st.sampled_from((2, 2, 1, 3)),
    )
    def restart(self, chance: int, kill: bool, **changed: Any) -> None:
        if chance == 0:
            self.world.restart(kill, **changed)

    @rule(chance=seldom, index=st.integers(0, 2))
    def kill_shard(self, chance: int, index: int) -> None:
        if chance == 0:
            self.world.kill_shard(index)


def machine_for(world: World) -> type[TopicMachine]:
    """The machine bound to a daemon that outlives its examples."""
    return type("TopicMachine", (TopicMachine,), {"world": world})


def run_examples(machine: type[TopicMachine], examples: int, steps: int, *, seed: int, shrink: bool = True) -> None:
    """Raises with the shortest history found when the daemon and the model differ."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(seeded(seed)(machine), settings=chosen)
