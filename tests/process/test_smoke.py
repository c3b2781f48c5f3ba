"""One look at the whole: a daemon starts, takes records, hands them out, stops clean and has them again."""

from __future__ import annotations

from pathlib import Path

from tests.support.daemon import Daemon


def test_records_are_there_again_after_a_clean_restart(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=2, delivery_shards=2) as daemon:
        client = daemon.client()
        assert client.publish("orders", b"hello") == 1
        client.publish_many("orders", [b"one", b"two"])
        assert client.fetch("orders").payloads() == [b"hello", b"one", b"two"]
        assert daemon.stop().code == 0
        daemon.start()
        with daemon.client().watch("orders", start="earliest") as watch:
            assert [next(watch).data for _ in range(3)] == [b"hello", b"one", b"two"]
