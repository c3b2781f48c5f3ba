"""A compacted topic of a real daemon: the newest of each tag, over restarts, seen by readers as deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.cli_kit import run_ctl
from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from topicd.client.blocking.client import Client
from topicd.errors import InvalidRequest

KEYS = 40


def done(client: Client) -> bool:
    found = client.state("latest", touch=False).compacted
    return found is not None and found["through_seq"] >= 2_000


def test_the_newest_of_each_tag_is_left_and_nobody_sees_a_gap(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, **LIVELY) as daemon:
        client = daemon.client()
        client.configure("latest", compact="last-per-tag")
        for config in ({"type": "queue"}, {"durability": "ephemeral"}):
            with pytest.raises(InvalidRequest):
                client.configure("wrong", compact="last-per-tag", **config)  # type: ignore[arg-type]
        client.publish("latest", b"untagged")
        for number in range(50):
            for key in range(KEYS):
                client.publish("latest", b"%d" % number, tag=f"key-{key}")
            if number == 25:
                daemon.restart()
        wait_until(lambda: done(client), "compaction")
        records = drain_topic(client, "latest")
        newest = {record.tag: record.data for record in records}
        assert {newest[f"key-{key}"] for key in range(KEYS)} == {b"49"}
        assert records[0].data == b"untagged"
        assert len(records) < 600  # one segment may not be sealed
        assert not [item for item in client.read("latest", 0, gaps=True) if not hasattr(item, "data")]
        shown = run_ctl(daemon, "topic", "show", "latest").stdout
        assert "records deleted" in shown
        assert "topicd_compacted_records_total" in run_ctl(daemon, "metrics").stdout
        before = client.state("latest").compacted
        daemon.restart()
        wait_until(lambda: client.state("latest", touch=False).compacted == before, "the same after a restart")
        assert {r.tag: r.data for r in drain_topic(client, "latest")} == newest
