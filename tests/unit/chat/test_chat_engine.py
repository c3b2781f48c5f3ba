"""What the engine reports, told as what it is: a fault that may pass, or files that are broken."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topicd.errors import FormatError, StorageFailed
from topicd.shards.chat import checking
from topicd.shards.chat.store import MESSAGES, RocksStore, Writes


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
