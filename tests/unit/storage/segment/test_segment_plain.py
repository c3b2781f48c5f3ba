"""What plain_segments says is what load_segments says of the same files; of everything else it says nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.unit.storage.segment_kit import Topic, frames
from topicd._native import core
from topicd.paths import TOPIC_NAME_FILE
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.plain import Plain, plain_segments
from topicd.shards.storage.topic_label import Label, add_label


@pytest.fixture
def topic(disk: FakeDisk) -> Topic:
    topic = Topic()
    topic.append(disk, 10, seal=True)
    topic.append(disk, 10, seal=True)
    topic.append(disk, 5)
    add_label(disk, topic.dir, Label(topic.topic_id, "orders", {}, 1))
    disk.sync_filesystem(Path("/"))
    return topic


def looked(disk: FakeDisk, topic: Topic) -> Plain | None:
    (listing,) = disk.look_into([str(topic.dir)])
    return None if listing is None else plain_segments(str(topic.dir), topic.topic_id, listing)


def agrees(disk: FakeDisk, topic: Topic) -> bool:
    """Was anything said? If so, it is what loading says, which finds nothing to report and changes nothing."""
    said = looked(disk, topic)
    if said is None:
        return False
    before = disk.files()
    loaded = load_segments(disk, topic.dir, {})
    assert said.segments == loaded.segments
    assert (loaded.damage, loaded.gaps, loaded.cuts, loaded.marks, loaded.torn_bytes) == ([], [], [], {}, 0)
    assert disk.files() == before
    active = loaded.segments[-1] if loaded.segments and not loaded.segments[-1].sealed else None
    expected = frames(topic.topic_id, active.first_seq, active.count) if active else b""
    assert said.active == expected
    return True


def test_a_topic_as_a_clean_stop_leaves_it_is_plain(disk: FakeDisk, topic: Topic) -> None:
    assert agrees(disk, topic)
    topic.append(disk, 3, seal=True)  # no active one
    assert agrees(disk, topic)


def test_a_directory_that_is_missing_or_holds_a_label_only_is_plain(disk: FakeDisk, topic: Topic) -> None:
    empty = Topic(8)
    assert agrees(disk, empty)
    disk.mkdir(empty.dir)
    add_label(disk, empty.dir, Label(8, "empty", {}, 1))
    assert agrees(disk, empty)


@pytest.mark.parametrize("part", ["data", "idx", "tags"])
@pytest.mark.parametrize("first", [1, 11, 21])
def test_every_flipped_byte_is_left_to_loading_or_changes_nothing(
    disk: FakeDisk, topic: Topic, part: str, first: int
) -> None:
    path = topic.file(part, first)
    if not disk.exists(path):
        return
    raw = disk.files()[path]
    plain = 0
    for at in range(len(raw)):
        image = disk.image(1)
        image.damage(path, at, bytes([raw[at] ^ (1 << at % 8)]))
        plain += agrees(image, topic)
    # Of a sealed segment only seal, sizes and first record are looked at, as loading does.
    if first == 21 or part == "tags":
        assert plain < len(raw) and (first != 21 or plain == 0)


def _swapped(disk: FakeDisk, topic: Topic) -> None:
    a, b = topic.file("data", 1), topic.file("data", 11)
    disk.rename(a, Path("/data/aside"))
    disk.rename(b, a)
    disk.rename(Path("/data/aside"), b)


def _foreign(disk: FakeDisk, topic: Topic) -> None:
    disk.open(topic.file("data", 21), write=True).pwrite([frames(9, 21, 5)], 0)


def _torn(disk: FakeDisk, topic: Topic) -> None:
    file = disk.open(topic.file("data", 21), write=True)
    file.pwrite([b"torn"], file.size())


def _behind(disk: FakeDisk, topic: Topic) -> None:
    """A frame that the index does not name."""
    file = disk.open(topic.file("data", 21), write=True)
    file.pwrite([frames(topic.topic_id, 26, 1)], file.size())


def _jump(disk: FakeDisk, topic: Topic) -> None:
    """Frames whose seqs jump, and an index that names them: a rewritten segment that lost its seal."""
    data = frames(topic.topic_id, 21, 2) + frames(topic.topic_id, 25, 1)
    for part, content in (("data", data), ("idx", core.index_entries(data, 0, len(data), 0))):
        file = disk.open(topic.file(part, 21), write=True)
        file.truncate(0)
        file.pwrite([content], 0)


def _cut(part: str, first: int) -> Callable[[FakeDisk, Topic], None]:
    def cut(disk: FakeDisk, topic: Topic) -> None:
        file = disk.open(topic.file(part, first), write=True)
        file.truncate(file.size() - 1)

    return cut


def _gone(part: str, first: int) -> Callable[[FakeDisk, Topic], None]:
    return lambda disk, topic: disk.unlink(topic.file(part, first))


def _whole_segment(disk: FakeDisk, topic: Topic) -> None:
    for part in ("data", "idx", "tags"):
        disk.unlink(topic.file(part, 11))


def _left(name: str) -> Callable[[FakeDisk, Topic], None]:
    return lambda disk, topic: disk.open(topic.dir / name, write=True, create=True).close()


CHANGES: dict[str, Callable[[FakeDisk, Topic], None]] = {
    "exchanged": _swapped,
    "foreign": _foreign,
    "torn": _torn,
    "behind the index": _behind,
    "jump": _jump,
    "marks": lambda disk, topic: append_marks(disk, topic.dir, 1, [(3, 5)]),
    "no label": lambda disk, topic: disk.unlink(topic.dir / TOPIC_NAME_FILE),
    "unfinished": _left("seg-00000000000000000011.data.tmp"),
    "cut off": _left("seg-00000000000000000021.cut"),
    "unknown": _left("notes.txt"),
    "a segment is missing": _whole_segment,
    "an older one lost its seal": _gone("tags", 11),
    "a directory": lambda disk, topic: disk.mkdir(topic.file("del", 21)),
    **{f"{part} of {first} cut": _cut(part, first) for part in ("data", "idx") for first in (1, 21)},
    **{f"{part} of {first} gone": _gone(part, first) for part in ("data", "idx") for first in (1, 21)},
    "seal cut": _cut("tags", 11),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_out_of_the_ordinary_is_left_to_loading(disk: FakeDisk, topic: Topic, change: str) -> None:
    CHANGES[change](disk, topic)
    disk.sync_filesystem(Path("/"))
    assert looked(disk, topic) is None


def test_a_bad_sector_is_left_to_loading(disk: FakeDisk, topic: Topic) -> None:
    for path in disk.files():
        image = disk.image(1)
        image.spoil(path, 0, 1)
        assert looked(image, topic) is None, path
