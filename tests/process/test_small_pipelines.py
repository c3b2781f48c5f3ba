"""Pipelines over little: what this process does sooner than Spark starts, it does, with the results of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from topicd.errors import Conflict, StorageCorrupt
from topicd.spark.pipelines import archive, fsck, restore
from topicd.spark.pipelines.inputs import Columns
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.session import LazySpark, SparkUnavailable


class NoSpark(LazySpark):
    @property
    def context(self) -> Any:
        raise SparkUnavailable("nobody should have started it")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("small"), wal_shards=1, delivery_shards=1, **LIVELY) as running:
        yield running


def _restored(daemon: Daemon, source: Path, **options: Any) -> Any:
    where = connection_options(str(daemon.run.root), 60.0)
    return restore.run(NoSpark(), restore.Options(where, source, **options))


def test_what_is_archived_comes_back_once_and_damage_is_named(daemon: Daemon, tmp_path: Path) -> None:
    client, where = daemon.client(), connection_options(str(daemon.run.root), 60.0)
    client.publish_many("small", [b"%d" % n for n in range(2_000)], tag="even")
    added = archive.run(NoSpark(), archive.Options(where, ("small",), tmp_path / "a", then_delete=False))
    assert added.totals["added"] == 2_000
    for stored in (2_000, 0):
        assert _restored(daemon, tmp_path / "a", topics=(("small", "again"),)).totals["stored"] == stored
    again = drain_topic(client, "again")
    assert [(record.data, record.tag) for record in again] == [(b"%d" % n, "even") for n in range(2_000)]
    with pytest.raises(Conflict, match="not from here"):
        client.publish("taken", b"x")
        _restored(daemon, tmp_path / "a", topics=(("small", "taken"),))
    [part, *_] = sorted((tmp_path / "a").rglob("*.parquet"))
    part.write_bytes(b"\0" * part.stat().st_size)
    with pytest.raises(StorageCorrupt):
        _restored(daemon, tmp_path / "a", topics=(("small", "damaged"),))


def test_files_of_others_are_looked_at_and_stored(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("payload,kind\nhello,greeting\nworld,noun\n")
    report = _restored(daemon, tmp_path / "words.csv", into="words", columns=Columns(data="payload", tag="kind"))
    assert report.totals["stored"] == 2
    assert [(one.data, one.tag) for one in drain_topic(daemon.client(), "words")] == [
        (b"hello", "greeting"),
        (b"world", "noun"),
    ]


def test_a_small_directory_is_checked(daemon: Daemon, tmp_path: Path) -> None:
    with Daemon(tmp_path / "own", wal_shards=1, delivery_shards=1, **LIVELY) as own:
        for _ in range(8):
            own.client().publish_many("checked", [bytes(100)] * 500)
        wait_until(lambda: len(list(own.data.root.rglob("*.tags"))) >= 3, "segments")
    report = fsck.run(NoSpark(), fsck.Options(str(own.data.root)))
    assert not report.failed
    assert report.totals["records"] >= 1_500 and report.totals["segments"] >= 3
    segment = max(own.data.root.rglob("*.data"), key=lambda path: path.stat().st_size)
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    assert fsck.run(NoSpark(), fsck.Options(str(own.data.root))).failed
