"""Row C26: what a start makes of a channel's log when its files are not as they were left. One daemon, one damage for
each channel, one restart; every test looks at a channel of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topicd.aio
from tests.support.daemon import LIVELY, Daemon, wait_until
from tests.support.promtext import Exposition
from topicd.channel import channel_hash
from topicd.client.blocking.channels import Channels
from topicd.disk.fs import RealFs
from topicd.errors import StorageCorrupt
from topicd.metrics import render
from topicd.paths import segment_name
from topicd.shards.storage import channel_file
from topicd.shards.storage.segment.names import DATA

SEALED = 100  # messages of a segment
SENT = 350
KEPT = 150


class Log:
    """The files of a channel's log, and what was in them."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        metadata = daemon.data.channels / channel_hash(name) / "metadata.bin"
        state = daemon.client().state(channel_file.load(RealFs(), metadata).topic)
        self.folder = daemon.data.topic(state.topic_id)
        self.before: dict[str, bytes] = {}
        self.sealed_before: dict[str, tuple[int, int]] = {}

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"))

    def sealed(self, suffix: str = ".data") -> list[Path]:
        return [path.with_suffix(suffix) for path in self.files(".tags")]

    def active(self) -> Path:
        return self.files(".data")[-1]


def flip(log: Log) -> None:
    path = log.sealed()[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    path.write_bytes(raw)


def cut_sealed(log: Log) -> None:
    path = log.sealed()[0]
    os.truncate(path, path.stat().st_size // 2)


def break_indexes(log: Log) -> None:
    first, second = log.sealed(".idx")[:2]
    first.unlink()
    second.write_bytes(b"\xff" * 37)


def tear_tail(log: Log) -> None:
    """What a crash in the middle of a write leaves."""
    with log.active().open("ab") as file:
        file.write(log.active().read_bytes()[-40:-7])


def empty_newest(log: Log) -> None:
    (log.folder / segment_name(SENT + 1, DATA)).touch()


def nothing(log: Log) -> None:
    pass


DAMAGES: dict[str, Callable[[Log], None]] = {
    "flipped": flip,
    "cut": cut_sealed,
    "indexes": break_indexes,
    "torn": tear_tail,
    "empty": empty_newest,
    "whole": nothing,
}


async def fill(socket: Path) -> None:
    async with topicd.aio.connect(socket) as client:
        for name in DAMAGES:
            await client.channels.join(name, user="ann")
            cap = KEPT if name == "whole" else 10_000
            await client.channels.set_config(
                name, persist=True, message_flush_interval=1_000, max_persist_messages=cap, user="ann"
            )
            for n in range(1, SENT + 1):
                await client.channels.publish(name, b"message %04d" % n, user="ann")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, dict[str, Log]]]:
    settings = {**LIVELY, "segment_max_records": SEALED}
    with Daemon(tmp_path_factory.mktemp("logs"), wal_shards=1, delivery_shards=2, **settings) as daemon:
        asyncio.run(fill(daemon.run.socket))
        logs = {name: Log(daemon, name) for name in DAMAGES}
        for name, log in logs.items():
            wanted = 1 if name == "whole" else SENT // SEALED
            wait_until(lambda log=log, wanted=wanted: len(log.sealed()) >= wanted, "sealed segments")  # type: ignore[misc]
        daemon.stop()
        for name, log in logs.items():
            log.before = {path.name: path.read_bytes() for path in log.folder.iterdir()}
            log.sealed_before = {one.name: (one.stat().st_mtime_ns, one.stat().st_ino) for one in log.sealed()}
            DAMAGES[name](log)
        daemon.start().wait_ready()
        yield daemon, logs


def history(channels: Channels, name: str) -> tuple[list[int], list[tuple[int, int]]]:
    """(seqs that can be read, spans that cannot)."""
    found: list[int] = []
    lost: list[tuple[int, int]] = []
    first, last = channels.seq(name, user="ann")
    at = first
    while at <= last:
        try:
            page = channels.history(name, at, user="ann")
        except StorageCorrupt as exc:
            lost.append((int(exc.detail["first_seq"]), int(exc.detail["last_seq"])))
            at = lost[-1][1] + 1
            continue
        assert all(one.data == b"message %04d" % one.seq for one in page if one.seq <= SENT)
        found += [one.seq for one in page]
        at = page[-1].seq + 1
    return found, lost


def goes_on(channels: Channels, name: str) -> None:
    assert channels.publish(name, b"next", user="ann") == SENT + 1


def damage_of(daemon: Daemon) -> float:
    exposition = Exposition(render(daemon.status()))
    return sum(exposition.value("topicd_damaged_places", shard=f"{shard:02d}") for shard in range(2))


def test_c26_a_flipped_bit_in_a_sealed_file_costs_what_lay_there(damaged: Any) -> None:
    daemon, _ = damaged
    channels = daemon.client().channels
    found, lost = history(channels, "flipped")
    missing = {seq for first, last in lost for seq in range(first, last + 1)}
    assert 0 < len(missing) < 10
    assert found == [seq for seq in range(1, SENT + 1) if seq not in missing]
    wait_until(lambda: damage_of(daemon) >= 1, "the damage to be counted")
    goes_on(channels, "flipped")


def test_c26_the_shortfall_of_a_sealed_file_is_counted_and_told(damaged: Any) -> None:
    daemon, logs = damaged
    channels = daemon.client().channels
    found, lost = history(channels, "cut")
    missing = {seq for first, last in lost for seq in range(first, last + 1)}
    assert 30 < len(missing) < 70
    assert max(missing) == SEALED
    assert found == [seq for seq in range(1, SENT + 1) if seq not in missing]
    assert str(logs["cut"].sealed()[0].with_suffix("").name) in daemon.log
    wait_until(lambda: damage_of(daemon) >= 1, "the damage to be counted")
    goes_on(channels, "cut")


def test_c26_a_broken_index_is_made_anew(damaged: Any) -> None:
    daemon, logs = damaged
    channels = daemon.client().channels
    found, lost = history(channels, "indexes")
    assert (found, lost) == (list(range(1, SENT + 1)), [])
    log = logs["indexes"]
    for path in log.sealed(".idx")[:2]:
        assert path.read_bytes() == log.before[path.name]
    assert list(log.folder.glob("*.tmp")) == []
    goes_on(channels, "indexes")


def test_c26_a_torn_tail_is_cut_at_the_first_bad_entry(damaged: Any) -> None:
    daemon, _ = damaged
    channels = daemon.client().channels
    found, lost = history(channels, "torn")
    assert (found, lost) == (list(range(1, SENT + 1)), [])
    goes_on(channels, "torn")
    assert channels.history("torn", SENT + 1, user="ann")[0].data == b"next"


def test_c26_an_empty_active_file_is_dropped(damaged: Any) -> None:
    daemon, logs = damaged
    channels = daemon.client().channels
    found, lost = history(channels, "empty")
    assert (found, lost) == (list(range(1, SENT + 1)), [])
    newest = logs["empty"].active()
    assert newest == newest.parent / segment_name(301, DATA)
    goes_on(channels, "empty")


def test_c26_eviction_by_count_drops_whole_sealed_files_and_never_the_active_one(damaged: Any) -> None:
    daemon, logs = damaged
    channels = daemon.client().channels
    assert channels.seq("whole", user="ann") == (SENT - KEPT + 1, SENT)
    log = logs["whole"]

    def first_seqs(paths: list[Path]) -> list[int]:
        return [
            seq for seq in (1, 101, 201, 301, 401) for path in paths if path == log.folder / segment_name(seq, DATA)
        ]

    # Those of which nothing is kept are gone as a whole; the one that is in part stays as it is.
    assert first_seqs(log.files(".data")) == [201, 301]
    for n in range(KEPT):
        channels.publish("whole", b"message %04d" % (SENT + n + 1), user="ann")
    assert channels.seq("whole", user="ann") == (SENT + 1, SENT + KEPT)
    wait_until(lambda: first_seqs(log.files(".data")) == [301, 401], "the older file to go and the newest to be there")
    # Whoever is sealed is not written again.
    for path in log.sealed():
        if path.name in log.sealed_before:
            assert (path.stat().st_mtime_ns, path.stat().st_ino) == log.sealed_before[path.name]
    found, lost = history(channels, "whole")
    assert (found, lost) == (list(range(SENT + 1, SENT + KEPT + 1)), [])
