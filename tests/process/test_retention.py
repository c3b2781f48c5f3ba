"""What caps and TTL take away, and how readers hear of it: in fetches, long polls, subscriptions and the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import Served
from tests.process.wire import Fetched, Wire
from tests.support.daemon import Daemon, drain_topic, wait_until
from tests.support.timewarp import ENVIRON, Warp, segment_files
from topicd.client.core.records import Gap, Record, RecordsMissed
from topicd.errors import RecordTooLarge, TopicFull
from topicd.ipc.protocol.messages import Op

SETTINGS = {"segment_max_records": 7, "snapshot_ms": 100}
HOUR_MS = 3_600_000
__all__ = ["ENVIRON"]  # of the module's daemon


@pytest.fixture
def warp(module_daemon: Daemon) -> Warp:
    return Warp(module_daemon)


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


def gap_of(answer: Fetched) -> tuple[int, int, str] | None:
    found = answer.tombstone
    return None if found is None else (found["gap_from"], found["gap_to"], found["reason"])


def crash(daemon: Daemon) -> None:
    daemon.kill_all()
    daemon.start().wait_ready()


# ---- caps ----


def test_a_cap_keeps_the_newest_and_tells_what_it_took(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_records=3)
    for number in range(6):
        wire.append(topic_id, [b"%d" % number])
    answer = wire.fetch(topic_id)
    assert answer.datas == [b"3", b"4", b"5"]
    assert answer.tombstone == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "cap",
        "missed_estimate": 3,
        "earliest_seq": 4,
        "head_seq": 6,
    }
    state = wire.state(topic)
    assert (state["count"], state["earliest_seq"], state["evict_floor"], state["head_seq"]) == (3, 4, 4, 6)


def test_a_cap_of_bytes_counts_data_tag_node_and_meta(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_bytes=100)
    wire.append(topic_id, [b"x" * 40])
    wire.append(topic_id, [b"y" * 60])
    assert wire.state(topic)["bytes"] == 100
    wire.append(topic_id, [b"z"])
    assert wire.fetch(topic_id).datas == [b"y" * 60, b"z"]


def test_the_first_cap_that_is_hit_counts(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_records=100, cap_bytes=30)
    for _ in range(10):
        wire.append(topic_id, [b"x" * 10])
    assert wire.state(topic)["count"] == 3


def test_eviction_passes_over_sealed_segments_and_frees_whole_ones(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic, cap_records=10)
    for number in range(100):
        wire.append(topic_id, [b"%d" % number])
        if number % 20 == 0:
            warp.checkpoint()
    warp.settle()
    assert wire.fetch(topic_id).datas == [b"%d" % number for number in range(90, 100)]
    # Whole segments below the floor are gone; what is left is the cap and at most one segment over it.
    assert len(segment_files(warp.daemon, topic_id)) <= 3


def test_a_tightened_cap_counts_at_once_and_a_loosened_one_brings_nothing_back(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"] * 20)
    wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 4}})
    assert wire.fetch(topic_id).seqs == [17, 18, 19, 20]
    wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 0}})
    assert wire.fetch(topic_id).seqs == [17, 18, 19, 20]


def test_a_full_topic_that_rejects_takes_no_seq(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_records=3, discard="reject")
    wire.append(topic_id, [b"x"] * 2)
    with pytest.raises(TopicFull) as refused:
        wire.append(topic_id, [b"y"] * 2)
    assert (refused.value.detail["cap"], refused.value.detail["used"]) == (3, 2)
    assert wire.append(topic_id, [b"z"]).first_seq == 3
    wire.ask(Op.DELETE_RECORDS, {"topic": topic, "before_seq": 2})
    assert wire.append(topic_id, [b"z"]).first_seq == 4
    assert wire.fetch(topic_id).tombstone is None


def test_what_expired_makes_room_in_a_topic_that_rejects(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic, cap_records=2, discard="reject", ttl_ms=1000)
    wire.append(topic_id, [b"x"] * 2)
    warp.advance(1001)
    assert wire.append(topic_id, [b"y"] * 2).first_seq == 3


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_a_reject_cap_below_what_is_there_removes_nothing(wire: Wire, topic: str, durability: str) -> None:
    topic_id = wire.open(topic, discard="reject", durability=durability)
    wire.append(topic_id, [b"x"] * 5)
    wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 2}})
    assert wire.state(topic)["count"] == 5
    with pytest.raises(TopicFull):
        wire.append(topic_id, [b"y"])


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 2}])
def test_a_write_that_never_fits_is_the_senders_error(wire: Wire, topic: str, cap: dict[str, Any]) -> None:
    topic_id = wire.open(topic, discard="reject", **cap)
    with pytest.raises(RecordTooLarge):
        wire.append(topic_id, [b"x"] * 3)
    assert wire.state(topic)["head_seq"] == 0


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 2}])
def test_of_a_write_larger_than_the_whole_cap_the_newest_stays(wire: Wire, topic: str, cap: dict[str, Any]) -> None:
    topic_id = wire.open(topic, **cap)
    assert wire.append(topic_id, [b"x", b"y", b"z"]).first_seq == 1
    answer = wire.fetch(topic_id)
    assert (answer.seqs, gap_of(answer)) == ([2, 3], (1, 1, "cap"))


# ---- TTL ----


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "sealed"])
def test_a_record_is_expired_when_it_is_older_than_the_ttl(wire: Wire, topic: str, warp: Warp, stored: bool) -> None:
    topic_id = wire.open(topic, ttl_ms=1000)
    for _ in range(5):
        wire.append(topic_id, [b"x"] * 4)
        warp.advance(100)
    if stored:
        warp.checkpoint()
    warp.advance(600)  # the second batch is exactly as old as allowed
    answer = wire.fetch(topic_id)
    assert (answer.seqs[0], gap_of(answer)) == (5, (1, 4, "ttl"))
    warp.advance(1)
    assert gap_of(wire.fetch(topic_id)) == (1, 8, "ttl")


def test_what_expired_does_not_come_back_with_a_longer_ttl(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic, ttl_ms=1000)
    wire.append(topic_id, [b"x"] * 3)
    warp.advance(1001)
    wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"ttl_ms": 0}})
    assert (wire.fetch(topic_id).count, wire.state(topic)["count"]) == (0, 0)


def test_a_topic_that_nobody_reads_gives_its_disk_back(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic, ttl_ms=1000)
    wire.append(topic_id, [b"x"] * 50)
    warp.checkpoint()
    assert len(segment_files(warp.daemon, topic_id)) == 8
    warp.advance(1001)
    # The last segment is not sealed yet: it stays until it is.
    wait_until(lambda: len(segment_files(warp.daemon, topic_id)) <= 1, "sealed segments to go")


def test_what_was_deleted_before_it_expired_is_no_loss(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic, ttl_ms=1000)
    wire.append(topic_id, [b"x"] * 3)
    client = warp.daemon.client()
    client.publish_many(topic, [b"y"] * 3, tag="gone")
    warp.advance(500)
    wire.append(topic_id, [b"z"])
    client.delete(topic, match="gone")
    warp.advance(501)
    answer = wire.fetch(topic_id)
    assert (answer.seqs, gap_of(answer)) == ([7], (1, 3, "ttl"))
    assert wire.fetch(topic_id, 3).tombstone is None


# ---- tombstones ----


def lose_some(wire: Wire, topic: str, warp: Warp) -> int:
    """Seqs 1 to 10 by TTL, 11 to 17 by cap; 18 to 20 live."""
    topic_id = wire.open(topic, ttl_ms=HOUR_MS)  # a restart goes back to the real clock
    wire.append(topic_id, [b"x"] * 10)
    warp.advance(HOUR_MS + 1)
    wire.append(topic_id, [b"y"] * 10)
    wire.ask(Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 3}})
    return topic_id


@pytest.mark.parametrize(
    ("from_seq", "expected"),
    [(0, (1, 17, "mixed")), (9, (10, 17, "mixed")), (10, (11, 17, "cap")), (16, (17, 17, "cap")), (17, None)],
)
def test_the_same_gap_in_fetch_and_subscription_by_the_rule_of_the_floors(
    served: Served, wire: Wire, topic: str, warp: Warp, from_seq: int, expected: tuple[int, int, str] | None
) -> None:
    topic_id = lose_some(wire, topic, warp)
    fetched = wire.fetch(topic_id, from_seq)
    assert (fetched.seqs, gap_of(fetched)) == ([18, 19, 20], expected)
    # With something to tell, a long poll does not wait.
    assert wire.fetch(topic_id, from_seq, wait_ms=30_000).tombstone == fetched.tombstone
    subscriber = served.wire(topic)
    pushed = subscriber.pushed(subscriber.subscribe([{"topic": topic, "from_seq": from_seq}]))
    assert (pushed.seqs, pushed.tombstone) == (fetched.seqs, fetched.tombstone)


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_reasons_and_floors_outlive_a_restart(wire: Wire, topic: str, warp: Warp, how: str) -> None:
    topic_id = lose_some(wire, topic, warp)
    before = [wire.fetch(topic_id, from_seq).tombstone for from_seq in (0, 10, 17)]
    crash(warp.daemon) if how == "crash" else warp.daemon.restart()
    with Wire(wire.path) as again:
        assert [again.fetch(topic_id, from_seq).tombstone for from_seq in (0, 10, 17)] == before


def test_one_who_waits_is_told_when_the_records_he_waits_for_are_evicted(
    served: Served, wire: Wire, topic: str
) -> None:
    """Several writes in one turn of the daemon: some are gone before the waiting reader is served."""
    topic_id = wire.open(topic, cap_records=2)
    poll, subscriber = served.wire(topic), served.wire(topic)
    waiting = poll.send_fetch(topic_id, 0, wait_ms=30_000)
    subscription = subscriber.subscribe([{"topic": topic, "from_seq": 0}])
    poll.ask(Op.PING)
    requests = [wire.send_append(topic_id, *one) for one in [(frames(b"%d" % n), 1) for n in range(20)]]
    for request in requests:
        wire.appended(request)
    first = poll.fetched(waiting)
    seen, at = [], 0
    while at < 20:
        answer = subscriber.pushed(subscription)
        seen.append(answer)
        at = answer.next_from_seq
    for answers in ([first], seen):
        covered = 0
        for answer in answers:
            if answer.tombstone is not None:
                assert answer.tombstone["gap_from"] == covered + 1
                covered = answer.tombstone["gap_to"]
            for seq in answer.seqs:
                assert seq == covered + 1, "a gap without a tombstone"
                covered = seq
    assert at == 20


def frames(data: bytes) -> bytearray:
    from tests.process.wire import batch

    return batch([data])


def test_the_client_yields_a_gap_where_records_are_missing(wire: Wire, topic: str, warp: Warp) -> None:
    lose_some(wire, topic, warp)
    client = warp.daemon.client()
    assert client.fetch(topic).gap == Gap(topic, client.fetch(topic).tombstone)  # type: ignore[arg-type]
    with client.watch(topic, start=5, gaps=True) as events:
        first = next(events)
        assert isinstance(first, Gap) and (first.first_seq, first.last_seq, first.reason) == (6, 17, "mixed")
        assert [event.seq for event in (next(events), next(events)) if isinstance(event, Record)] == [18, 19]
    with client.watch(topic, start=5, on_gap="raise") as events, pytest.raises(RecordsMissed):
        next(events)


# ---- topics made anew ----


def test_a_cursor_of_an_older_topic_is_told_so_and_reads_from_the_start(served: Served, wire: Wire, topic: str) -> None:
    old = wire.open(topic)
    wire.append(old, [b"old"] * 5)
    wire.ask(Op.DELETE_TOPIC, {"topic": topic})
    new = wire.open(topic, cap_records=2)
    wire.append(new, [b"new"] * 2)
    answer = wire.fetch(new, 5, epoch=old)
    assert (answer.seqs, gap_of(answer)) == ([1, 2], (1, 0, "recreated"))
    wire.append(new, [b"new"])
    assert gap_of(wire.fetch(new, 5, epoch=old)) == (1, 1, "recreated")
    assert wire.fetch(new, 1, epoch=new).tombstone is None
    subscriber = served.wire(topic)
    pushed = subscriber.pushed(subscriber.subscribe([{"topic": topic, "from_seq": 5, "epoch": old}]))
    assert (pushed.seqs, gap_of(pushed)) == ([2, 3], (1, 1, "recreated"))


# ---- ephemeral topics ----


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_an_ephemeral_topic_loses_its_records_but_never_its_place(wire: Wire, topic: str, warp: Warp, how: str) -> None:
    topic_id = wire.open(topic, durability="ephemeral")
    wire.append(topic_id, [b"x"] * 10)
    crash(warp.daemon) if how == "crash" else warp.daemon.restart()
    with Wire(wire.path) as again:
        head = again.state(topic)["head_seq"]
        assert head == 10 if how == "stop" else head >= 10
        assert again.append(topic_id, [b"y"]).first_seq == head + 1
        # Whoever stood at 10 gets what is new, and is told what may have been between.
        answer = again.fetch(topic_id, 10)
        assert answer.datas == [b"y"]
        assert gap_of(again.fetch(topic_id, 3)) == (4, head, "cap")


@pytest.mark.parametrize("config", [{}, {"cap_records": 50}, {"retain": "acked"}], ids=["deleted", "capped", "acked"])
def test_an_ephemeral_topic_keeps_no_memory_of_what_is_gone(
    served: Served, wire: Wire, topic: str, warp: Warp, config: dict[str, Any]
) -> None:
    topic_id = wire.open(topic, durability="ephemeral", **config)
    if "retain" in config:
        wire.ask(Op.CONSUMER_OPEN, {"topic": topic, "name": "c"})
    big = [b"x" * 1000] * 500

    def write_and_remove() -> None:
        head = wire.append(topic_id, big[: 50 if config.get("cap_records") else 500]).head_seq
        if not config:
            wire.ask(Op.DELETE_RECORDS, {"topic": topic, "before_seq": head + 1})
        elif "retain" in config:
            wire.ask(Op.CONSUMER_ACK, {"topic": topic, "name": "c", "seq": head})

    def resident() -> int:
        name = wire.path.name.removesuffix(".sock")
        pid = warp.daemon.pids()[name]
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096

    for _ in range(20):
        write_and_remove()
    before = resident()
    for _ in range(200):
        write_and_remove()
    # 100 MB went through (10 MB with the small cap).
    assert resident() - before < 8 << 20


@pytest.fixture(autouse=True)
def nothing_was_damaged(module_daemon: Daemon) -> Iterator[None]:
    yield
    assert Warp(module_daemon).damage() == 0, module_daemon.log_tail()


def test_reading_all_of_it_gives_what_the_state_says(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic, cap_bytes=500)
    for number in range(60):
        wire.append(topic_id, [b"x" * (number % 30)])
        if number % 13 == 0:
            warp.checkpoint()
    state = wire.state(topic)
    found = drain_topic(warp.daemon.client(), topic)
    assert (len(found), sum(len(record.data) for record in found)) == (state["count"], state["bytes"])
    assert found[0].seq == state["earliest_seq"]
