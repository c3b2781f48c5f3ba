"""The operation log as it is read: whole, or not at all, or with what is missing told."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from chat_kit import in_loop

from topicd.errors import FormatError, StorageCorrupt
from topicd.paths import RunDir
from topicd.shards.chat.log import OperationLog
from topicd.shards.chat.operations import Clean, Entry, LogEntry, Unreadable


class Record(NamedTuple):
    seq: int
    data: bytes


class Topic:
    """What is left of it, handed out in pages of two; damaged: first and last seq of what cannot be read."""

    def __init__(self, *seqs: int) -> None:
        self._records = [Record(seq, Entry(seq, [Clean(seq)]).pack()) for seq in seqs]
        self.damaged: tuple[int, int] = (0, 0)

    async def fetch(self, topic: str, after: int, **_: Any) -> list[Record]:
        first, last = self.damaged
        if first <= after + 1 <= last:
            raise StorageCorrupt("a frame fails its checksum", first_seq=first, last_seq=last)
        end = first if first > after else 1_000
        return [record for record in self._records if after < record.seq < end][:2]


def log_of(tmp_path: Any, *seqs: int) -> OperationLog:
    made = OperationLog(RunDir(tmp_path), 1, 0, "disk")
    made._client = Topic(*seqs)  # type: ignore[assignment]
    return made


async def read(oplog: OperationLog, after: int, up_to: int, **how: Any) -> list[tuple[int, LogEntry]]:
    return [entry async for piece in oplog.read(after, up_to, **how) for entry in piece]


HOLES = [
    # what is there, from where to where it is read, (seq, entries) of what is told as missing
    ((4, 5, 6), (0, 6), [(3, 3)]),  # its beginning
    ((1, 2, 5, 6), (0, 6), [(4, 2)]),  # between two pages
    ((1, 3, 4), (0, 4), [(2, 1)]),  # within a page
    ((1, 2), (0, 5), [(5, 3)]),  # its end
    ((), (2, 4), [(4, 2)]),  # everything
    ((1, 9), (0, 5), [(5, 4)]),  # up to somewhere in a hole
    ((1, 4, 6, 7), (1, 7), [(3, 2), (5, 1)]),  # twice
]


@pytest.mark.parametrize(("seqs", "span", "missing"), HOLES)
@pytest.mark.fault("CHT-09")
@in_loop
async def test_what_the_log_has_no_more_is_an_error_or_told(
    tmp_path: Any, seqs: tuple[int, ...], span: tuple[int, int], missing: list[tuple[int, int]]
) -> None:
    oplog = log_of(tmp_path, *seqs)
    with pytest.raises(FormatError, match="any more"):
        await read(oplog, *span)
    found = await read(oplog, *span, over_holes=True)
    told = [(seq, entry.entries) for seq, entry in found if isinstance(entry, Unreadable)]
    assert told == missing
    there = [seq for seq, entry in found if isinstance(entry, Entry)]
    assert there == [seq for seq in seqs if span[0] < seq <= span[1]]
    # Nothing is passed over without a word: all seqs, once each, in order.
    assert [seq for seq, _ in found] == sorted(seq for seq, _ in found)
    assert len(there) + sum(count for _, count in told) == span[1] - span[0]


@pytest.mark.parametrize(
    ("damaged", "span", "told"),
    [
        ((3, 4), (0, 6), [(4, 2)]),
        ((1, 2), (0, 6), [(2, 2)]),
        ((5, 9), (0, 6), [(6, 2)]),  # beyond what is read
        ((1, 4), (2, 6), [(4, 2)]),  # from before it
    ],
)
@pytest.mark.fault("CHT-09")
@in_loop
async def test_what_is_damaged_in_the_log_is_an_error_or_told(
    tmp_path: Any, damaged: tuple[int, int], span: tuple[int, int], told: list[tuple[int, int]]
) -> None:
    oplog = log_of(tmp_path, 1, 2, 3, 4, 5, 6)
    oplog._client.damaged = damaged  # type: ignore[attr-defined]
    with pytest.raises(StorageCorrupt, match="fails its checksum"):
        await read(oplog, *span)
    found = await read(oplog, *span, over_holes=True)
    assert [(seq, entry.entries) for seq, entry in found if isinstance(entry, Unreadable)] == told
    good = [seq for seq in range(span[0] + 1, span[1] + 1) if not damaged[0] <= seq <= damaged[1]]
    assert [seq for seq, entry in found if isinstance(entry, Entry)] == good


@pytest.mark.fault("CHT-09")
@in_loop
async def test_damage_that_does_not_say_where_it_ends_is_an_error_either_way(tmp_path: Any) -> None:
    oplog = log_of(tmp_path, 1, 2, 3)

    async def fetch(topic: str, after: int, **_: Any) -> list[Record]:
        raise StorageCorrupt("somewhere")

    oplog._client.fetch = fetch  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageCorrupt):
        await read(oplog, 0, 3, over_holes=True)


@pytest.mark.parametrize("over_holes", [True, False])
@in_loop
async def test_a_log_that_is_whole_is_read_the_same_either_way(tmp_path: Any, over_holes: bool) -> None:
    found = await read(log_of(tmp_path, 1, 2, 3, 4, 5), 1, 4, over_holes=over_holes)
    assert [(seq, type(entry)) for seq, entry in found] == [(2, Entry), (3, Entry), (4, Entry)]
