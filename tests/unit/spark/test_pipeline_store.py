"""The directory behind an archive: the manifest last, leftovers removed, nobody else's files touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topicd.errors import Conflict, FormatError
from topicd.spark.pipelines.manifest import ArchivedTopic, Manifest, Part
from topicd.spark.pipelines.store import MANIFEST, STAGING, Move, Store


def store(root: Path) -> Store:
    return Store(root, "test", 1)


def staged(open_store: Store, name: str) -> Move:
    (open_store.staging / name).write_bytes(b"x")
    return Move(open_store.staging / name, f"topic=a/day=b/part-{name}.parquet")


def test_what_is_published_is_listed_and_staging_is_gone(tmp_path: Path) -> None:
    with store(tmp_path / "s") as one:
        move = staged(one, "1")
        one.publish([move], {"files": [move.path]})
    assert store(tmp_path / "s").load() == {"kind": "test", "version": 1, "files": [move.path]}
    assert (tmp_path / "s" / move.path).read_bytes() == b"x"
    assert not (tmp_path / "s" / STAGING).exists()


def test_a_run_that_dies_between_moving_and_listing_leaves_only_what_the_next_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store(tmp_path / "s") as one:
        kept = staged(one, "1")
        one.publish([kept], {"files": [kept.path]})
    with pytest.raises(OSError, match="died"), store(tmp_path / "s") as two:
        monkeypatch.setattr(two, "write_manifest", lambda body: (_ for _ in ()).throw(OSError("died")))
        two.publish([staged(two, "2")], {"files": [kept.path, "2"]})
    with store(tmp_path / "s") as three:
        assert (three.load() or {})["files"] == [kept.path]
        (tmp_path / "s" / "topic=a" / "README.txt").write_text("mine")
        assert three.sweep({kept.path}) == ["topic=a/day=b/part-2.parquet"]
        assert (tmp_path / "s" / kept.path).exists()
        assert (tmp_path / "s" / "topic=a" / "README.txt").exists()


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(Conflict, match="has files but no"):
        store(tmp_path).open()
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    with pytest.raises(Conflict, match="not a directory"):
        store(tmp_path / "precious.txt").open()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "other", "version": 1}', '{"kind": "test", "version": 2}'])
def test_a_manifest_that_is_none_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(FormatError, match=r"_manifest\.json is "):
        store(tmp_path).load()


def test_a_manifest_survives_its_json() -> None:
    part = Part("p", "2026-01-01", 1, 10, 9, 100, "ab")
    topic = ArchivedTopic("orders", 7, 1, 0, 0, 0).extended(12, 99, {"ttl_ms": 0}, [part])
    assert (topic.count, topic.absent, topic.last_ts) == (9, 3, 99)
    manifest = Manifest.new().with_topics([topic])
    again = Manifest.from_json(json.loads(json.dumps(manifest.to_json())))
    assert again == manifest
    assert again.find(7, "orders") == topic
    assert again.find(8, "orders") is None
    with pytest.raises(FormatError, match="malformed"):
        Manifest.from_json({"archive_id": "x", "topics": [{"topic": 1}]})
