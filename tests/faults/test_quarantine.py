"""A file of a segment is missing, empty, cut off, overwritten, a directory, or another topic's, wherever its frames
lie: the start serves the rest, reads say what is missing, and nothing that is not understood is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.machine import Machine
from tests.faults.tiering import TOPIC, TieredMachine, World, moved, parts_of
from tests.support.fakedisk import FakeDisk
from topicd.errors import StorageCorrupt, TopicdError
from topicd.shards.storage.segment.info import Lies
from topicd.shards.storage.segment.names import COLD, DATA, IDX, PACKED, TAGS
from topicd.shards.storage.segment.places import resolve

FIRST, LAST = 9, 16  # the segment that meets it
STAYS = {
    Lies.HERE: {"hot_retain_segments": 0},
    Lies.PACKED: {"cold_dir": ""},
    Lies.COLD: {"compress": "none"},
    Lies.COLD_PACKED: {},
}
FRAMES = {Lies.HERE: DATA, Lies.PACKED: PACKED, Lies.COLD: DATA, Lies.COLD_PACKED: PACKED}


def overwritten(disk: FakeDisk, path: Path, data: bytes) -> None:
    disk.unlink(path)
    file = disk.open(path, write=True, create=True)
    file.pwrite([data], 0)
    file.sync()
    disk.sync_dir(path.parent)


def missing(disk: FakeDisk, path: Path) -> None:
    disk.unlink(path)


def empty(disk: FakeDisk, path: Path) -> None:
    overwritten(disk, path, b"")


def cut_off(disk: FakeDisk, path: Path) -> None:
    overwritten(disk, path, disk.files()[path][: len(disk.files()[path]) // 2])


def noise(disk: FakeDisk, path: Path) -> None:
    size = len(disk.files()[path])
    overwritten(disk, path, bytes((n * 89 + 41) % 251 for n in range(size)))


def flipped(disk: FakeDisk, path: Path) -> None:
    data = bytearray(disk.files()[path])
    data[len(data) // 2] ^= 4
    overwritten(disk, path, bytes(data))


def directory(disk: FakeDisk, path: Path) -> None:
    disk.unlink(path)
    disk.mkdir(path)


def anothers(disk: FakeDisk, path: Path) -> None:
    """The file of the same name of another topic."""
    other = path.parent.with_name(f"{int(path.parent.name, 16) + 1:016x}") / path.name
    overwritten(disk, path, disk.files()[other])


FAULTS = [missing, empty, cut_off, noise, flipped, directory, anothers]


def world_of(lies: Lies) -> World:
    """Two topics with the same seqs; the segments from 1 to 16 of both lie there."""
    world = World(**STAYS[lies])
    world.machine.configure("other", durability="fsync")
    for start in range(0, 40, 8):
        for number in range(start, start + 8):
            world.machine.append("other", [b"other %d" % number])
        world.machine.checkpoint()
    moved(world.machine)
    _, topic = parts_of(world.machine)
    assert [info.lies for info in topic.contents.segments[:2]] == [lies, lies]
    world.machine.stop()
    return world


def files_of(world: World, lies: Lies) -> Iterator[Path]:
    parts, topic = parts_of(world.machine)
    place = resolve(parts.place.topic_dir(topic.id), FIRST)
    if lies.cold:
        assert parts.tiering.cold is not None
        yield place.cold_file(parts.tiering.cold, FRAMES[lies])
        yield place.file(COLD)
    else:
        yield place.file(FRAMES[lies])
    yield place.file(IDX)
    yield place.file(TAGS)


def read_past(machine: Machine) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """What there is, and the ranges that reads name as lost."""
    found: dict[int, bytes] = {}
    lost: list[tuple[int, int]] = []
    at, head = 0, machine.state(TOPIC)["head_seq"]
    while at < head:
        try:
            records, next_from, _ = machine.read_some(TOPIC, at)
        except StorageCorrupt as error:
            lost.append((int(error.detail["first_seq"]), int(error.detail["last_seq"])))
            assert lost[-1][1] > at
            at = lost[-1][1]
            continue
        found.update((seen.seq, seen.data) for seen in records)
        at = next_from
    return found, lost


@pytest.mark.fault("TIR-10")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("lies", list(Lies), ids=lambda lies: lies.name)
def test_a_start_serves_the_rest_and_deletes_nothing_that_it_does_not_understand(
    lies: Lies, fault: Callable[[FakeDisk, Path], None]
) -> None:
    world = world_of(lies)
    try:
        for path in files_of(world, lies):
            problems = met(world, path, fault)
            assert not problems, f"{path}: " + "\n".join(problems)
    finally:
        world.close()


def met(world: World, path: Path, fault: Callable[[FakeDisk, Path], None]) -> list[str]:
    disk = world.disk.image(1)
    fault(disk, path)
    strange = disk.files().get(path, b"")
    machine: Any = TieredMachine(disk, previous=world.machine, **world.settings)
    try:
        machine.open()
        found, lost = read_past(machine)
        problems = [f"{seq} is not what was sent" for seq, data in found.items() if world.sent[seq] != data]
        unseen = world.sent.keys() - found.keys()
        problems += [f"{seq} is lost in another segment" for seq in unseen if not FIRST <= seq <= LAST]
        said = {seq for first, last in lost for seq in range(first, last + 1)}
        if unspoken := unseen - said:
            problems.append(f"reads say nothing of {sorted(unspoken)}")
        if unseen and not (machine.damage() or machine.delivery_of(TOPIC).counters.damage):
            problems.append("nobody reports it")
        if len(machine.read("other")) != 40:
            problems.append("another topic lost records")
        kept = [content for content in disk.files().values() if strange and strange in content]
        # Index and seal follow from the frames and are made anew; frames and pointer do not.
        if strange and not kept and not path.name.endswith((f".{IDX}", f".{TAGS}")):
            problems.append("its bytes are nowhere any more")
        machine.append(TOPIC, [b"more"])
        moved(machine)
        if machine.read_around_damage(TOPIC)[-1].data != b"more":
            problems.append("it does not go on")
        return problems
    except (TopicdError, OSError, AssertionError) as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        machine.close()
