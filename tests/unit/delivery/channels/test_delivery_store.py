"""The files of channels: rows C1 to C7, C10, C11, C14 and C20, on a disk that forgets what was not synced."""

from __future__ import annotations

import errno
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.unit.storage.sweep import failures, sweep
from topicd.channel import ChannelAcl, ChannelConfig, ChannelState, channel_hash
from topicd.disk.fs import Fs
from topicd.errors import FormatError
from topicd.paths import DataDir
from topicd.shards.delivery.channels import store as store_module
from topicd.shards.delivery.channels.members import with_member, without_member
from topicd.shards.delivery.channels.store import ChannelStore, Saved
from topicd.shards.delivery.channels.tallies import Tallies

DATA = DataDir(Path("/data"))
OLD = ChannelState("room/1", "ann", members=("ann",), config=ChannelConfig(persist=True), log="a1")
NEW = replace(OLD, members=("ann", "bob"))
HASH = channel_hash("room/1")
FILE = DATA.channels / HASH / "metadata.bin"


def make_disk() -> FakeDisk:
    return FakeDisk(directories=[DATA.root])


def store_on(fs: Fs) -> ChannelStore:
    return ChannelStore(fs, DATA, Tallies())


@pytest.fixture
def saved() -> tuple[FakeDisk, Saved]:
    disk = make_disk()
    return disk, store_on(disk).save(OLD)


def test_c1_the_directory_is_the_hash_of_the_handler(saved: tuple[FakeDisk, Saved]) -> None:
    assert HASH == hashlib.sha256(b"room/1").hexdigest() == saved[1].hash
    assert list(saved[0].files()) == [FILE]


FULL = ChannelState(
    "room/1",
    None,
    "fifo",
    ChannelConfig(7, 8, 9, True, 10),
    ChannelAcl(("ann",), ("bob", "eve"), ()),
    (),
    "x",
)


@pytest.mark.parametrize("state", [OLD, NEW, FULL, replace(FULL, owner="eve", members=("a", "b"))])
def test_c3_every_field_comes_back(state: ChannelState) -> None:
    disk = make_disk()
    saved = store_on(disk).save(state)
    assert store_on(disk).load(HASH) == (state, saved)


def test_c5_a_file_that_is_too_large_is_not_loaded(saved: tuple[FakeDisk, Saved]) -> None:
    disk, _ = saved
    disk.open(FILE, write=True).truncate(65 << 20)
    with pytest.raises(FormatError, match="at most"):
        store_on(disk).load(HASH)


def test_c6_a_crash_in_a_save_leaves_one_whole_version(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    seen: set[ChannelState] = set()

    def look(left: FakeDisk, done: bool) -> None:
        state, _ = store_on(left).load(HASH)
        assert state in (OLD, NEW)
        assert state == NEW or not done
        seen.add(state)

    sweep(disk, lambda fs: void(store_on(fs).save(NEW, before)), look)
    assert seen == {OLD, NEW}


def test_c6_a_crash_in_the_first_save_leaves_the_channel_or_none() -> None:
    def look(left: FakeDisk, done: bool) -> None:
        found = store_on(left).enumerate()
        if done:
            assert found.hashes == [HASH]
        if found.hashes:
            assert store_on(left).load(HASH)[0] == OLD
        for stray in found.strays:
            store_on(left).sweep(stray)
        assert store_on(left).enumerate().strays == []

    sweep(make_disk(), lambda fs: void(store_on(fs).save(OLD)), look)


def test_c6_the_steps_of_a_save(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    fs = FaultFs(disk)
    store_on(fs).save(NEW, before)
    assert [name for name, _ in fs.calls] == ["create", "truncate", "pwrite", "sync", "rename", "sync_dir"]


def test_c7_what_is_left_of_a_save_is_inert(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    rest = FILE.with_name("metadata.bin.tmp")
    disk.open(rest, write=True, create=True).pwrite([b"garbage" * 1000], 0)
    assert store_on(disk).load(HASH)[0] == OLD
    store_on(disk).save(NEW, before)
    assert rest not in disk.files()
    assert store_on(disk).load(HASH)[0] == NEW
    disk.open(rest, write=True, create=True).pwrite([b"garbage"], 0)
    store_on(disk).delete(HASH)
    assert disk.files() == {}


def test_c8_a_save_that_fails_has_put_back_what_was_there(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    for what, fs, used in failures(disk, lambda fs: void(store_on(fs).save(NEW, before))):
        try:
            store_on(fs).save(NEW, before)
        except OSError:
            if not fs.always:
                assert store_on(used).load(HASH)[0] == OLD, what
        assert store_on(used).load(HASH)[0] in (OLD, NEW), what


def test_c10_the_hash_is_not_made_twice(saved: tuple[FakeDisk, Saved], monkeypatch: pytest.MonkeyPatch) -> None:
    disk, before = saved
    hashed: list[str] = []
    monkeypatch.setattr(store_module, "channel_hash", lambda handler: hashed.append(handler) or channel_hash(handler))
    again = store_on(disk).save(NEW, before)
    store_on(disk).delete(again.hash, again)
    assert hashed == []
    store_on(disk).save(NEW)
    assert hashed == ["room/1"]


def test_c11_a_delete_may_be_repeated(saved: tuple[FakeDisk, Saved]) -> None:
    disk, _ = saved
    store = store_on(disk)
    store.delete(HASH)
    store.delete(HASH)
    assert (disk.files(), disk.listdir(DATA.channels)) == ({}, [])
    tallies = Tallies()
    ChannelStore(disk, DATA, tallies).delete("f" * 64)
    assert tallies.deletes == 1


def test_c11_a_directory_with_something_foreign_stays(saved: tuple[FakeDisk, Saved]) -> None:
    disk, _ = saved
    foreign = FILE.with_name("00000000000000000001.log")
    disk.open(foreign, write=True, create=True)
    store_on(disk).delete(HASH)
    assert list(disk.files()) == [foreign]


def test_c12_a_crash_in_a_delete_leaves_the_channel_or_none(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    store_on(disk).save_cursor(HASH, 5)
    outcomes: set[bool] = set()

    def look(left: FakeDisk, done: bool) -> None:
        found = store_on(left).enumerate()
        if found.hashes:
            assert store_on(left).load(HASH)[0] == OLD
            assert not done
        for stray in found.strays:
            store_on(left).sweep(stray)
        assert left.listdir(DATA.channels) == found.hashes
        outcomes.add(bool(found.hashes))

    sweep(disk, lambda fs: store_on(fs).delete(HASH, before), look)
    assert outcomes == {True, False}


def test_a_delete_that_fails_has_put_back_what_was_there(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    fs = FaultFs(disk, 1, errno.EIO, only=lambda name, path: name == "sync_dir")
    with pytest.raises(OSError, match="error"):
        store_on(fs).delete(HASH, before)
    assert store_on(disk).load(HASH)[0] == OLD


def test_c14_nothing_is_no_channel_and_strays_are_told() -> None:
    disk = make_disk()
    assert store_on(disk).enumerate() == ([], [])
    store_on(disk).save(OLD)
    disk.mkdir(DATA.channels / "empty")
    disk.mkdir(DATA.channels / ("e" * 64))
    disk.open(DATA.channels / ("e" * 64) / "notes.txt", write=True, create=True)
    found = store_on(disk).enumerate()
    assert found == ([HASH], ["e" * 64, "empty"])
    assert store_on(disk).sweep("empty") is None
    kept = store_on(disk).sweep("e" * 64)
    assert kept is not None
    assert disk.exists(kept / "notes.txt")
    assert kept.parent == DATA.trash
    assert disk.listdir(DATA.channels) == [HASH]
    disk.mkdir(DATA.channels / ("e" * 64))
    disk.open(DATA.channels / ("e" * 64) / "notes.txt", write=True, create=True)
    assert store_on(disk).sweep("e" * 64) != kept


def test_c20_the_same_members_are_the_same_bytes(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    there = replace(OLD, members=with_member(OLD.members, "zoe"))
    middle = store_on(disk).save(there, before)
    back = store_on(disk).save(replace(there, members=without_member(there.members, "zoe")), middle)
    assert middle.raw != before.raw == back.raw == disk.files()[FILE]


def test_c28_the_cursor_is_sixteen_bytes(saved: tuple[FakeDisk, Saved]) -> None:
    disk, _ = saved
    store = store_on(disk)
    store.save_cursor(HASH, 0x0102)
    raw = disk.files()[store.cursor(HASH)]
    assert (len(raw), raw[:8], raw[12:]) == (16, b"\x02\x01" + bytes(6), bytes(4))
    assert store.load_cursor(HASH) == 0x0102
    for offset in range(16):
        disk.damage(store.cursor(HASH), offset, bytes([raw[offset] ^ 1]))
        with pytest.raises(FormatError):
            store.load_cursor(HASH)
        disk.damage(store.cursor(HASH), offset, raw[offset : offset + 1])
    disk.unlink(store.cursor(HASH))
    with pytest.raises(FormatError, match="missing"):
        store.load_cursor(HASH)


def test_c28_a_crash_in_the_write_of_a_cursor_leaves_one_of_both(saved: tuple[FakeDisk, Saved]) -> None:
    disk, _ = saved
    store_on(disk).save_cursor(HASH, 5)

    def look(left: FakeDisk, done: bool) -> None:
        assert store_on(left).load_cursor(HASH) in ((6,) if done else (5, 6))

    sweep(disk, lambda fs: store_on(fs).save_cursor(HASH, 6), look)


def test_c21_saves_are_counted_by_their_outcome(saved: tuple[FakeDisk, Saved]) -> None:
    disk, before = saved
    tallies = Tallies()
    ChannelStore(disk, DATA, tallies).save(NEW, before)
    with pytest.raises(OSError, match="error"):
        ChannelStore(FaultFs(disk, 1), DATA, tallies).save(OLD, before)
    page = tallies.page()
    assert (page["store_saves"], page["store_save_failures"], sum(page["store_save_histogram"])) == (1, 1, 2)


def void(value: object) -> None:
    return None
