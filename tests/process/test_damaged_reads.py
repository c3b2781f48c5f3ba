"""A record that cannot be read does not take its readable neighbours with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.cli_kit import run_ctl
from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.errors import StorageCorrupt
from topicd.model import TagMatch
from topicd.shards.storage.segment.index import ENTRY_BYTES


@pytest.mark.parametrize("match", [None, TagMatch(b"t")], ids=["plain", "by tag"])
def test_one_read_gives_what_lies_before_the_damage_and_the_next_one_names_it(
    tmp_path: Path, match: TagMatch | None
) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, **LIVELY) as daemon:
        client = daemon.client()
        client.publish_many("orders", [b"record %d" % n for n in range(1200)], tag="t")
        folder = daemon.data.topic(client.state("orders").topic_id)
        wait_until(lambda: list(folder.glob("*.tags")), "a sealed segment")
        data = min(folder.glob("*.tags")).with_suffix(".data")
        daemon.stop()
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 0xFF
        data.write_bytes(content)
        daemon.start().wait_ready()
        before = [record.seq for record in client.fetch("orders", limit=1000, match=match)]
        assert before == list(range(1, len(before) + 1)) and 100 < len(before) < 500
        with pytest.raises(StorageCorrupt) as caught:
            client.fetch("orders", len(before), limit=1000, match=match)
        assert caught.value.detail["first_seq"] == len(before) + 1
        behind = client.fetch("orders", caught.value.detail["last_seq"], limit=1000, match=match)
        assert behind.records[0].seq == caught.value.detail["last_seq"] + 1


def test_an_index_that_points_to_other_records_misleads_nobody(tmp_path: Path) -> None:
    # Recovery maps segments to count what they hold; nothing of that shall be kept.
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, map_cache_bytes=0, **LIVELY) as daemon:
        client = daemon.client()
        client.publish_many("orders", [b"record %04d" % n for n in range(1, 1201)])
        folder = daemon.data.topic(client.state("orders").topic_id)
        wait_until(lambda: list(folder.glob("*.tags")), "a sealed segment")
        index = min(folder.glob("*.tags")).with_suffix(".idx")
        daemon.stop()
        entries = index.read_bytes()
        index.write_bytes(entries[ENTRY_BYTES:] + entries[:ENTRY_BYTES])
        daemon.start().wait_ready()
        for seq in (1, 200, 499, 500):
            for limit in (1, 3):
                found = [(record.seq, record.data) for record in client.fetch("orders", seq - 1, limit=limit)]
                assert found == [(n, b"record %04d" % n) for n in range(seq, seq + limit)]


def test_damage_that_readers_meet_is_logged_once_counted_and_shown(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, map_cache_bytes=0, **LIVELY) as daemon:
        client = daemon.client()
        client.publish_many("orders", [b"record %04d" % n for n in range(1, 1201)])
        folder = daemon.data.topic(client.state("orders").topic_id)
        wait_until(lambda: len(list(folder.glob("*.tags"))) > 1, "two sealed segments")
        run_ctl(daemon, "status")
        for data in [path.with_suffix(".data") for path in sorted(folder.glob("*.tags"))[:2]]:
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 0xFF
            data.write_bytes(content)
        places: set[int] = set()
        for _ in range(3):
            at = 0
            while at < 1200:
                try:
                    at = client.fetch("orders", at, limit=1000).next_from_seq
                except StorageCorrupt as error:
                    places.add(int(error.detail["first_seq"]))
                    at = int(error.detail["last_seq"])
        assert len(places) == 2 and daemon.log.count("storage is damaged") == 2

        def counted() -> bool:
            stats = [(row["stats"] or {}).get("damage", 0) for row in client.status()["processes"]]
            return sum(stats) == 2

        wait_until(counted, "the counter on the stats page")
        shown = run_ctl(daemon, "status", code=1).stdout
        assert "2 damaged places, run fsck" in shown
