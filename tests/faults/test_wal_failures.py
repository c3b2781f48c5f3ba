"""The failure policy of the WAL path, case by case: real committer, log, rings, outlet and turns over a disk that
refuses. What the sweeps find by search is spelled out here.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator

import pytest

from tests.faults.machine import KIB, ROOT, Machine, Unanswered
from tests.faults.story import Story, all_classes
from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from topicd.errors import StorageFailed
from topicd.ipc.protocol.messages import Op

MIB = 1024 * KIB
WAL_DIR = ROOT / "wal" / "shard-00"


@pytest.fixture
def faults(disk: FakeDisk) -> FaultFs:
    return FaultFs(disk)


@pytest.fixture
def story(faults: FaultFs) -> Iterator[Story]:
    with Machine(faults) as machine:
        made = Story(machine.open())
        all_classes(made)
        faults.calls.clear()
        yield made


def assert_fine(story: Story, *, power_lost: bool = False) -> None:
    assert story.problems(power_lost=power_lost) == []


def only(kind: str) -> object:
    return lambda name, path: name == kind and path.is_relative_to(ROOT / "wal")


@pytest.mark.fault("WAL-01", "WAL-02")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("short", [False, True])
def test_failed_write_refuses_the_batch_and_gives_its_seqs_to_the_next(
    story: Story, faults: FaultFs, code: int, short: bool
) -> None:
    story.append("f", 2)
    faults.fail_at, faults.errno, faults.short = faults.count + 1, code, short
    request = story.machine.begin_append("f", [b"refused"])
    with pytest.raises(StorageFailed) as caught:
        story.machine.finish_append("f", request)
    assert caught.value.detail["errno"] == code
    assert os.strerror(code) in caught.value.message
    assert story.machine.state("f")["next_seq"] == 3
    story.append("f")
    assert story.oracle.newest_acked("f") == 3
    assert_fine(story)


@pytest.mark.fault("WAL-12")
def test_failed_sync_makes_everything_unsynced_void_and_the_file_is_never_written_again(
    story: Story, faults: FaultFs, disk: FakeDisk
) -> None:
    story.append("f", 1)
    story.append("d", 1)  # written, not synced
    faults.only, faults.fail_at = only("sync_data"), 1
    faults.calls.clear()
    before = dict(disk.files())
    with pytest.raises(StorageFailed):
        story.machine.append("f", [b"refused"])
    faults.only = faults.fail_at = None
    story.append("f", 1)
    story.append("d", 1)
    first = WAL_DIR / "wal-0000000000000000.log"
    synced = before[first].rfind(b"f/1/")
    assert disk.files()[first][: synced + 40] == before[first][: synced + 40]
    assert len([name for name in disk.listdir(WAL_DIR) if name.startswith("wal-")]) == 2
    assert_fine(story)
    story.machine.abandon()
    for seed in range(7):
        with Machine(disk.image(seed), previous=story.machine, power_lost=True) as machine:
            again = story.on(machine.open())
            assert again.problems(power_lost=True) == []
            assert b"refused" not in [record.data for record in machine.read("f")]


@pytest.mark.fault("WAL-13")
def test_error_that_the_kernel_reports_once_is_not_forgotten(story: Story, faults: FaultFs, disk: FakeDisk) -> None:
    """The second sync of the same file would succeed without the pages: rotation must not take it for good."""
    story.append("d", 1, 4 * KIB)
    faults.only, faults.fail_at = only("sync_data"), 1
    faults.calls.clear()
    for _ in range(12):
        story.append("d", 1, 4 * KIB)  # rotates while the file is dirty
    faults.only = faults.fail_at = None
    story.machine.advance(1_000)
    story.append("f", 1)
    assert_fine(story)
    story.machine.abandon()
    with Machine(disk.image(0), previous=story.machine, power_lost=True) as machine:
        assert story.on(machine.open()).problems(power_lost=True) == []


@pytest.mark.fault("WAL-14")
def test_what_readers_have_seen_is_sent_again_after_a_failure(story: Story, faults: FaultFs, disk: FakeDisk) -> None:
    """disk and memory are visible before the sync: they must survive it failing."""
    story.append("d", 2)
    story.append("m", 2)
    faults.only, faults.fail_at = only("sync_data"), 1
    faults.calls.clear()
    story.machine.advance(60)  # the background sync fails
    faults.only = faults.fail_at = None
    story.machine.advance(60)
    assert_fine(story)
    story.machine.abandon()
    with Machine(disk, previous=story.machine) as machine:
        assert story.on(machine.open()).problems(power_lost=False) == []


@pytest.mark.fault("WAL-14")
def test_what_waits_to_be_sent_again_survives_a_second_failure(story: Story, faults: FaultFs, disk: FakeDisk) -> None:
    """More was visible than the ring holds, so some of it waits; then the disk fails once more."""
    for _ in range(5):
        story.append("m", 1, 6 * KIB)
    faults.only, faults.fail_at = only("sync_data"), 1
    faults.calls.clear()
    machine = story.machine
    machine.clock.advance(60)
    machine.turn_wals_only()  # the sync fails beside the turn,
    machine.turn_wals_only()  # this one hears of it, and the WAL shard works again at once
    machine.deliveries[0].turn.doorbell()  # everything is sent again; not all of it fits
    assert machine.deliveries[0].outlets[0].backlog_bytes > 0
    faults.calls.clear()
    machine.clock.advance(60)
    machine.turn_wals_only()
    machine.turn_wals_only()  # what did fit fails a second time
    faults.only = faults.fail_at = None
    machine.settle()
    machine.advance(1_000)
    assert_fine(story)
    machine.abandon()
    with Machine(disk, previous=machine) as successor:
        assert story.on(successor.open()).problems(power_lost=False) == []


@pytest.mark.fault("WAL-15")
def test_failed_batch_that_was_written_already_is_not_in_the_log(story: Story, faults: FaultFs, disk: FakeDisk) -> None:
    """Written in one turn, its sync wanted in the next: if a write fails in between it must be failed and gone, or kept
    and acknowledged."""
    machine = story.machine
    ring = machine.deliveries[0].outlets[0]._ring
    wanted: list[int] = []
    ring.want_sync = wanted.append  # type: ignore[method-assign]
    early = machine.begin_append("f", [b"early"])
    machine.turn_wals_only()
    del ring.want_sync
    ring.want_sync(wanted[-1])
    late = machine.begin_append("f", [b"late"])
    faults.fail_at, faults.only = 1, only("pwrite")
    faults.calls.clear()
    machine.turn_wals_only()
    faults.fail_at = faults.only = None
    batches = {name: story.oracle.submit("f", name, [name.encode()]) for name in ("early", "late")}
    for name, request in (("early", early), ("late", late)):
        try:
            story.oracle.acked(batches[name], machine.finish_append("f", request).first_seq)
        except StorageFailed:
            story.oracle.refused(batches[name])
    story.append("f", 3)
    assert_fine(story)
    machine.abandon()
    with Machine(disk, previous=machine) as successor:
        assert story.on(successor.open()).problems(power_lost=False) == []


@pytest.mark.fault("WAL-03")
def test_full_disk_refuses_writers_serves_readers_and_resumes_without_a_restart(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        all_classes(story)
        story.append("f", 3)
        disk.capacity = sum(len(content) for content in disk.files().values())
        for _ in range(30):
            story.append("f", 1, 6 * KIB)
            story.append("d", 1, 6 * KIB)
        assert any("No space left" in line for line in story.refused)
        assert machine.wals[0]._committer.read_only_errno == errno.ENOSPC
        with pytest.raises(StorageFailed):
            machine.ask("f", Op.CONFIGURE, config={"priority": 1})
        with pytest.raises(StorageFailed):
            machine.configure("new", durability="fsync")
        assert_fine(story)
        disk.capacity = None
        machine.advance(1_000)
        assert machine.wals[0]._committer.read_only_errno == 0
        assert story.still_works() == []
        assert_fine(story)
        machine.abandon()
        with Machine(disk.image(0), previous=machine, power_lost=True) as successor:
            assert story.on(successor.open()).problems(power_lost=True) == []


@pytest.mark.fault("WAL-03", "CKP-02")
def test_full_disk_refuses_writers_whose_checkpoints_it_does_not_take(disk: FakeDisk) -> None:
    """The log was filled ahead and has room; memory is bounded, and nobody waits for a disk that may stay full."""
    with Machine(disk, checkpoint_bytes=2 * KIB) as machine:
        story = Story(machine.open())
        all_classes(story)
        disk.capacity = sum(len(content) for content in disk.files().values())
        for _ in range(12):
            story.append("f", 1, 2 * KIB)
        assert any("No space left" in line for line in story.refused)
        assert machine.wals[0]._committer.read_only_errno == 0
        assert_fine(story)
        disk.capacity = None
        machine.checkpoint()
        assert story.still_works() == []
        assert_fine(story)


@pytest.mark.fault("WAL-09")
def test_file_that_could_not_be_filled_ahead_is_filled_when_space_returns(disk: FakeDisk) -> None:
    """Large files are zero-filled by a thread beside the writer; its failure must not stay for ever."""
    with Machine(disk, wal_file_bytes=3 * MIB) as machine:
        disk.capacity = 0
        story = Story(machine.open_when(disk, MIB + 512 * KIB))
        all_classes(story)
        deadline = time.monotonic() + 30
        while not story.refused:
            story.append("f", 1, 8 * KIB)
            assert time.monotonic() < deadline, "the disk never filled up"
        disk.capacity = None
        machine.advance(1_000)
        machine.advance(1_000)
        assert story.still_works() == []
        for _ in range(100):
            story.append("f", 1, 8 * KIB)
        assert story.refused == []
        assert_fine(story)


@pytest.mark.fault("WAL-16")
def test_every_request_is_answered_exactly_once_while_the_disk_fails_for_good(story: Story, faults: FaultFs) -> None:
    faults.fail_at, faults.always = faults.count + 1, True
    requests = [story.machine.begin_append(topic, [b"x"]) for topic in "fdmfdm"]
    for request in requests:
        try:
            story.machine.finish_append("f", request)
        except StorageFailed:
            continue
        except Unanswered:
            raise AssertionError("a request is left hanging") from None
    assert not story.machine.deliveries[0].outlets[0]._synced_queue
    assert not story.machine.deliveries[0].outlets[0]._written_queue
