"""From a batch to the ring: gathering, retries, runs, and that a bad batch leaves no trace."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Outcome, Writer, append_body
from tests.unit.delivery.kit import TS, seqs_of
from topicd.errors import OutOfOrder, TopicdError, TopicNotFound
from topicd.frames import FrameType, core
from topicd.ipc.protocol.wire import (
    APPEND,
    FLAG_COPY,
    FLAG_KEY,
    FLAG_PERFORMANCE,
    OP_APPEND,
    message,
)
from topicd.limits import IDEMPOTENCY_KEY_MAX
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.append import pieces


def raw(desk: Desk, body: bytes, flags: int = 0) -> Writer:
    writer = Writer()
    desk.parts.appender.append(writer, 1, flags, memoryview(body))
    return writer


def untouched(topic: Topic) -> bool:
    return (topic.seqs.head, topic.flight.count, len(topic.flight.under_way), len(topic.producers)) == (0, 0, 0, 0)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("body", "flags"),
    [
        (lambda t: b"", 0),
        (lambda t: append_body(t, [b"x"])[: APPEND.size - 1], 0),
        (lambda t: append_body(t, [b"x"])[:-1], 0),
        (lambda t: append_body(t, [b"x"]) + b"rest", 0),
        (lambda t: APPEND.pack(t, 0, 0, 2) + append_body(t, [b"x"])[APPEND.size :], 0),
        (lambda t: APPEND.pack(t, 0, 0, 0), 0),
        (lambda t: APPEND.pack(t, 0, 0, 1) + b"\x05", FLAG_KEY),
        (lambda t: APPEND.pack(t, 0, 0, 1) + b"\x00\x00" + append_body(t, [b"x"])[APPEND.size :], FLAG_KEY),
        (lambda t: APPEND.pack(t, 0, 0, 1) + struct.pack("<H", 300) + bytes(300), FLAG_KEY),
        (lambda t: append_body(t, [b"x"], key=b"k"), FLAG_KEY | FLAG_COPY),
    ],
    ids=[
        *("empty", "cut in the fixed part", "cut frame", "bytes behind", "fewer than it says", "no records"),
        *("half a key length", "empty key", "long key", "a copy with a key"),
    ],
)
def test_a_bad_batch_is_refused_and_leaves_no_trace(desk: Desk, body: Callable[[int], bytes], flags: int) -> None:
    topic = desk.topic()
    with pytest.raises(TopicdError):
        raw(desk, body(topic.id), flags)
    assert untouched(topic)
    assert desk.write(topic, [b"good"])[0].first_seq == 1


def test_a_bad_batch_spares_those_it_was_gathered_with(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    writer = desk.append(topic, [b"a"])
    with pytest.raises(TopicdError):
        raw(desk, append_body(topic.id, [b"b", b"c"])[:-1])
    desk.append(topic, [b"d"], writer=writer, request_id=2)
    desk.parts.turn.end()
    assert [(told.request_id, told.first_seq) for told in writer.told] == [(1, 1), (2, 2)]
    assert seqs_of(topic.contents.tail) == [1, 2]


def test_a_topic_that_is_not_there_is_named(desk: Desk) -> None:
    with pytest.raises(TopicNotFound) as caught:
        raw(desk, append_body(99, [b"x"]))
    assert caught.value.detail["topic_id"] == 99


def test_a_topic_on_its_way_out_takes_nothing(desk: Desk) -> None:
    topic = desk.topic()
    desk.parts.catalog.delete(topic, if_empty=False, done=lambda topic, error: None)
    with pytest.raises(TopicNotFound):
        desk.append(topic, [b"x"])
    assert untouched(topic)


# ---- gathering ----


def test_small_batches_of_one_topic_travel_as_one_entry(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    for number in range(5):
        desk.append(topic, [b"x"], producer=7, number=1 + number)
    assert len(topic.flight.under_way) == 1
    desk.wal.log = b""
    desk.parts.turn.end()
    desk.settle()
    assert [kind for kind, _ in desk.wal.frames()] == [FrameType.PRODUCER, FrameType.APPEND] * 5


def test_batches_of_two_topics_keep_their_order_in_the_ring(desk: Desk) -> None:
    a, b = (desk.topic(name, durability="memory") for name in "ab")
    order: list[str] = []
    for topic in (a, b, a):
        writer = desk.append(topic, [b"x"])
        writer.appended = lambda waiter, head, entry, name=topic.name: order.append(name)  # type: ignore
    desk.parts.turn.end()
    assert order == ["a", "b", "a"]


def test_a_large_batch_travels_alone_and_at_once(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    writer = desk.append(topic, [bytes(desk.parts.place.small_batch)])
    assert [told.how for told in writer.told] == ["appended"]


def test_an_entry_is_bounded(desk: Desk) -> None:
    topic, size = desk.topic(durability="fsync"), desk.parts.place.small_batch - 100
    for _ in range(20):
        desk.append(topic, [bytes(size)])
    assert len(topic.flight.under_way) > 1
    assert all(len(entry.frames) <= desk.parts.place.gathered_bytes for entry in topic.flight.under_way)


def test_time_never_goes_back_within_a_topic(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    desk.write(topic, [b"a"])
    desk.clock.set_wall(TS - 1000)
    desk.write(topic, [b"b"])
    desk.clock.set_wall(TS + 5)
    desk.write(topic, [b"c"])
    [blob] = topic.contents.tail
    assert [row[1] for row in core.decode_frames(blob.data, blob.start, blob.end)] == [TS, TS, TS + 5]


def test_an_ephemeral_record_never_sees_the_ring(desk: Desk) -> None:
    topic = desk.topic(durability="ephemeral")
    desk.wal.log = b""
    assert desk.write(topic, [b"x"])[0].how == "appended"
    assert FrameType.APPEND not in [kind for kind, _ in desk.wal.frames()]


def test_the_time_of_the_request_is_noted_only_for_who_asks(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    desk.clock.advance(5_000)
    desk.append(topic, [b"x"])
    assert topic.flight.under_way[0].started_at == 0.0
    desk.append(topic, [b"x"], flags=FLAG_PERFORMANCE)
    assert topic.flight.under_way[0].started_at == 5.0


# ---- retries ----


def test_a_retry_of_what_is_stored_gets_the_first_answer(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    desk.write(topic, [b"x", b"y"], producer=7, number=1)
    assert desk.append(topic, [b"x", b"y"], producer=7, number=1).told == [Outcome("deduped", 1, 1, 2)]
    # Whatever it holds: the number was used.
    assert desk.append(topic, [b"other"], producer=7, number=1).told == [Outcome("deduped", 1, 1, 2)]
    assert topic.seqs.head == 2


def test_a_retry_of_what_is_under_way_shares_its_outcome(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    writer = desk.append(topic, [b"x"], producer=7, number=1)
    desk.parts.turn.end()
    desk.append(topic, [b"x"], writer=writer, request_id=2, producer=7, number=1)
    assert writer.told == []
    desk.settle()
    assert [told.request_id for told in writer.told] == [1, 2]
    assert topic.seqs.head == 1


def test_a_number_too_early_is_refused(desk: Desk) -> None:
    topic = desk.topic()
    desk.write(topic, [b"x"], producer=7, number=1)
    with pytest.raises(OutOfOrder):
        desk.append(topic, [b"x"], producer=7, number=3)
    assert topic.seqs.head == 1


def test_a_key_is_remembered_for_its_window(desk: Desk) -> None:
    topic = desk.topic(durability="disk", idempotency_window_ms=1000)
    longest = bytes(IDEMPOTENCY_KEY_MAX)
    for key in (b"k", longest):
        first = desk.write(topic, [b"x"], key=key)
        again = desk.append(topic, [b"x"], key=key).told
        assert (first[0].how, again[0].how, again[0].first_seq) == ("appended", "deduped", first[0].first_seq)
    desk.clock.advance(1001)
    assert desk.write(topic, [b"x"], key=b"k")[0].first_seq == 3


# ---- runs ----


def run_of(topic: Topic, numbers: range, producer: int = 7) -> memoryview:
    sent = [
        message(OP_APPEND, 100 + n, append_body(topic.id, [b"x%d" % n], producer=producer, number=n)) for n in numbers
    ]
    return memoryview(bytearray(b"".join(sent)))


def test_single_records_behind_each_other_are_taken_as_one_entry(desk: Desk) -> None:
    topic, writer = desk.topic(durability="fsync"), Writer()
    sent = run_of(topic, range(1, 6))
    assert desk.parts.appender.take_run(writer, 100, sent, 0, len(sent)) == (len(sent), 5)
    assert len(topic.flight.under_way) == 1
    desk.parts.turn.end()
    desk.settle()
    assert writer.told == [Outcome("appended", 100 + n, n, 1) for n in range(1, 6)]
    assert topic.producers.expected(7, 5) == 6
    assert seqs_of(topic.contents.tail) == [1, 2, 3, 4, 5]


def test_a_run_leaves_in_the_log_what_single_appends_leave(desk: Desk) -> None:
    a, b = (desk.topic(name, durability="fsync") for name in "ab")
    desk.wal.log = b""
    sent = run_of(a, range(1, 4))
    desk.parts.appender.take_run(Writer(), 100, sent, 0, len(sent))
    desk.parts.turn.end()
    desk.settle()
    first, desk.wal.log = desk.wal.frames(), b""
    for n in range(1, 4):
        desk.append(b, [b"x%d" % n], producer=7, number=n)
    desk.parts.turn.end()
    desk.settle()
    assert first == desk.wal.frames()


def test_a_run_takes_no_more_than_there_is_room_for(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    sent = run_of(topic, range(1, 6))
    used, count = desk.parts.appender.take_run(Writer(), 2, sent, 0, len(sent))
    assert (count, topic.seqs.head) == (2, 2)
    assert desk.parts.appender.take_run(Writer(), 9, sent, used, len(sent)) == (len(sent) - used, 3)


@pytest.mark.parametrize("why", ["capped", "again", "too early", "no producer", "gone", "no room", "cut", "draining"])
def test_what_is_no_plain_run_is_left_to_append(desk: Desk, why: str) -> None:
    topic = desk.topic(durability="disk", **({"cap_records": 9} if why == "capped" else {}))
    desk.write(topic, [b"x"], producer=7, number=1)
    numbers = {"again": range(1, 2), "too early": range(3, 4)}.get(why, range(2, 4))
    sent = run_of(topic, numbers, producer=0 if why == "no producer" else 7)
    room = 0 if why == "no room" else 9
    end = 20 if why == "cut" else len(sent)
    if why == "gone":
        topic.live = False
    desk.parts.admission.draining = why == "draining"
    assert desk.parts.appender.take_run(Writer(), room, sent, 0, end) == (0, 0)
    assert (topic.seqs.head, topic.flight.count) == (1, 0)


# ---- pieces ----


@pytest.mark.parametrize("piece", [10, 15, 25, 100, 1000])
def test_pieces_are_whole_frames_and_together_everything(piece: int) -> None:
    sizes = [10, 1, 9, 10, 3, 10, 2]
    offsets = array("I", [sum(sizes[:n]) for n in range(len(sizes))])
    frames = bytearray(range(sum(sizes)))
    found = pieces(frames, offsets, piece)
    assert b"".join(found) == bytes(frames)
    ends = {*offsets, len(frames)}
    at = 0
    for part in found:
        assert 0 < len(part) <= piece
        at += len(part)
        assert at in ends
