"""What a reader chooses: tags, origins, metadata only, where to start; in reads and in watches alike, over segments,
memory and deleted records; many topics and patterns in one watch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.daemon import Daemon
from tests.support.timewarp import ENVIRON, Warp
from topicd.client.blocking.client import Client
from topicd.client.core.records import Record
from topicd.errors import TopicNotFound

SETTINGS = {"segment_max_records": 7, "snapshot_ms": 100, "checkpoint_ms": 86_400_000}
__all__ = ["ENVIRON"]  # of the module's daemon
TAGS = ("a", "ab", "a:1", "a:2", "b", None)
NODES = ("n1", "n2", None)


@pytest.fixture
def warp(module_daemon: Daemon) -> Warp:
    return Warp(module_daemon)


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


def fill(client: Client, topic: str, warp: Warp) -> list[dict[str, Any]]:
    """Sixty records over segments and memory, every seventh deleted again, some by a rewrite."""
    rows = []
    for n in range(60):
        tag, node = ("gone" if n % 7 == 0 else TAGS[n % 6]), NODES[n % 3]
        seq = client.publish(topic, b"%d" % n, tag=tag, node=node, meta={"n": n})
        rows.append({"seq": seq, "tag": tag, "node": node, "data": b"%d" % n})
        if n == 40:
            warp.settle()
            client.delete(topic, match="gone")
            warp.settle()
    client.delete(topic, match="gone")
    return [row for row in rows if row["tag"] != "gone"]


def pages(client: Client, topic: str, **chosen: Any) -> list[Record]:
    found: list[Record] = []
    at, limit = 0, chosen.pop("limit", 4)
    while True:
        answer = client.fetch(topic, at, limit=limit, **chosen)
        found += answer.records
        assert answer.caught_up or answer.next_from_seq > at
        at = answer.next_from_seq
        if answer.caught_up:
            assert at == answer.head_seq and answer.lag == 0
            return found


FILTERS: list[tuple[dict[str, Any], Any]] = [
    ({"match": "a"}, lambda row: row["tag"] == "a"),
    ({"match": "a*"}, lambda row: (row["tag"] or "").startswith("a")),
    ({"match": "a:*"}, lambda row: (row["tag"] or "").startswith("a:")),
    ({"match": ["tag", "Eq", "b"]}, lambda row: row["tag"] == "b"),
    ({"match": "nothing"}, lambda row: False),
    ({"exclude_nodes": "n1"}, lambda row: row["node"] != "n1"),
    ({"exclude_nodes": ["n1", "n2"]}, lambda row: row["node"] is None),
    ({"exclude_nodes": ["nobody"]}, lambda row: True),
    ({"match": "a*", "exclude_nodes": ["n2"]}, lambda row: (row["tag"] or "").startswith("a") and row["node"] != "n2"),
]


@pytest.mark.parametrize(("chosen", "passes"), FILTERS, ids=[str(chosen) for chosen, _ in FILTERS])
def test_reads_and_watches_choose_alike(
    client: Client, topic: str, warp: Warp, chosen: dict[str, Any], passes: Any
) -> None:
    rows = fill(client, topic, warp)
    expected = [row["seq"] for row in rows if passes(row)]
    for limit in (1, 4, 1000):
        assert [record.seq for record in pages(client, topic, limit=limit, **chosen)] == expected
    with client.watch(topic, "earliest", **chosen) as events:
        client.publish(topic, b"end", tag="a", node="n9")
        client.publish(topic, b"end", tag="b", node="n9")
        client.publish(topic, b"end", tag="a:9", node="n9")
        ends = [61, 62, 63]
        wanted = expected + [
            seq for seq, tag in zip(ends, ("a", "b", "a:9"), strict=True) if passes({"tag": tag, "node": "n9"})
        ]
        assert [next(events).seq for _ in wanted] == wanted  # type: ignore[union-attr]


def test_own_records_are_passed_over_and_the_reader_is_caught_up(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 50, node="me")
    answer = client.fetch(topic, exclude_nodes="me")
    assert (len(answer), answer.caught_up, answer.next_from_seq, answer.lag) == (0, True, 50, 0)
    client.configure(topic, dedupe_node=False)
    assert len(client.fetch(topic, exclude_nodes="me")) == 50


def test_metadata_comes_without_data_and_meta(client: Client, topic: str, warp: Warp) -> None:
    rows = fill(client, topic, warp)
    found = client.fetch(topic, limit=1000, metadata_only=True).records
    assert [(r.seq, r.tag, r.node) for r in found] == [(row["seq"], row["tag"], row["node"]) for row in rows]
    assert {(r.data, bool(r.meta)) for r in found} == {(b"", False)}


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "sealed"])
def test_reading_from_a_time_begins_with_its_first_record(client: Client, topic: str, warp: Warp, stored: bool) -> None:
    warp.set(warp.now_ms() + 10_000)
    times = []
    for _ in range(5):
        warp.advance(1000)
        times.append(warp.now_ms())
        client.publish_many(topic, [b"x"] * 5)
    if stored:
        warp.settle()
    for number, at in enumerate(times):
        for moment, first in ((at, 5 * number + 1), (at + 1, 5 * number + 6)):
            when = datetime.fromtimestamp(moment / 1000, UTC)
            assert [r.seq for r in client.fetch(topic, from_time=when).records] == list(range(first, 26))
    client.delete(topic, before_seq=9)
    warp.settle()
    begin = datetime.fromtimestamp(0, UTC)
    answer = client.fetch(topic, from_time=begin)
    assert (answer.records[0].seq, answer.tombstone) == (9, None)
    with client.watch(topic, datetime.fromtimestamp(times[3] / 1000, UTC)) as events:
        assert next(events).seq == 16  # type: ignore[union-attr]


def test_a_watch_of_the_tail_gets_only_what_is_new(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 5)
    with client.watch(topic, "latest") as events:
        client.publish(topic, b"new")
        assert next(events).seq == 6  # type: ignore[union-attr]


def test_one_watch_over_many_topics(client: Client, topic: str) -> None:
    names = [f"{topic}.{number}" for number in range(20)]
    for name in names:
        client.publish_many(name, [b"%s %d" % (name.encode(), n) for n in range(5)])
    with client.watch(names, "earliest") as events:
        for name in names:
            client.publish(name, b"last")
        found: dict[str, list[int]] = {name: [] for name in names}
        for _ in range(6 * len(names)):
            record = next(events)
            found[record.topic].append(record.seq)  # type: ignore[union-attr]
    assert found == {name: [1, 2, 3, 4, 5, 6] for name in names}


def test_a_pattern_picks_up_topics_that_come_later(client: Client, topic: str) -> None:
    client.publish(f"{topic}.a", b"1")
    client.publish(f"{topic}x", b"not this one: the pattern ends with a dot before the star")
    with client.watch(f"{topic}.*", "earliest") as events:
        seen = [next(events)]
        for name in ("b", "c", "d", "e"):
            client.publish(f"{topic}.{name}", b"1")
            client.publish(f"{topic}.{name}", b"2")
        seen += [next(events) for _ in range(8)]
    per_topic: dict[str, list[int]] = {}
    for record in seen:
        per_topic.setdefault(record.topic, []).append(record.seq)  # type: ignore[union-attr]
    assert per_topic == {f"{topic}.a": [1]} | {f"{topic}.{name}": [1, 2] for name in "bcde"}


def test_a_pattern_with_a_filter_applies_it_to_topics_that_come_later(client: Client, topic: str) -> None:
    with client.watch(f"{topic}.*", match="yes") as events:
        for number in range(6):
            client.publish(f"{topic}.{number}", b"x", tag="no")
            client.publish(f"{topic}.{number}", b"x", tag="yes")
        assert {(next(events).topic, 2) for _ in range(6)} == {(f"{topic}.{n}", 2) for n in range(6)}


def test_a_watched_topic_that_is_deleted_is_an_error_for_its_watcher(client: Client, topic: str) -> None:
    client.publish(topic, b"x")
    with client.watch(topic, "earliest") as events:
        next(events)
        client.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            next(events)


def test_a_long_poll_with_a_filter_ends_with_the_first_record_that_passes(client: Client, topic: str) -> None:
    client.publish(topic, b"x")
    answers: list[Any] = []
    waiter = threading.Thread(target=lambda: answers.append(client.fetch(topic, 1, wait=60.0, match="yes")))
    waiter.start()
    for number in range(30):
        client.publish(topic, b"%d" % number, tag="no")
    client.publish(topic, b"here", tag="yes")
    waiter.join(60.0)
    assert [record.data for record in answers[0].records] == [b"here"]


def test_a_filter_that_takes_nothing_gets_through_much(client: Client, topic: str) -> None:
    """More than one answer may examine: each tells how far it came, and none stands still."""
    client.publish_many(topic, [b"x" * 1000] * 20_000, tag="common")
    at, answers = 0, 0
    while True:
        answer = client.fetch(topic, at, match="rare", performance=True)
        answers += 1
        assert len(answer) == 0 and answer.next_from_seq > at
        at = answer.next_from_seq
        if answer.caught_up:
            break
    assert at == 20_000 and answers >= 2
