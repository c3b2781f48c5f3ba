"""Deletes: permanent, immediate, silent, exact in their answers, wherever the records lie and whatever comes later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.conftest import Served
from tests.process.wire import Wire, batch
from tests.support.daemon import Daemon, wait_until
from tests.support.timewarp import ENVIRON, Warp, segment_files
from topicd.errors import Conflict, InvalidRequest, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.placement import wal_shard

SETTINGS = {"segment_max_records": 7, "snapshot_ms": 100, "checkpoint_ms": 86_400_000}
__all__ = ["ENVIRON"]  # of the module's daemon
TAGS = [b"a", b"ab", b"a:1", b"a:2", b"b", None]


@pytest.fixture
def warp(module_daemon: Daemon) -> Warp:
    return Warp(module_daemon)


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


@pytest.fixture(autouse=True)
def nothing_was_damaged(module_daemon: Daemon) -> Iterator[None]:
    yield
    assert Warp(module_daemon).damage() == 0, module_daemon.log_tail()


def fill(wire: Wire, topic_id: int, count: int, size: int = 10) -> None:
    """Records of size bytes, tagged round robin, five a write."""
    for start in range(0, count, 5):
        numbers = range(start, min(start + 5, count))
        datas = [b"%d" % n + b"." * (size - len(b"%d" % n)) for n in numbers]
        frames = batch(datas, [TAGS[n % len(TAGS)] for n in numbers])
        wire.appended(wire.send_append(topic_id, frames, len(datas)))


def delete(wire: Wire, topic: str, **chosen: Any) -> dict[str, Any]:
    return wire.ask(Op.DELETE_RECORDS, {"topic": topic, **chosen})


def content(n: int, size: int = 10) -> int:
    return size + len(TAGS[n % len(TAGS)] or b"")


CASES: list[tuple[dict[str, Any], Any]] = [
    ({"before_seq": 30}, lambda n: n + 1 < 30),
    ({"before_seq": 1}, lambda n: False),
    ({"before_seq": 10**9}, lambda n: True),
    ({"match": "a"}, lambda n: TAGS[n % 6] == b"a"),
    ({"match": ["tag", "Eq", "a:1"]}, lambda n: TAGS[n % 6] == b"a:1"),
    ({"match": ["tag", "Glob", "a:*"]}, lambda n: n % 6 in (2, 3)),
    ({"match": ["tag", "Glob", "a*"]}, lambda n: n % 6 < 4),
    ({"match": ["tag", "Glob", "*"]}, lambda n: n % 6 != 5),
    ({"match": ["tag", "Eq", "nothing"]}, lambda n: False),
    ({"match": "b", "before_seq": 40}, lambda n: n % 6 == 4 and n + 1 < 40),
]


@pytest.mark.parametrize("place", ["memory", "segments", "both"])
@pytest.mark.parametrize(("chosen", "goes"), CASES, ids=[str(chosen) for chosen, _ in CASES])
def test_a_delete_takes_exactly_what_it_names_and_counts_it(
    wire: Wire, topic: str, warp: Warp, place: str, chosen: dict[str, Any], goes: Any
) -> None:
    topic_id = wire.open(topic)
    fill(wire, topic_id, 30 if place == "both" else 60)
    if place != "memory":
        warp.checkpoint()
    if place == "both":
        rest = batch([b"%d" % n + b"." * 8 for n in range(30, 60)], [TAGS[n % 6] for n in range(30, 60)])
        wire.appended(wire.send_append(topic_id, rest, 30))
    gone, kept = [n for n in range(60) if goes(n)], [n for n in range(60) if not goes(n)]
    answer = delete(wire, topic, **chosen)
    assert answer == {
        "deleted": len(gone),
        "deleted_bytes": sum(content(n) for n in gone),
        "examined": len(gone) if "match" in chosen and "before_seq" not in chosen else answer["examined"],
        "earliest_seq": kept[0] + 1 if kept else 61,
        "head_seq": 60,
        "count": len(kept),
        "bytes": sum(content(n) for n in kept),
    }
    found = wire.fetch(topic_id)
    assert (found.seqs, found.tombstone, found.caught_up) == ([n + 1 for n in kept], None, True)
    again = delete(wire, topic, **chosen)
    assert (again["deleted"], again["deleted_bytes"], again["count"]) == (0, 0, len(kept))


@pytest.mark.parametrize("how", ["stop", "crash", "shard"])
@pytest.mark.parametrize("place", ["memory", "segments"])
def test_what_was_deleted_stays_deleted(wire: Wire, topic: str, warp: Warp, how: str, place: str) -> None:
    topic_id = wire.open(topic)
    fill(wire, topic_id, 60)
    if place == "segments":
        warp.settle()
    delete(wire, topic, match=["tag", "Glob", "a:*"])
    delete(wire, topic, before_seq=5)
    fill(wire, topic_id, 10)  # the same tags again: a delete is bounded by the head at its time
    before = wire.fetch(topic_id)
    state = wire.state(topic)
    restart(warp.daemon, wire, how)
    with Wire(wire.path) as again:
        after = again.fetch(topic_id)
        assert (after.rows, after.tombstone) == (before.rows, None)
        same = ("head_seq", "earliest_seq", "evict_floor", "count", "bytes", "last_write_ts")
        assert {name: again.state(topic)[name] for name in same} == {name: state[name] for name in same}


def restart(daemon: Daemon, wire: Wire, how: str) -> None:
    if how == "stop":
        daemon.restart()
    elif how == "crash":
        daemon.kill_all()
        daemon.start().wait_ready()
    else:
        name = wire.path.name.removesuffix(".sock")
        daemon.wait_replaced(name, daemon.kill(name))


def test_segments_without_a_living_record_are_dropped(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"] * 70)
    warp.checkpoint()
    assert len(segment_files(warp.daemon, topic_id)) == 10
    delete(wire, topic, before_seq=50)
    warp.settle()
    assert len(segment_files(warp.daemon, topic_id)) == 3
    assert wire.fetch(topic_id).seqs == list(range(50, 71))


def test_dead_segments_in_the_middle_are_dropped_and_nobody_misses_them(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic)
    tags = [b"gone" if 7 <= n < 28 else b"kept" for n in range(42)]
    wire.appended(wire.send_append(topic_id, batch([b"x"] * 42, tags), 42))
    warp.checkpoint()
    assert delete(wire, topic, match="gone")["deleted"] == 21
    warp.settle()
    assert [int(path.stem.removeprefix("seg-")) for path in segment_files(warp.daemon, topic_id)] == [1, 29, 36]
    kept = [*range(1, 8), *range(29, 43)]
    assert wire.fetch(topic_id).seqs == kept
    assert wire.fetch(topic_id, 10, limit=3).seqs == [29, 30, 31]
    restart(warp.daemon, wire, "crash")
    with Wire(wire.path) as again:
        assert again.fetch(topic_id).seqs == kept


def test_half_dead_segments_are_rewritten_and_reads_never_notice(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic)
    tags = [b"gone" if n % 3 else b"kept" for n in range(70)]
    wire.appended(wire.send_append(topic_id, batch([b"%03d" % n * 100 for n in range(70)], tags), 70))
    warp.checkpoint()
    full = sum(path.stat().st_size for path in segment_files(warp.daemon, topic_id))
    delete(wire, topic, match="gone")
    before = wire.fetch(topic_id).rows
    warp.settle()
    wait_until(lambda: smaller(warp, topic_id, full // 2), "segments to be rewritten")
    assert wire.fetch(topic_id).rows == before
    # What a rewritten segment still holds can be deleted like anything else.
    assert delete(wire, topic, match="kept", before_seq=20)["deleted"] == 7
    kept = [row.seq for row in before if row.seq >= 20]
    for how in ("crash", "stop"):
        restart(warp.daemon, wire, how)
        with Wire(wire.path) as again:
            assert again.fetch(topic_id).seqs == kept


def smaller(warp: Warp, topic_id: int, size: int) -> bool:
    warp.settle()
    return sum(path.stat().st_size for path in segment_files(warp.daemon, topic_id)) < size


def test_a_delete_does_not_look_at_records_it_does_not_name(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic)
    tags = [b"rare" if n % 500 == 0 else b"common%d" % (n % 50) for n in range(5000)]
    wire.appended(wire.send_append(topic_id, batch([b"x"] * 5000, tags), 5000))
    warp.checkpoint()
    assert delete(wire, topic, match="rare")["examined"] == 10
    assert delete(wire, topic, before_seq=4000)["examined"] == 0


def test_a_subscriber_does_not_get_what_was_deleted_before_it_came_to_it(
    served: Served, wire: Wire, topic: str
) -> None:
    topic_id = wire.open(topic)
    fill(wire, topic_id, 12, size=100)
    subscriber = served.wire(topic)
    subscription = subscriber.subscribe([{"topic": topic, "from_seq": 0}], credit=1)
    first = subscriber.pushed(subscription)
    fill(wire, topic_id, 12, size=100)
    delete(wire, topic, match=["tag", "Glob", "a*"])
    subscriber.credit(subscription, 1 << 20)
    rest = subscriber.pushed(subscription)
    assert (first.count, rest.tombstone) == (12, None)
    assert rest.seqs == [seq for seq in range(13, 25) if (seq - 13) % 6 >= 4]


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"before_seq": -1},
        {"before_seq": "5"},
        {"before_seq": True},
        {"match": ""},
        {"match": 5},
        {"match": ["tag", "Glob", "a"]},
        {"match": ["tag", "Glob", "*a*"]},
        {"match": ["node", "Eq", "a"]},
        {"match": "x" * 257},
        {"before_seq": 2, "match": ["tag", "Like", "a"]},
    ],
)
def test_a_delete_that_cannot_be_meant_is_refused(wire: Wire, topic: str, chosen: dict[str, Any]) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"])
    with pytest.raises(InvalidRequest):
        delete(wire, topic, **chosen)
    assert wire.state(topic)["count"] == 1


def test_a_delete_in_a_topic_that_is_not_there_makes_none(wire: Wire, topic: str) -> None:
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            delete(wire, topic, before_seq=5)


# ---- whole topics ----


def test_a_deleted_topic_takes_its_files_along(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"] * 20)
    warp.checkpoint()
    directory = warp.daemon.data.topic(topic_id)
    assert directory.exists()
    wire.ask(Op.DELETE_TOPIC, {"topic": topic})
    wait_until(lambda: not list(directory.parent.glob(f"{directory.name}*")), "the directory to go")
    with pytest.raises(TopicNotFound):
        wire.state(topic)
    with pytest.raises(TopicNotFound):
        wire.fetch(topic_id)
    assert wire.open(topic) > topic_id
    assert wire.state(topic)["next_seq"] == 1


def test_only_an_empty_topic_goes_if_empty_is_asked_for(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic, ttl_ms=1000)
    wire.append(topic_id, [b"x"])
    with pytest.raises(Conflict):
        wire.ask(Op.DELETE_TOPIC, {"topic": topic, "if_empty": True})
    warp.advance(1001)  # empty by now, though nobody looked
    wire.ask(Op.DELETE_TOPIC, {"topic": topic, "if_empty": True})


def test_deleted_topics_do_not_return_when_there_are_fewer_wal_shards(served: Served, warp: Warp, topic: str) -> None:
    """A topic's frames lie in several WAL directories when the number of shards changed; those of its end go first."""
    daemon = warp.daemon
    client = daemon.client()
    names = [f"{topic}.{number}" for number in range(30)]
    ids = {}
    for name in names:
        client.publish(name, b"x")
        client.configure(name, priority=1)
        ids[name] = client.state(name).topic_id
    ends_elsewhere = [name for name in names if wal_shard(ids[name], 2) == 0 and wal_shard(ids[name], 3) == 2]
    changed, deleted = ends_elsewhere[::2], ends_elsewhere[1::2]
    assert changed and deleted
    try:
        daemon.restart(wal_shards=3)
        for name in deleted:
            client.delete_topic(name)
        for name in changed:
            client.configure(name, priority=2)
            client.delete(name, match="x")
        daemon.restart(wal_shards=1)
        directory = daemon.data.wal_shard(2)
        wait_until(lambda: forgotten(client, warp, topic, directory), "the third WAL directory to be dropped")
        for _ in range(2):
            daemon.kill_all()
            daemon.start().wait_ready()
            there = {info.topic for info in client.topics(topic)}
            assert not there & set(deleted)
            assert {client.state(name).config.priority for name in changed} == {2}
    finally:
        daemon.restart(wal_shards=2)


def forgotten(client: Any, warp: Warp, topic: str, directory: Any) -> bool:
    client.publish(topic, b"busy")
    warp.settle()
    return not directory.exists()
