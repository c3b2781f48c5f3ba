from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.unit.storage.segment_kit import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.rewrite import rewrite_segment
from topicd.shards.storage.segment.verify import verify_segment


@pytest.fixture
def two(disk: FakeDisk, topic: Topic) -> Topic:
    """1..30 sealed with marks, 31..50 active."""
    topic.append(disk, 30, seal=True)
    append_marks(disk, topic.dir, 1, [(3, 9), (25, 30)])
    topic.append(disk, 20)
    return topic


def problems(disk: FakeDisk, topic: Topic, first: int) -> list[tuple[str, int, int, bool]]:
    before = disk.files()
    fs = FaultFs(disk)
    found = [(d.path.suffix, d.first_seq, d.last_seq, d.repaired) for d in verify_segment(fs, topic.dir, first)]
    assert fs.calls == []
    assert disk.files() == before
    return found


def test_whole_segments_have_no_problem(disk: FakeDisk, two: Topic) -> None:
    assert problems(disk, two, 1) == problems(disk, two, 31) == []
    rewrite_segment(disk, two.dir, load_segments(disk, two.dir).segments[0], Ranges([(3, 9), (25, 30)]))
    assert problems(disk, two, 1) == []


def damage(part: str, offset: int, first: int = 1) -> Callable[[FakeDisk, Topic], None]:
    return lambda disk, topic: disk.damage(topic.file(part, first), offset, b"\xa5\x5a")


def cut(part: str, size: int, first: int = 1) -> Callable[[FakeDisk, Topic], None]:
    return lambda disk, topic: disk.open(topic.file(part, first), write=True).truncate(size)


def lose(part: str, first: int = 1) -> Callable[[FakeDisk, Topic], None]:
    return lambda disk, topic: disk.unlink(topic.file(part, first))


CASES: dict[str, tuple[Callable[[FakeDisk, Topic], None], list[tuple[str, int, int, bool]]]] = {
    "rotten frame": (damage("data", 50), [(".data", 1, 1, False)]),
    "rotten index": (damage("idx", 104), [(".idx", 1, 30, True)]),
    "rotten seal": (damage("tags", 20), [(".tags", 1, 1, True)]),
    "rotten tag table": (damage("tags", 100), [(".tags", 1, 1, False)]),
    "rotten mark": (damage("del", 2), [(".del", 1, 1, False)]),
    "data cut": (cut("data", 70), [(".data", 2, 2, False), (".data", 3, 30, False)]),
    "data empty": (cut("data", 0), [(".data", 1, 30, False)]),
    "index cut": (cut("idx", 100), [(".idx", 1, 30, True)]),
    "data lost": (lose("data"), [(".data", 1, 30, False)]),
    "index lost": (lose("idx"), [(".idx", 1, 30, True)]),
    "seal lost": (lose("tags"), []),
    "rotten frame of the active one": (damage("data", 50, 31), [(".data", 31, 31, False)]),
    "torn tail of the active one": (cut("data", 1000, 31), [(".data", 43, 43, False), (".data", 44, 50, False)]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_problem_is_named_and_nothing_is_touched(disk: FakeDisk, two: Topic, name: str) -> None:
    harm, expected = CASES[name]
    harm(disk, two)
    assert problems(disk, two, 31 if "active" in name else 1) == expected


def test_bytes_that_belong_to_no_record(disk: FakeDisk, two: Topic) -> None:
    file = disk.open(two.file("data"), write=True)
    file.pwrite([bytes(99)], file.size())
    assert problems(disk, two, 31) == [(".data", 51, 50, True)]
