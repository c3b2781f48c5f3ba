"""The daemon on its pure-Python codec: everything works, and the log says once what it costs."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from tests.process.wire import Row, Wire, batch, owner
from tests.support.daemon import Daemon, drain_topic

SHARDS = 2
PURE = {"TOPICD_PURE": "1"}


def smoke(daemon: Daemon, durability: str) -> list[Row]:
    """Publish, read, follow, filter, delete; what is left."""
    name = f"smoke-{durability}"
    with Wire(owner(daemon.run.root, name, SHARDS)) as wire:
        topic_id = wire.open(name, durability=durability)
        subscription = wire.subscribe([{"topic": name}])
        metas = [msgpack.packb({"n": n}) for n in range(50)]
        frames = batch([b"%d" % n for n in range(50)], [b"odd", b"even"] * 25, None, metas)
        assert wire.appended(wire.send_append(topic_id, frames, 50, producer=1, batch_no=1)).first_seq == 1
        assert wire.appended(wire.send_append(topic_id, frames, 50, producer=1, batch_no=1)).deduped
        pushed: list[int] = []
        while len(pushed) < 50:
            pushed += wire.pushed(subscription).seqs
        assert pushed == list(range(1, 51))
        assert wire.fetch(topic_id, match="odd").seqs == list(range(1, 51, 2))
        return wire.read_all(topic_id)


@pytest.mark.parametrize("environ", [PURE, {}], ids=["pure", "native"])
def test_publish_read_and_restart(tmp_path: Path, environ: dict[str, str]) -> None:
    settings = {"wal_shards": SHARDS, "delivery_shards": SHARDS, "checkpoint_ms": 100}
    with Daemon(tmp_path, env=environ, **settings) as daemon:
        before = {durability: smoke(daemon, durability) for durability in ("memory", "disk", "fsync")}
        client = daemon.client()
        client.publish("library", b"through the client")
        assert [record.data for record in drain_topic(client, "library")] == [b"through the client"]
        daemon.restart()
        for durability, rows in before.items():
            name = f"smoke-{durability}"
            with Wire(owner(daemon.run.root, name, SHARDS)) as wire:
                assert wire.read_all(wire.open(name)) == rows
        announcements = [line for line in daemon.log.splitlines() if "pure-Python codec" in line]
        # Two starts: each says it once, the native one never.
        assert len(announcements) == (2 if environ else 0), announcements


def test_what_the_twin_wrote_the_native_codec_reads(tmp_path: Path) -> None:
    settings = {"wal_shards": SHARDS, "delivery_shards": SHARDS}
    with Daemon(tmp_path, env=PURE, **settings) as daemon:
        rows = smoke(daemon, "fsync")
        daemon.kill_all()
    with Daemon(tmp_path, **settings) as daemon, Wire(owner(daemon.run.root, "smoke-fsync", SHARDS)) as wire:
        assert wire.read_all(wire.open("smoke-fsync")) == rows
