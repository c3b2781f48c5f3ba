"""Finding frames again behind bytes that are none."""

from __future__ import annotations

from random import Random
from typing import cast

import pytest

from tests.unit.storage.segment_kit import frames
from topicd import frames as frame_codec
from topicd.frames import FrameType
from topicd.limits import MAX_FRAME
from topicd.shards.storage.segment import reindex as module
from topicd.shards.storage.segment.index import DAMAGED, GONE, entry_at, entry_count, flagged, tiled_entries
from topicd.shards.storage.segment.reindex import next_frame, reindex

ONE = frames(7, 5, 1)


@pytest.mark.parametrize("topic_id", [7, None])
def test_the_next_frame_is_found_wherever_it_begins(topic_id: int | None) -> None:
    junk = Random(1).randbytes(300)
    for before in (0, 1, 5, 6, 7, 100, 299, 300):
        assert next_frame(memoryview(junk[:before] + ONE), 0, topic_id) == before
        assert next_frame(memoryview(junk[:before] + ONE), before, topic_id) == before
        assert next_frame(memoryview(junk[:before] + ONE), before + 1, topic_id) is None
        assert next_frame(memoryview(bytes(before) + ONE + ONE), before + 1, topic_id) == before + len(ONE)


@pytest.mark.parametrize("kind", [1, 15, 16, 63])
def test_every_type_that_the_codec_takes_is_found_behind_bad_bytes(kind: int) -> None:
    control = frame_codec.control_frame(cast("FrameType", kind), 7, 1, 2, {"a": 1})
    assert next_frame(memoryview(b"junk!" + control), 0, None) == 5


@pytest.mark.parametrize("topic_id", [7, None])
def test_the_search_goes_over_the_seams_of_its_chunks(topic_id: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEARCH_CHUNK", 64)
    for before in range(200):
        assert next_frame(memoryview(bytes(before) + ONE), 0, topic_id) == before


@pytest.mark.parametrize("topic_id", [7, None])
def test_what_only_looks_like_a_frame_is_passed_over(topic_id: int | None) -> None:
    bad = bytearray(ONE)
    bad[-1] ^= 1
    assert next_frame(memoryview(bytes(bad) * 3), 0, topic_id) is None
    assert next_frame(memoryview(bytes(bad) * 3 + ONE), 0, topic_id) == 3 * len(ONE)
    assert next_frame(memoryview(ONE[:-1]), 0, topic_id) is None
    assert next_frame(memoryview(b""), 0, topic_id) is None


def test_a_search_by_topic_passes_over_others() -> None:
    view = memoryview(frames(8, 1, 2) + ONE)
    assert next_frame(view, 0, 7) == len(view) - len(ONE)
    assert next_frame(view, 0, None) == 0


def test_a_large_wasteland_is_searched_in_no_time() -> None:
    view = memoryview(bytes(3 * MAX_FRAME) + ONE)
    assert next_frame(view, 0, 7) == next_frame(view, 0, None) == 3 * MAX_FRAME


@pytest.mark.parametrize("before", range(1, 12))
def test_seqs_of_the_next_segment_are_not_taken(before: int) -> None:
    data = frames(7, 1, 6) + b"junk" + frames(7, 8, 3)
    found = reindex(memoryview(data), 1, 7, None, before)
    assert entry_count(found.entries) < before
    whole = reindex(memoryview(data), 1, 7, None)
    assert whole.entries.startswith(found.entries)
    assert found.end + found.bad_tail == len(data)


@pytest.mark.parametrize("seed", range(300))
def test_an_index_of_anything_tiles_and_serves_only_what_was_written(seed: int) -> None:
    """Frames taken out, bytes overwritten, cut out, put in: entries tile, and believed ones are true frames."""
    random = Random(seed)
    whole = {seq: frames(7, seq, 1) for seq in range(1, 31)}
    data = bytearray(b"".join(frame for seq, frame in whole.items() if random.random() < 0.9))
    for _ in range(random.randint(0, 4)):
        at = random.randrange(len(data))
        kind = random.choice(["flip", "cut", "put", "zero", "copy"])
        if kind == "flip":
            data[at] ^= 1 << random.randrange(8)
        elif kind == "cut":
            del data[at : at + random.randint(1, 150)]
        elif kind == "put":
            data[at:at] = random.randbytes(random.randint(1, 80))
        elif kind == "copy":
            data[at:at] = whole[random.randint(1, 30)]
        else:
            data[at : at + 60] = bytes(len(data[at : at + 60]))
    found = reindex(memoryview(data), 1, 7, random.choice([None, 30]))
    count = entry_count(found.entries)
    assert tiled_entries(found.entries) == count
    damaged = {s for a, b in flagged(found.entries, 1, DAMAGED) for s in range(a, b + 1)}
    gone = {s for a, b in flagged(found.entries, 1, GONE) for s in range(a, b + 1)}
    assert sorted(damaged) == [s for a, b in found.damaged for s in range(a, b + 1)]
    for seq in range(1, count + 1):
        if seq not in damaged | gone:
            offset, length, _, _ = entry_at(found.entries, seq - 1)
            assert bytes(data[offset : offset + length]) == whole[seq]
    assert found.end + found.bad_tail == len(data)
