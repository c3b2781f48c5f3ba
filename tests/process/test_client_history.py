"""History by descriptors and by reads alone: the same records for whatever stretch is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.client.blocking.client import Client
from topicd.client.core.records import Record
from topicd.model import GapReason

SETTINGS = LIVELY
STORED = 3_200


@pytest.fixture(scope="module")
def client(module_daemon: Daemon) -> Client:
    return module_daemon.client()


@pytest.fixture(params=["descriptors", "reads"])
def source(request: pytest.FixtureRequest, module_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Client:
    made = module_daemon.client()
    if request.param == "reads":
        monkeypatch.setattr(made.caller.shard_map, "history_socket", lambda topic: None)
    return made


@pytest.fixture(scope="module")
def living(module_daemon: Daemon, client: Client) -> list[Record]:
    """A topic of sealed segments and a tail, with holes at the start, in the middle and across a boundary."""
    records = [Record(b"%d" % n, tag=("a", "ab", "b")[n % 3]) for n in range(1, STORED + 1)]
    for at in range(0, STORED, 100):
        client.publish_many("stretch", records[at : at + 100])
    folder = module_daemon.data.topic(client.state("stretch").topic_id)
    wait_until(lambda: len(list(folder.glob("seg-*.tags"))) >= 5, "sealed segments")
    client.delete("stretch", before_seq=21)
    client.publish_many("stretch", [Record(b"gone", tag="gone")] * 700)
    client.publish_many("stretch", [Record(b"end", tag="b")] * 30)
    client.delete("stretch", match="gone")
    found: list[Record] = []
    while not found or found[-1].seq < STORED + 730:
        found += client.fetch("stretch", found[-1].seq if found else 0, limit=10_000).records
    return found


def fits(record: Record, match: str | None) -> bool:
    if match is None:
        return True
    tag = record.tag or ""
    return tag.startswith(match[:-1]) if match.endswith("*") else tag == match


def cases() -> Iterator[tuple[int, int, str | None]]:
    edges = [0, 1, 20, 21, 256, 257, 499, 500, 501, 1000, STORED - 1, STORED, STORED + 1, STORED + 700, STORED + 730]
    draw = random.Random(7)
    for _ in range(150):
        after, up_to = sorted(draw.choices(edges, k=2))
        yield after, up_to, draw.choice([None, None, "a", "a*", "b", "none"])


def test_a_stretch_is_what_lies_between_its_ends(source: Client, living: list[Record]) -> None:
    for after, up_to, match in cases():
        got = [r for batch in source.history("stretch", after, to_seq=up_to, match=match) for r in batch]
        assert got == [r for r in living if after < r.seq <= up_to and fits(r, match)], (after, up_to, match)


def test_what_is_stored_later_is_beyond_the_end(source: Client, topic: str) -> None:
    source.publish_many(topic, [b"x"] * 1_000)
    seqs = []
    for batch in source.history(topic, to_seq=1_000):
        seqs += [record.seq for record in batch]
        source.publish_many(topic, [b"later"] * 600)
    assert seqs == list(range(1, 1_001))


def test_a_cursor_of_a_topic_that_was_there_before_is_told(source: Client, topic: str) -> None:
    source.publish(topic, b"old")
    old = source.state(topic).topic_id
    source.delete_topic(topic)
    source.publish(topic, b"new")
    first, *_ = source.history(topic, epoch=old)
    assert first.tombstone is not None
    assert first.tombstone.reason == GapReason.RECREATED
