from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk, FakeFile
from tests.support.faultfs import FaultFs
from tests.unit.storage.segment_kit import Topic, frames, tag_of, ts_of
from topicd._native import core
from topicd.disk.fs import Fs, RealFs, tmp_path
from topicd.errors import StorageCorrupt, Throttled
from topicd.model import TagMatch
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.reader import SegmentReader, Span
from topicd.shards.storage.segment.reader_cache import GLANCES, GLANCES_APART, ReaderCache
from topicd.shards.storage.segment.rewrite import rewrite_segment

COUNT = 40


@pytest.fixture(params=["sealed", "active"])
def reader(request: pytest.FixtureRequest, disk: FakeDisk, topic: Topic) -> SegmentReader:
    topic.next_seq = topic.segment = 101
    topic.append(disk, COUNT, seal=request.param == "sealed")
    info = load_segments(disk, topic.dir).segments[0]
    assert info.sealed == (request.param == "sealed")
    return SegmentReader(disk, topic.dir, info).open()


def test_entries_and_bytes(reader: SegmentReader) -> None:
    data = frames(7, 101, COUNT)
    assert bytes(reader.read(101, 140)) == data
    assert reader.entry(101).offset == 0
    assert reader.entry(140).ts == ts_of(140)
    assert bytes(reader.read(105, 107)) == frames(7, 105, 3)
    assert reader.bytes_of(105, 107) == len(frames(7, 105, 3))
    for seq in (100, 141):
        with pytest.raises(IndexError, match=f"seq {seq} is not in segment 101..140"):
            reader.entry(seq)
    with pytest.raises(ValueError, match="backwards"):
        reader.read(107, 105)


def test_what_is_forgotten_is_what_lies_up_to_a_seq(reader: SegmentReader, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    monkeypatch.setattr(FakeFile, "forget", lambda file, size: forgotten.append(size))
    reader.forget(104)
    reader.forget(140)
    wanted = [] if reader.checked else [len(frames(7, 101, 4)), len(frames(7, 101, COUNT))]
    assert forgotten == wanted
    assert bytes(reader.read(101, 140)) == frames(7, 101, COUNT)


def test_locate_obeys_both_limits_and_gives_at_least_one(reader: SegmentReader) -> None:
    size = [reader.entry(seq).length for seq in range(101, 141)]
    assert reader.locate(0, 5, 1 << 20) == Span(101, 105, 0, sum(size[:5]))
    assert reader.locate(110, 1000, 1 << 20) == Span(111, 140, sum(size[:10]), sum(size))
    assert reader.locate(100, 1000, sum(size[:7])) == Span(101, 107, 0, sum(size[:7]))
    assert reader.locate(100, 1000, sum(size[:7]) - 1) == Span(101, 106, 0, sum(size[:6]))
    assert reader.locate(100, 1000, 0) == Span(101, 101, 0, size[0])
    assert reader.locate(140, 10, 100) is None
    assert reader.locate(100, 0, 100) is None


def test_seqs_by_time(reader: SegmentReader) -> None:
    for ts in range(ts_of(101) - 1, ts_of(140) + 2):
        wanted = next((seq for seq in range(101, 141) if ts_of(seq) >= ts), 141)
        assert reader.seq_at_ts(ts) == wanted
        span = reader.locate(ts, 1, 1 << 20, ts=True)
        assert (span.first_seq if span else 141) == wanted


def test_verify_accepts_what_was_written(reader: SegmentReader) -> None:
    reader.verify(101, 140)
    reader.verify(120, 120)


@pytest.mark.parametrize("where", ["length", "header", "payload", "checksum"])
def test_verify_names_exactly_the_damaged_record(disk: FakeDisk, topic: Topic, where: str) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    entry = SegmentReader(disk, topic.dir, info).open().entry(17)
    at = {"length": 0, "header": 15, "payload": 45, "checksum": entry.length - 1}[where]
    disk.damage(topic.file("data", 1), entry.offset + at, b"\xa5")
    reader = SegmentReader(disk, topic.dir, info).open()
    reader.verify(1, 16)
    reader.verify(18, 40)
    for first, last in ((1, 40), (17, 17), (10, 17), (17, 20)):
        with pytest.raises(StorageCorrupt) as caught:
            reader.verify(first, last)
        detail = {"segment": str(topic.file("data", 1)), "first_seq": 17, "last_seq": 17}
        assert caught.value.detail == detail


def test_verify_names_the_first_damaged_stretch(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    reader = SegmentReader(disk, topic.dir, info).open()
    for seq in (5, 6, 7, 20):
        disk.damage(topic.file("data", 1), reader.entry(seq).offset + 20, b"\xa5")
    reader = SegmentReader(disk, topic.dir, info).open()
    with pytest.raises(StorageCorrupt) as caught:
        reader.verify(1, 40)
    assert (caught.value.detail["first_seq"], caught.value.detail["last_seq"]) == (5, 7)


def test_frames_of_another_topic_are_not_served(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    disk.damage(topic.file("data", 1), 0, frames(8, 1, COUNT))
    with pytest.raises(StorageCorrupt):
        SegmentReader(disk, topic.dir, info).open().verify(1, 40)


def test_the_active_segment_grows_under_its_reader(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 10)
    info = load_segments(disk, topic.dir).segments[0]
    reader = SegmentReader(disk, topic.dir, info).open()
    topic.append(disk, 10)
    with pytest.raises(IndexError):
        reader.entry(11)
    info.count, info.data_bytes = 20, topic.data_offset
    assert bytes(reader.read(1, 20)) == frames(7, 1, 20)


def test_data_cut_short_is_readable_up_to_the_cut(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    cut = SegmentReader(disk, topic.dir, info).open().entry(30).offset + 5
    file = disk.open(topic.file("data", 1), write=True)
    file.truncate(cut)
    file.close()
    reader = SegmentReader(disk, topic.dir, info).open()
    reader.verify(1, 29)
    with pytest.raises(StorageCorrupt) as caught:
        reader.read(1, 40)
    assert (caught.value.detail["first_seq"], caught.value.detail["last_seq"]) == (30, 40)


@pytest.mark.parametrize("part", ["data", "idx"])
@pytest.mark.parametrize("seal", [True, False])
def test_a_missing_file_is_corruption_of_the_whole_segment(disk: FakeDisk, topic: Topic, part: str, seal: bool) -> None:
    topic.append(disk, COUNT, seal=seal)
    info = load_segments(disk, topic.dir).segments[0]
    disk.unlink(topic.file(part, 1))
    with pytest.raises(StorageCorrupt) as caught:
        SegmentReader(disk, topic.dir, info).open()
    assert (caught.value.detail["first_seq"], caught.value.detail["last_seq"]) == (1, 40)


def test_a_reader_that_opens_in_the_middle_of_a_swap_sees_a_matching_pair(disk: FakeDisk, topic: Topic) -> None:
    """New data under its final name, its index still under the temporary one."""
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    old_index = disk.files()[topic.file("idx", 1)]
    rewrite_segment(disk, topic.dir, info, Ranges([(1, 20)]))
    disk.rename(topic.file("idx", 1), tmp_path(topic.file("idx", 1)))
    file = disk.open(topic.file("idx", 1), write=True, create=True)
    file.pwrite([old_index], 0)
    file.close()
    reader = SegmentReader(disk, topic.dir, info).open()
    reader.verify(1, 40)
    assert bytes(reader.read(1, 40)) == frames(7, 21, 20)


def test_readers_racing_a_rewrite_never_see_a_wrong_byte(real: Topic) -> None:
    fs = RealFs()
    real.append(fs, 200, seal=True)
    info = load_segments(fs, real.dir).segments[0]
    stop, wrong = threading.Event(), list[str]()

    def read() -> None:
        while not stop.is_set():
            try:
                reader = SegmentReader(fs, real.dir, info).open()
                reader.verify(1, 200)
                if core.decode_frames(reader.read(200, 200), 0, len(reader.read(200, 200)))[0][0] != 200:
                    wrong.append("record")
            except Exception as error:
                wrong.append(repr(error))

    thread = threading.Thread(target=read)
    thread.start()
    now = info
    for last in range(1, 60):
        now = rewrite_segment(fs, real.dir, now, Ranges([(1, last)]))
    stop.set()
    thread.join()
    assert wrong == []


def test_tags_of_a_sealed_segment(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, COUNT, seal=True)
    reader = SegmentReader(disk, topic.dir, load_segments(disk, topic.dir).segments[0]).open()
    assert reader.tags().find(TagMatch(b"green")) == [s for s in range(1, 41) if tag_of(s) == b"green"]
    assert reader.tags() is reader.tags()


@pytest.mark.parametrize("dead", [[], [(1, 5)], [(30, 40)]])
def test_a_rotten_index_is_derived_from_the_data(disk: FakeDisk, topic: Topic, dead: list[tuple[int, int]]) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    if dead:
        info = rewrite_segment(disk, topic.dir, info, Ranges(dead))
    whole = SegmentReader(disk, topic.dir, info).open()
    first_offset = whole.entry(11).offset.to_bytes(4, "little")
    # Entry 10 now points to the frame of 11: valid bytes, but of another record.
    disk.damage(topic.file("idx", 1), 9 * 20, first_offset)
    before = disk.files()
    reader = SegmentReader(disk, topic.dir, info).open()
    reader.verify(1, 40)
    assert bytes(reader.read(10, 10)) == frames(7, 10, 1)
    assert [reader.entry(seq)[:2] for seq in range(1, 41)] == [whole.entry(seq)[:2] for seq in range(1, 41)]
    assert disk.files() == before


def test_a_rotten_index_of_data_cut_short_invents_nothing(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    cut = SegmentReader(disk, topic.dir, info).open().entry(30).offset
    disk.open(topic.file("data", 1), write=True).truncate(cut)
    disk.damage(topic.file("idx", 1), 39 * 20, b"\xff" * 8)
    reader = SegmentReader(disk, topic.dir, info).open()
    reader.verify(1, 29)
    with pytest.raises(StorageCorrupt) as caught:
        reader.read(29, 40)
    assert (caught.value.detail["first_seq"], caught.value.detail["last_seq"]) == (30, 40)


def test_a_rotten_tag_table_is_derived_from_the_data(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]
    for at in (20, 120):
        disk.damage(topic.file("tags", 1), at, b"\xa5")
        reader = SegmentReader(disk, topic.dir, info).open()
        assert reader.tags().find(TagMatch(b"green")) == [s for s in range(1, 41) if tag_of(s) == b"green"]
    disk.unlink(topic.file("tags", 1))
    assert len(SegmentReader(disk, topic.dir, info).open().tags().find(TagMatch(b"", prefix=True))) == 30


def test_close_twice_and_use_after_close(reader: SegmentReader) -> None:
    frame = reader.read(101, 101)
    reader.close()
    reader.close()
    assert bytes(frame) == frames(7, 101, 1)
    if not reader.checked:
        with pytest.raises(ValueError, match="not open"):
            reader.read(101, 101)


# ---- the cache ----


@pytest.fixture
def segments(real: Topic) -> Topic:
    for _ in range(6):
        real.append(RealFs(), 20, seal=True)
    real.append(RealFs(), 20)
    return real


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_the_cache_is_bounded_by_number_and_keeps_the_latest(segments: Topic) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    cache = ReaderCache(RealFs(), 1 << 30, max_readers=3)
    readers = [cache.get(7, segments.dir, info) for info in infos[:3]]
    assert cache.get(7, segments.dir, infos[0]) is readers[0]
    cache.get(7, segments.dir, infos[3])
    assert len(cache) == 3
    assert cache.get(7, segments.dir, infos[0]) is readers[0]
    assert cache.get(7, segments.dir, infos[1]) is not readers[1]


def test_the_cache_is_bounded_by_held_bytes_but_keeps_one(segments: Topic) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    one = infos[0].count * 20
    cache = ReaderCache(RealFs(), one * 5 // 2)
    for info in infos[:6]:
        cache.get(7, segments.dir, info)
        assert cache.held_bytes <= one * 5 // 2
    assert len(cache) == 2
    tiny = ReaderCache(RealFs(), 0)
    reader = tiny.get(7, segments.dir, infos[0])
    assert len(tiny) == 1
    assert tiny.get(7, segments.dir, infos[0]) is reader


def test_a_view_outlives_its_reader_and_files_are_given_back(segments: Topic) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    before = open_files()
    cache = ReaderCache(RealFs(), 1 << 30)
    view = cache.get(7, segments.dir, infos[0]).read(1, 20)
    active = cache.get(7, segments.dir, infos[-1])
    assert open_files() > before
    cache.drop(7)
    assert len(cache) == cache.held_bytes == 0
    assert bytes(view) == frames(7, 1, 20)
    assert bytes(active.read(121, 121)) == frames(7, 121, 1)
    del view, active
    assert open_files() == before


def test_drop_takes_one_segment_or_the_whole_topic(segments: Topic) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    cache = ReaderCache(RealFs(), 1 << 30)
    for topic_id in (7, 8):
        for info in infos[:3]:
            cache.get(topic_id, segments.dir, info)
    cache.drop(7, 1)
    cache.drop(7, 999)
    assert len(cache) == 5
    cache.drop(7)
    assert len(cache) == 3
    cache.clear()
    assert len(cache) == cache.held_bytes == 0


def test_a_segment_sealed_since_is_opened_anew(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 10)
    info = load_segments(disk, topic.dir).segments[0]
    cache = ReaderCache(disk, 1 << 30)
    active = cache.get(7, topic.dir, info)
    topic.append(disk, 10, seal=True)
    info.count, info.sealed = 20, True
    sealed = cache.get(7, topic.dir, info)
    assert sealed is not active
    assert sealed.checked
    assert bytes(sealed.read(1, 20)) == frames(7, 1, 20)
    assert bytes(active.read(1, 10)) == frames(7, 1, 10)


def test_few_records_are_read_without_a_map_until_a_segment_is_read_on_and_on(segments: Topic) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    cache = ReaderCache(RealFs(), 1 << 30)
    first = cache.glance(7, segments.dir, infos[0])
    span = first.locate(4, 5, 1 << 20)
    assert span is not None
    assert bytes(first.read_span(span)) == frames(7, 5, 5)
    assert cache.held_bytes == 0
    for _ in range(GLANCES - 1):
        assert cache.glance(7, segments.dir, infos[0]) is first
    checked = cache.glance(7, segments.dir, infos[0])
    assert checked.checked
    assert cache.glance(7, segments.dir, infos[0]) is cache.get(7, segments.dir, infos[0]) is checked
    assert len(cache) == 1


def test_one_segment_of_many_that_are_read_here_and_there_is_not_checked(segments: Topic) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    cache = ReaderCache(RealFs(), 1 << 30)
    for _ in range(2 * GLANCES):
        cache.glance(7, segments.dir, infos[0])
        for other in range(GLANCES_APART):
            cache.glance(100 + other, segments.dir, infos[1])
    assert cache.held_bytes == 0


def test_who_needs_the_index_gets_a_reader_that_has_checked_it(segments: Topic) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    cache = ReaderCache(RealFs(), 1 << 30)
    assert not cache.glance(7, segments.dir, infos[0]).checked
    assert cache.get(7, segments.dir, infos[0]).checked
    assert cache.glance(7, segments.dir, infos[0]).checked


def test_readers_leave_most_descriptors_to_connections(segments: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    infos = load_segments(RealFs(), segments.dir).segments
    monkeypatch.setattr("resource.getrlimit", lambda _: (32, 32))
    cache = ReaderCache(RealFs(), 1 << 30)
    before = open_files()
    for info in infos[:6]:
        cache.glance(7, segments.dir, info)
    assert open_files() - before == 8


def test_many_threads_may_use_the_cache(segments: Topic) -> None:
    fs: Fs = RealFs()
    infos = load_segments(fs, segments.dir).segments
    cache = ReaderCache(fs, 1 << 30, max_readers=2)
    wrong: list[str] = []

    def work(start: int) -> None:
        for turn in range(200):
            info = infos[(start + turn) % len(infos)]
            try:
                cache.get(7, segments.dir, info).verify(info.first_seq, info.last_seq)
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) <= 2
    assert Path(segments.dir).exists()


@pytest.mark.fault("RES-03")
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(("code", "limit"), [(errno.EMFILE, "descriptors"), (errno.ENOMEM, "memory")])
def test_what_the_process_may_not_have_now_is_no_damage(
    disk: FakeDisk, topic: Topic, code: int, limit: str, checked: bool
) -> None:
    topic.append(disk, COUNT, seal=True)
    info = load_segments(disk, topic.dir).segments[0]

    def read(fs: Fs) -> bytes:
        return bytes(SegmentReader(fs, topic.dir, info, checked=checked).open().read(1, COUNT))

    counting = FaultFs(disk, reads=True)
    right = read(counting)
    for number in range(1, counting.count + 1):
        with pytest.raises(Throttled) as caught:
            read(FaultFs(disk, number, code, reads=True))
        assert caught.value.detail["limit"] == limit
    assert read(disk) == right
