"""What the engine reports, told as what it is: a fault that may pass, or files that are broken."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topicd.errors import FormatError, StorageFailed
from topicd.shards.chat import checking
from topicd.shards.chat.store import MESSAGES, TABLES, RocksStore, Tuning, Writes


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)  # the next one would get this number
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def filled(path: Path) -> RocksStore:
    store, writes = RocksStore(path).open(), Writes()
    writes.put(MESSAGES, bytes(44), b"kept")
    store.write(writes)
    return store


def test_what_the_engine_lacks_for_a_moment_is_no_damage(tmp_path: Path) -> None:
    filled(tmp_path / "rocks").close()
    with no_more_files(), pytest.raises(StorageFailed, match="Too many open files"):
        RocksStore(tmp_path / "rocks").open()
    store = RocksStore(tmp_path / "rocks").open()
    with no_more_files(), pytest.raises(StorageFailed, match="Too many open files"):
        store.checkpoint(tmp_path / "copy")
    store.checkpoint(tmp_path / "copy")
    store.close()


def test_files_that_are_broken_are_damage(tmp_path: Path) -> None:
    filled(tmp_path / "rocks").close()
    (tmp_path / "rocks" / "CURRENT").write_bytes(b"garbage")
    with pytest.raises(FormatError, match="cannot be opened"):
        RocksStore(tmp_path / "rocks").open()


def test_a_store_without_room_for_a_flush_is_closed_all_the_same(tmp_path: Path) -> None:
    store = filled(tmp_path / "rocks")
    with no_more_files():
        store.close()
    RocksStore(tmp_path / "rocks").open().close()  # nobody holds it


def test_a_base_that_cannot_be_copied_can_be_copied_later(tmp_path: Path) -> None:
    store = filled(tmp_path / "rocks")
    checking.put_base(store, tmp_path, 7)
    store.close()
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed) as told:
        checking.begin_from_base(tmp_path, tmp_path / "file" / "in the way")
    assert told.tb is not None  # whoever keeps it keeps what it holds
    assert checking.begin_from_base(tmp_path, tmp_path / "copy") == 7


def test_a_base_that_is_there_already_stays(tmp_path: Path) -> None:
    """Nothing was applied since: it would be the same."""
    store = filled(tmp_path / "rocks")
    checking.put_base(store, tmp_path, 7)
    before = sorted(path.stat().st_ino for path in (tmp_path / "base-7").iterdir())
    checking.put_base(store, tmp_path, 7)
    assert sorted(path.stat().st_ino for path in (tmp_path / "base-7").iterdir()) == before
    checking.put_base(store, tmp_path, 8)
    assert [path.name for path in tmp_path.glob("base*")] == ["base-8"]
    store.close()


def test_a_store_is_replaced_when_nobody_is_in_the_middle_of_its_rows(tmp_path: Path) -> None:
    async def scene() -> None:
        store = filled(tmp_path / "rocks")
        store.checkpoint(tmp_path / "other")
        ahead, back = store.scan(MESSAGES), store.scan_back(MESSAGES, bytes(44), b"")
        assert next(ahead) == next(back) == (bytes(44), b"kept")
        waiting = asyncio.ensure_future(store.unread())
        for scan in (ahead, back):
            await asyncio.sleep(0.02)
            assert not waiting.done()
            scan.close()
        await waiting
        store.replace(tmp_path / "other")
        assert list(store.scan(MESSAGES)) == [(bytes(44), b"kept")]
        store.close()

    asyncio.run(scene())


def sections(options: str) -> dict[str, dict[str, str]]:
    """What the engine itself has written down of its settings."""
    found: dict[str, dict[str, str]] = {}
    for line in map(str.strip, options.splitlines()):
        if line.startswith("["):
            rows = found.setdefault(line.strip("[]"), {})
        elif "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            rows[name] = value
    return found


def test_S01_S02_S06_S18_S25_the_engine_works_with_the_settings_of_the_design(tmp_path: Path) -> None:
    tuning = Tuning(cache_bytes=3 << 20, memtable_bytes=8 << 20, threads=3)
    store = RocksStore(tmp_path / "rocks", tuning).open()
    (newest,) = sorted((tmp_path / "rocks").glob("OPTIONS-*"))[-1:]
    found = sections(newest.read_text())
    store.close()
    engine = found["DBOptions"]
    assert {name: engine[name] for name in ("keep_log_file_num", "atomic_flush", "db_write_buffer_size")} == {
        "keep_log_file_num": "5",
        "atomic_flush": "true",
        "db_write_buffer_size": str(8 << 20),
    }
    assert engine["max_background_jobs"] == "3"
    prefixes = {"messages": 32, "seen_msg": 2, "user_inbox": 20, "members": 32, "user_read_progress": 20}
    prefixes |= {"seen_member": 2, "seen_identity": 2}
    for table in TABLES:
        family, blocks = found[f'CFOptions "{table.name}"'], found[f'TableOptions/BlockBasedTable "{table.name}"']
        width = prefixes.get(table.name)
        assert family["prefix_extractor"] == (f"rocksdb.FixedPrefix.{width}" if width else "nullptr"), table.name
        assert family["compression"] == "kZSTD"
        assert (blocks["filter_policy"].split(":")[0], blocks["whole_key_filtering"]) == ("bloomfilter", "true")
        filtered = table.name in ("messages", "seen_msg")
        assert float(family["memtable_prefix_bloom_size_ratio"]) == (0.1 if filtered else 0.0)
