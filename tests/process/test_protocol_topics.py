"""Topics on a real daemon: open, configure, state, list, delete, made again; named consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import SETTINGS as SHARED
from tests.process.conftest import SHARDS, Served
from tests.process.wire import Wire, append_body, batch, packed
from tests.support.daemon import Daemon, wait_until
from topicd.errors import (
    Conflict,
    ConsumerNotFound,
    InvalidRequest,
    Throttled,
    TopicdError,
    TopicNotFound,
    WrongShard,
)
from topicd.ipc.protocol.messages import REQUESTS, Op
from topicd.ipc.protocol.wire import ANSWER
from topicd.paths import topic_dir_name
from topicd.placement import delivery_shard

SETTINGS = {"checkpoint_ms": 10, "snapshot_ms": 200}
CLASSES = ["ephemeral", "memory", "disk", "fsync"]


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


# ---- open ----


def test_open_makes_a_topic_once(wire: Wire, topic: str) -> None:
    first = wire.ask(Op.OPEN, {"topic": topic})
    again = wire.ask(Op.OPEN, {"topic": topic, "config": {"cap_records": 5}})
    assert (first["created"], again["created"]) == (True, False)
    assert first["topic_id"] == again["topic_id"] > 0
    assert (first["head_seq"], first["earliest_seq"]) == (0, 1)
    assert wire.state(topic)["config"]["cap_records"] == 0


def test_makers_who_come_together_share_the_topic(served: Served, topic: str) -> None:
    wires = [served.wire(topic) for _ in range(5)]
    ids = [wire.send(Op.OPEN, {"topic": topic, "config": {"durability": "fsync"}}) for wire in wires]
    answers = [wire.wait(request_id).checked(Op.OPEN).map for wire, request_id in zip(wires, ids, strict=True)]
    assert len({answer["topic_id"] for answer in answers}) == 1


@pytest.mark.fault("TOP-02")
def test_a_change_that_comes_while_the_topic_is_born_is_made(wire: Wire, topic: str) -> None:
    """All in one piece: nothing of it is stored when the last of them is looked at."""
    bodies: list[tuple[Op, dict[str, Any]]] = [
        (Op.OPEN, {"topic": topic}),
        (Op.CONFIGURE, {"topic": topic, "config": {"durability": "fsync", "cap_records": 3}}),
        (Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 7}}),
        (Op.CONFIGURE, {"topic": topic, "config": {"cap_records": -1}}),
        (Op.CONFIGURE, {"topic": topic, "config": {"no_such_field": 1}}),
    ]
    ids = [wire.next_id() for _ in bodies]
    wire.send_raw(b"".join(packed(op, id, body) for id, (op, body) in zip(ids, bodies, strict=True)))
    assert wire.wait(ids[0]).checked(Op.OPEN).map["created"] is True
    first, second = (wire.wait(id).checked(Op.CONFIGURE).map for id in ids[1:3])
    assert (first["created"], first["config"]["durability"], first["config"]["cap_records"]) == (False, "fsync", 3)
    assert (second["config"]["durability"], second["config"]["cap_records"]) == ("fsync", 7)
    for id in ids[3:]:
        with pytest.raises(InvalidRequest):
            wire.wait(id).checked(Op.CONFIGURE)
    config = wire.state(topic)["config"]
    assert (config["durability"], config["cap_records"]) == ("fsync", 7)


def test_open_without_create_finds_or_refuses(wire: Wire, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        wire.ask(Op.OPEN, {"topic": topic, "create": False})
    wire.open(topic)
    assert wire.ask(Op.OPEN, {"topic": topic, "create": False})["created"] is False


@pytest.mark.parametrize("name", ["a", "A9", "a" * 255, "a.b_c:d-e", "0"])
def test_names_that_are_allowed(served: Served, name: str) -> None:
    assert served.wire(name).open(name) > 0


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "a/b", "a b", "a\n", "a\0", "é", "a" * 256, "..", 5, None, b"a", ["a"], {"a": 1}]
)
def test_names_that_are_not(served: Served, name: object) -> None:
    wire = served.shard(0)
    for request in REQUESTS.values():
        if "topic" in request.RULES:
            with pytest.raises(InvalidRequest, match="topic name"):
                wire.ask(request.OP, {"topic": name})


def test_a_topic_of_another_shard_is_sent_there(served: Served, topic: str) -> None:
    owner = delivery_shard(topic, SHARDS)
    stranger = served.shard(1 - owner)
    for op, body in ((Op.OPEN, {}), (Op.STATE, {}), (Op.OPEN, {"create": False}), (Op.DELETE_TOPIC, {})):
        with pytest.raises(WrongShard) as caught:
            stranger.ask(op, {"topic": topic, **body})
        assert caught.value.detail["shard"] == owner
        assert caught.value.retriable


# ---- configure ----


def test_configure_changes_what_is_given(wire: Wire, topic: str) -> None:
    made = wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 7, "durable": True}})
    assert made["created"] is True
    assert (made["config"]["cap_records"], made["config"]["durability"]) == (7, "fsync")
    changed = wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"ttl_ms": 50_000}})
    assert (changed["created"], changed["config"]["cap_records"], changed["config"]["ttl_ms"]) == (False, 7, 50_000)


@pytest.mark.parametrize("durability", CLASSES)
def test_changes_sent_together_all_count(wire: Wire, topic: str, durability: str) -> None:
    wire.open(topic, durability=durability)
    fields = {"cap_records": 100, "cap_bytes": 1 << 20, "ttl_ms": 10**9, "priority": 5, "discard": "reject"}
    wire.send_raw(
        b"".join(
            packed(Op.CONFIGURE, 500 + n, {"topic": topic, "config": {name: value}})
            for n, (name, value) in enumerate(fields.items())
        )
    )
    for n in range(len(fields)):
        wire.wait(500 + n).checked(Op.CONFIGURE)
    config = wire.state(topic)["config"]
    assert {name: config[name] for name in fields} == fields


def test_durability_may_become_stricter_and_laxer_at_once(wire: Wire, topic: str) -> None:
    wire.open(topic, durability="fsync")
    steps = ["disk", "memory", "fsync", "disk"]
    wire.send_raw(
        b"".join(
            packed(Op.CONFIGURE, 600 + n, {"topic": topic, "config": {"durability": step, "priority": n}})
            for n, step in enumerate(steps)
        )
    )
    for n in range(len(steps)):
        wire.wait(600 + n).checked(Op.CONFIGURE)
    config = wire.state(topic)["config"]
    assert (config["durability"], config["priority"]) == ("disk", 3)


@pytest.mark.parametrize(
    "config",
    [
        {"unknown": 1},
        {"cap_records": -1},
        {"cap_records": "5"},
        {"cap_records": True},
        {"cap_records": 2**63},
        {"durability": "maybe"},
        {"discard": []},
        {"durable": 1},
        {"lease_ms": 1},
        {"dead_letter": "not/allowed"},
        {"priority": 1001},
        5,
        ["cap_records"],
    ],
)
def test_a_config_that_cannot_be_names_the_field_and_makes_nothing(wire: Wire, topic: str, config: object) -> None:
    for op in (Op.OPEN, Op.CONFIGURE):
        with pytest.raises(InvalidRequest) as caught:
            wire.ask(op, {"topic": topic, "config": config})
        if isinstance(config, dict):
            assert next(iter(config)) in caught.value.message
    with pytest.raises(TopicNotFound):
        wire.state(topic)


def test_what_may_not_change_is_a_conflict(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, durability="disk")
    with pytest.raises(Conflict):
        wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"type": "queue"}})
    wire.append(topic_id, [b"x"])
    with pytest.raises(Conflict):
        wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"durability": "ephemeral"}})


def test_a_tightened_cap_acts_at_once(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"] * 100)
    wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 10}})
    state = wire.state(topic)
    assert (state["count"], state["earliest_seq"], state["evict_floor"]) == (10, 91, 91)


# ---- state and list ----


def test_state_tells_what_is_there(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.appended(wire.send_append(topic_id, batch([b"abc"] * 10, b"t"), 10))
    wire.ask(Op.DELETE_RECORDS, {"topic": topic, "before_seq": 4})
    state = wire.state(topic)
    assert state["topic"] == topic
    assert state["topic_id"] == topic_id
    assert (state["head_seq"], state["next_seq"], state["earliest_seq"], state["evict_floor"]) == (10, 11, 4, 1)
    assert (state["count"], state["bytes"]) == (7, 7 * 4)
    assert state["last_write_ts"] > 0


def test_looking_without_touching_is_not_reading(wire: Wire, topic: str) -> None:
    wire.open(topic)
    assert wire.ask(Op.STATE, {"topic": topic, "touch": False})["last_read_ts"] == 0
    assert wire.ask(Op.STATE, {"topic": topic})["last_read_ts"] > 0


def test_topics_are_listed_in_pages(served: Served, topic: str) -> None:
    wire = served.shard(0)
    names = sorted(name for n in range(60) if delivery_shard(name := f"{topic}:{n:03d}", SHARDS) == 0)
    for name in names:
        wire.open(name, durability="memory")
    found, after = [], ""
    while True:
        page = wire.ask(Op.LIST, {"prefix": f"{topic}:", "after": after, "limit": 7})
        found += [row["topic"] for row in page["topics"]]
        assert len(page["topics"]) <= 7
        if page["next"] is None:
            break
        after = page["next"]
    assert found == names
    assert wire.ask(Op.LIST, {"prefix": f"{topic}:none"}) == {"topics": [], "next": None}


@pytest.mark.parametrize("body", [{"limit": 0}, {"limit": 1001}, {"limit": "5"}, {"prefix": 5}, {"after": 5}])
def test_a_listing_that_cannot_be_is_refused(served: Served, body: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        served.shard(0).ask(Op.LIST, body)


# ---- delete ----


@pytest.mark.parametrize("durability", CLASSES)
def test_a_deleted_topic_is_gone_with_its_files(served: Served, topic: str, durability: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic, durability=durability)
    wire.append(topic_id, [b"x"] * 10)
    assert wire.ask(Op.DELETE_TOPIC, {"topic": topic}) == {"topic_id": topic_id, "routers_removed": []}
    for op in (Op.STATE, Op.DELETE_TOPIC):
        with pytest.raises(TopicNotFound):
            wire.ask(op, {"topic": topic})
    with pytest.raises(TopicNotFound):
        wire.append(topic_id, [b"x"])
    with pytest.raises(TopicNotFound):
        wire.fetch(topic_id)
    _wait_files_gone(served, topic_id)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_topic_ends_after_the_writes_before_it_and_leaves_no_files(
    served: Served, topic: str, durability: str
) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic, durability=durability)
    wire.append(topic_id, [b"first"])
    # More than the seqs reserved at its birth: a disk topic syncs this batch, and the end must wait for it.
    body = append_body(topic_id, batch([b"x" * 100] * 3000), 3000)
    wire.send_raw(packed(Op.APPEND, 701, body) + packed(Op.DELETE_TOPIC, 702, {"topic": topic}))
    order = [wire.receive() for _ in range(2)]
    assert [(r.op, r.request_id) for r in order] == [(Op.APPEND | ANSWER, 701), (Op.DELETE_TOPIC | ANSWER, 702)]
    _wait_files_gone(served, topic_id)
    stats = wait_until(
        lambda: (s := served.daemon.stats(f"dlv-{delivery_shard(topic, SHARDS):02d}")).get("tail_bytes") == 0 and s,
        "the tail to be empty",
    )
    assert stats["checkpoint_failures"] == 0


def test_a_topic_is_deleted_once(wire: Wire, topic: str) -> None:
    wire.open(topic, durability="fsync")
    wire.send_raw(b"".join(packed(Op.DELETE_TOPIC, 800 + n, {"topic": topic}) for n in range(3)))
    replies = [wire.wait(800 + n) for n in range(3)]
    assert [reply.op for reply in replies] == [Op.DELETE_TOPIC | ANSWER, Op.ERROR, Op.ERROR]
    assert {reply.map["code"] for reply in replies[1:]} == {"topic_not_found"}


def test_opening_a_topic_on_its_way_out_is_to_be_tried_again(wire: Wire, topic: str) -> None:
    old = wire.open(topic, durability="fsync")
    wire.send_raw(packed(Op.DELETE_TOPIC, 901, {"topic": topic}) + packed(Op.OPEN, 902, {"topic": topic}))
    early = wire.wait(902)
    assert (early.op, early.map["code"], early.map["retriable"]) == (Op.ERROR, "not_ready", True)
    wire.wait(901).checked(Op.DELETE_TOPIC)
    assert wire.open(topic) != old


def test_only_an_empty_topic_is_deleted_if_so_wished(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"])
    with pytest.raises(Conflict):
        wire.ask(Op.DELETE_TOPIC, {"topic": topic, "if_empty": True})
    wire.ask(Op.DELETE_RECORDS, {"topic": topic, "before_seq": 2})
    answer = wire.ask(Op.DELETE_TOPIC, {"topic": topic, "if_empty": True})
    assert answer == {"topic_id": topic_id, "routers_removed": []}


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_topic_made_again_is_another_one_and_an_old_cursor_is_told(
    served: Served, topic: str, durability: str
) -> None:
    wire = served.wire(topic)
    old = wire.open(topic, durability=durability)
    wire.append(old, [b"old"] * 10)
    wire.ask(Op.DELETE_TOPIC, {"topic": topic})
    new = wire.open(topic, durability=durability)
    assert new > old
    wire.append(new, [b"new"] * 3)
    answer = wire.fetch(new, 7, epoch=old)
    assert answer.tombstone is not None
    assert answer.tombstone["reason"] == "recreated"
    assert answer.datas == [b"new"] * 3
    same = wire.fetch(new, 2, epoch=new)
    assert (same.tombstone, same.seqs) == (None, [3])
    subscription = wire.subscribe([{"topic": topic, "from_seq": 7, "epoch": old}])
    push = wire.pushed(subscription)
    assert push.tombstone is not None
    assert (push.tombstone["reason"], push.seqs) == ("recreated", [1, 2, 3])


def test_a_deleted_topic_stays_deleted_after_a_restart_and_the_new_one_stays(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    gone, again = f"{topic}.gone", f"{topic}.again"
    ids = {}
    for name in (gone, again):
        owner = served.wire(name)
        ids[name] = owner.open(name, durability="fsync")
        owner.append(ids[name], [b"old"] * 5)
        owner.ask(Op.DELETE_TOPIC, {"topic": name})
    owner = served.wire(again)
    new = owner.open(again, durability="fsync")
    owner.append(new, [b"new"])
    wire.close()
    served.daemon.restart()
    with pytest.raises(TopicNotFound):
        served.wire(gone).state(gone)
    assert served.wire(again).open(again) == new
    assert [row.data for row in served.wire(again).read_all(new)] == [b"new"]


def _wait_files_gone(served: Served, topic_id: int) -> None:
    root = served.daemon.data.topics
    name = topic_dir_name(topic_id)
    wait_until(lambda: not any(entry.name.startswith(name) for entry in root.iterdir()), f"{root / name} to go")


# ---- consumers ----


def test_a_consumer_remembers_where_it_was(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic, durability="fsync")
    wire.append(topic_id, [b"x"] * 10)
    made = wire.ask(Op.CONSUMER_OPEN, {"topic": topic, "name": "c"})
    assert (made["created"], made["acked_seq"], made["lag"]) == (True, 0, 10)
    assert wire.ask(Op.CONSUMER_ACK, {"topic": topic, "name": "c", "seq": 6})["acked_seq"] == 6
    assert wire.ask(Op.CONSUMER_ACK, {"topic": topic, "name": "c", "seq": 3})["acked_seq"] == 6
    with pytest.raises(Conflict):
        wire.ask(Op.CONSUMER_ACK, {"topic": topic, "name": "c", "seq": 11})
    served.daemon.restart()
    wire = served.wire(topic)
    [row] = wire.ask(Op.CONSUMER_LIST, {"topic": topic})["consumers"]
    assert (row["name"], row["acked_seq"], row["lag"]) == ("c", 6, 4)
    wire.ask(Op.CONSUMER_REMOVE, {"topic": topic, "name": "c"})
    with pytest.raises(ConsumerNotFound):
        wire.ask(Op.CONSUMER_ACK, {"topic": topic, "name": "c", "seq": 7})


def test_a_consumer_request_that_cannot_be_is_refused(wire: Wire, topic: str) -> None:
    wire.open(topic)
    for body in (
        {"name": "c", "dance": True},
        {"name": "../c"},
        {},
        {"name": "c", "start": {"seq": -1}},
        {"name": ["c"]},
    ):
        with pytest.raises(InvalidRequest):
            wire.ask(Op.CONSUMER_OPEN, {"topic": topic, **body})


# ---- limits of the daemon ----


def test_the_number_of_topics_is_bounded(tmp_path: Path) -> None:
    with Daemon(tmp_path, **{**SHARED, "max_topics": 5}) as daemon:
        made = 0
        for shard in range(SHARDS):
            wire = Wire(daemon.run.delivery_socket(shard))
            names = [name for n in range(100) if delivery_shard(name := f"t{n}", SHARDS) == shard]
            for name in names[:6]:
                try:
                    wire.open(name)
                except Throttled as exc:
                    assert exc.detail["limit"] == "max_topics"
                else:
                    made += 1
            wire.close()
        assert made == 5


def test_debug_needs_the_test_clock(served: Served) -> None:
    with pytest.raises(TopicdError):
        served.shard(0).ask(Op.DEBUG, {"advance_ms": 1})
