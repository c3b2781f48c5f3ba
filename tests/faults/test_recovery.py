"""Recovery gives one answer, whatever it starts from: again, from zero, from an older snapshot, with other shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.machine import KIB, ROOT, Machine
from tests.faults.story import SCENES, Scene, Story
from tests.faults.sweep import Stage, unlike
from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from topicd import paths
from topicd.ipc.protocol.messages import Op
from topicd.shards.wal.spares import Spares

# Where the WAL still holds everything from the first byte on, or speaks of it.
KNOWN_TO_WAL = [scene for scene in SCENES if scene.name not in {"recycling", "direct writes, kept"}]
WHOLE_WAL = [scene for scene in KNOWN_TO_WAL if "direct" not in scene.name]


@pytest.fixture
def staged() -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.close()


def played(scene: Scene, staged: list[Stage]) -> Stage:
    """The scene is over and all processes were killed."""
    stage = Stage(scene).prepare()
    staged.append(stage)
    scene.act(stage.story)
    stage.machine.settle()
    return stage


def snapshots(disk: FakeDisk) -> list[Path]:
    return [path for path in disk.files() if paths.parse_snapshot(path.name) is not None]


def remove(disk: FakeDisk, found: list[Path]) -> None:
    for path in found:
        disk.unlink(path)
    disk.sync_filesystem(Path("/"))


@pytest.mark.fault("REC-02")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_second_recovery_shows_what_the_first_one_showed(scene: Scene, staged: list[Stage]) -> None:
    stage = played(scene, staged)
    expected = stage.machine.picture()
    stage.machine.abandon()
    previous = stage.machine
    for _ in range(3):
        machine = stage.successor(stage.disk, power_lost=False, previous=previous)
        assert machine.damage() == []
        assert unlike(expected, machine.picture()) == ""
        machine.abandon()
        previous = machine


@pytest.mark.fault("REC-09", "SNP-04")
@pytest.mark.parametrize("scene", KNOWN_TO_WAL, ids=lambda scene: scene.name)
def test_recovery_without_a_snapshot_gives_the_same_state(scene: Scene, staged: list[Stage]) -> None:
    stage = played(scene, staged)
    expected = stage.machine.picture()
    stage.machine.abandon()
    disk = stage.disk.image(1)
    remove(disk, snapshots(disk))
    machine = stage.successor(disk, power_lost=False)
    assert machine.damage() == []
    assert unlike(expected, machine.picture()) == ""


@pytest.mark.fault("REC-09")
@pytest.mark.parametrize("scene", WHOLE_WAL, ids=lambda scene: scene.name)
def test_recovery_from_the_wal_alone_gives_the_same_state(scene: Scene, staged: list[Stage]) -> None:
    stage = played(scene, staged)
    expected = stage.machine.picture()
    stage.machine.abandon()
    disk = stage.disk.image(1)
    remove(disk, [path for path in disk.files() if not path.is_relative_to("/data/wal")])
    machine = stage.successor(disk, power_lost=False)
    assert machine.damage() == []
    assert unlike(expected, machine.picture()) == ""


@pytest.mark.fault("SNP-03", "SNP-04")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_corrupt_newest_snapshot_costs_nothing(scene: Scene, staged: list[Stage]) -> None:
    stage = played(scene, staged)
    stage.machine.checkpoint()
    stage.machine.snapshot()
    expected = stage.machine.picture()
    stage.machine.abandon()
    for at in (0, 5, 9, 15, 30, -1):
        disk = stage.disk.image(1)
        corrupted = 0
        for index in range(stage.machine.delivery_shards):
            directory = stage.machine.data.snapshots(index)
            newest = max(disk.listdir(directory), key=lambda name: paths.parse_snapshot(name) or 0)
            raw = disk.files()[directory / newest]
            disk.damage(directory / newest, at % len(raw), bytes([raw[at] ^ 0xFF]))
            corrupted += 1
        machine = stage.successor(disk, power_lost=False)
        assert sum("snapshot passed over" in line for line in machine.damage()) >= corrupted
        assert [line for line in machine.damage() if "snapshot passed over" not in line] == []
        assert unlike(expected, machine.picture()) == ""


@pytest.mark.fault("SNP-03")
def test_wal_keeps_what_the_snapshot_before_the_newest_does_not_know(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        machine.forget_wal()  # two snapshots know the topic
        snapshots = machine.deliveries[0].snapshots
        saved = snapshots.saved
        story.configure("f", priority=7)
        for _ in range(10):
            story.append("f", 1, 8 * KIB)
        machine.checkpoint()  # the WAL is long: a snapshot follows
        assert snapshots.saved == saved + 1
        machine.tick_wals()
        machine.abandon()
        directory = machine.data.snapshots(0)
        newest = max(disk.listdir(directory), key=lambda name: paths.parse_snapshot(name) or 0)
        disk.damage(directory / newest, 0, b"XXXX")
        with Machine(disk, previous=machine, power_lost=True) as successor:
            assert story.on(successor.open()).machine.state("f")["config"]["priority"] == 7


@pytest.mark.fault("REC-01")
def test_first_records_of_a_new_directory_survive_at_once(disk: FakeDisk) -> None:
    """No checkpoint, no snapshot has been taken yet: all there is is the first WAL file and its name."""
    with Machine(disk) as machine:
        machine._memory.create()
        machine.start_wal(0)
        machine.start_delivery(0, absorb=False)
        story = Story(machine)
        story.topic("f", "fsync")
        story.append("f", 2)
        machine.abandon()
        for seed in range(7):
            with Machine(disk.image(seed), previous=machine, power_lost=True) as successor:
                assert story.on(successor.open()).problems(power_lost=True) == []


@pytest.mark.fault("ROT-03")
def test_absorbed_files_leave_oldest_first(disk: FakeDisk) -> None:
    """Wherever the power goes while they are given back: what is left is a log without a hole."""
    directory = ROOT / "wal" / "shard-00"
    disk.mkdir(directory)
    files = [directory / paths.wal_file_name(lsn) for lsn in (0, KIB, 2 * KIB, 3 * KIB)]
    for path in files:
        disk.open(path, write=True, create=True).pwrite([bytes(KIB)], 0)
    disk.sync_filesystem(ROOT)
    for call in range(1, 7):
        for seed in range(35):
            copy = disk.image(seed)
            faults = FaultFs(copy)
            faults.crash_after = call
            spares = Spares(faults, directory, KIB, lambda: 0)
            with suppress(Crashed):
                for path in files[:3]:
                    spares.recycle(path)
            left = [path for path in files if copy.image(seed).exists(path)]
            assert left == files[len(files) - len(left) :], f"call {call}, seed {seed}"


@pytest.mark.fault("PROC-10")
def test_successor_of_a_wal_shard_syncs_what_was_only_written(disk: FakeDisk) -> None:
    """Its predecessor died between the write and the sync; the batch is acknowledged, and then the power goes."""
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        payloads = [b"written, not synced"]
        batch = story.oracle.submit("f", "p0", payloads)
        ticket = machine.begin_append("f", payloads)
        machine.turn_delivery_only()
        committer = machine.wals[0]._committer
        assert committer._write(committer._gather())
        machine.replace_wal(0)
        story.oracle.acked(batch, machine.finish_append("f", ticket).first_seq)
        machine.abandon()
        for seed in range(7):
            with Machine(disk.image(seed), previous=machine, power_lost=True) as successor:
                assert story.on(successor.open()).problems(power_lost=True) == []


@pytest.mark.fault("DEL-03")
def test_deletes_outlive_the_wal_that_held_them(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        for n in range(4):
            story.append("f", 5, tag=("red", "green")[n % 2])
        story.checkpoint()
        story.delete("f", tag="red")
        story.delete("f", before_seq=8)
        story.checkpoint()
        marks = [path for path in disk.files() if path.suffix == ".del"]
        assert marks and not set(marks) & set(disk.unsynced())
        machine.forget_wal()
        assert story.problems(power_lost=False) == []
        machine.abandon()
        for seed in range(7):
            with Machine(disk.image(seed), previous=machine, power_lost=True) as successor:
                assert story.on(successor.open()).problems(power_lost=True) == []


@pytest.mark.fault("EVI-02")
def test_head_outlives_the_last_record(disk: FakeDisk) -> None:
    """Everything was deleted, the segments are gone and the WAL has forgotten: seqs still go on where they were."""
    with Machine(disk, segment_max_age_ms=100) as machine:
        story = Story(machine.open())
        for name, durability in (("f", "fsync"), ("d", "disk"), ("m", "memory")):
            story.topic(name, durability)
            story.append(name, 5, tag="x")
            story.delete(name, before_seq=6) if name != "d" else story.delete(name, tag="x")
        story.checkpoint()
        machine.advance(200)
        machine.tick()
        machine.forget_wal()
        machine.stop()
        with Machine(disk, previous=machine) as successor:
            successor.open()
            assert successor.damage() == []
            assert [successor.state(name)["next_seq"] for name in "fdm"] == [6, 6, 6]
            assert not [path for path in disk.files() if path.suffix == ".data"]


@pytest.mark.fault("TOP-01")
def test_records_that_went_with_their_topic_are_not_missed(disk: FakeDisk) -> None:
    """The snapshot still knows the topic, its segments are gone, and of its records the WAL has the newest only."""
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        story.append("f", 5)
        machine.forget_wal()
        story.append("f", 1)
        machine.ask("f", Op.DELETE_TOPIC)
        machine.abandon()
        for seed in range(7):
            with Machine(disk.image(seed), previous=machine, power_lost=True) as successor:
                successor.open()
                assert successor.damage() == []
                assert "f" not in successor.topics()


@pytest.mark.fault("DED-01")
@pytest.mark.parametrize("forgotten", [False, True])
def test_retry_after_a_crash_is_answered_and_not_stored_again(disk: FakeDisk, forgotten: bool) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        for _ in range(5):
            story.append("f", 2, producer=7)
        if forgotten:
            machine.forget_wal()
        machine.abandon()
        with Machine(disk.image(0), previous=machine, power_lost=True) as successor:
            again = story.on(successor.open())
            answer = successor.append("f", again._sent[("f", 7)][-1].payloads, producer=7, number=5)
            assert (answer.first_seq, answer.deduped) == (9, True)
            assert again.problems(power_lost=True) == []
            assert successor.append("f", [b"next"], producer=7, number=6).first_seq == 11


@pytest.mark.fault("DED-02")
def test_batch_that_never_became_whole_is_not_taken_for_stored(disk: FakeDisk) -> None:
    """Its writer died with the batch half in the ring; somebody else got its seqs; then its producer tries again."""
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        ticket = machine.begin_append("f", [bytes(5 * 1024)] * 5, producer=7, number=1)
        machine.turn_delivery_only()
        assert not ticket.wire.answered(ticket.request_id)
        machine.replace_delivery(0)
        story.append("f", 6)
        machine.abandon()
        with Machine(disk, previous=machine) as successor:
            again = story.on(successor.open())
            assert again.problems(power_lost=False) == []
            answer = successor.append("f", [b"a", b"b"], producer=7, number=1)
            assert (answer.first_seq, answer.deduped) == (7, False)


@pytest.mark.fault("VIS-01")
def test_nothing_is_visible_before_its_class_is_met(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        ticket = machine.begin_append("f", [b"early"])
        machine.turn_delivery_only()
        ring = machine.deliveries[0].outlets[0]._ring
        assert ring.head > ring.synced_pos
        assert machine.delivery_of("f").catalog.by_name["f"].seqs.visible == 0
        machine.finish_append("f", ticket)
        assert ring.synced_pos == ring.head
        assert machine.ask("f", Op.STATE)["head_seq"] == 1
