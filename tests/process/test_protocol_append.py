"""APPEND on a real daemon: limits to the byte, nothing stored on refusal, retries, keys, atomic batches."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import msgpack
import pytest

from tests.process.conftest import Served
from tests.process.wire import Wire, append_body, batch, packed
from topicd import limits
from topicd.errors import (
    BatchTooLarge,
    InvalidRequest,
    OutOfOrder,
    RecordTooLarge,
    TopicdError,
    TopicFull,
    TopicNotFound,
)
from topicd.frames import FLAGS_AT, SEQ_AT, TYPE_AT, FrameFlag
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, APPEND, HEADER, MessageFlag
from topicd.limits import KIB, MIB

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


def refused(wire: Wire, topic: str, body: bytes, kind: type[TopicdError], flags: int = 0) -> TopicdError:
    """The body is refused, nothing of it is stored, and the next write gets the seq it would have had."""
    before = wire.state(topic)
    with pytest.raises(kind) as caught:
        wire.wait(wire.send(Op.APPEND, body, flags)).checked(Op.APPEND)
    after = wire.state(topic)
    for name in ("head_seq", "next_seq", "count", "bytes"):
        assert after[name] == before[name], name
    return caught.value


def raw_frame(
    data: bytes = b"", tag: bytes = b"", node: bytes = b"", meta: bytes | None = None, flags: int | None = None
) -> bytes:
    """One frame without any check, to say what the encoder refuses to say."""
    kept = (FrameFlag.TAG if tag else 0) | (FrameFlag.NODE if node else 0) | (0 if meta is None else FrameFlag.META)
    content = data if meta is None else struct.pack("<H", len(meta) & 0xFFFF) + meta + data
    size = 34 + len(node) + len(tag) + len(content) + 8
    given = kept if flags is None else flags
    head = struct.pack("<IBBQQQHHI", size, 1, given, 0, 0, 0, len(node) & 0xFFFF, len(tag) & 0xFFFF, len(content))
    return head + node + tag + content + bytes(8)


# ---- it is stored ----


@pytest.mark.parametrize("durability", CLASSES)
def test_records_get_contiguous_seqs_from_one(wire: Wire, topic: str, durability: str) -> None:
    topic_id = wire.open(topic, durability=durability)
    assert wire.append(topic_id, [b"a", b"b"])[:3] == (1, 2, 2)
    assert wire.append(topic_id, [b"c"])[:3] == (3, 1, 3)
    rows = wire.read_all(topic_id)
    assert [(row.seq, row.data) for row in rows] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert rows[0].ts <= rows[2].ts


def test_what_is_stored_is_what_was_sent(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    meta = msgpack.packb({"k": [1, 2, {"x": None}]})
    tags, nodes, metas = [b"t1", None, b"t2"], [None, b"n1", b"n2"], [None, meta, None]
    frames = batch([b"", b"two", bytes(range(256))], tags, nodes, metas)
    assert wire.appended(wire.send_append(topic_id, frames, 3)).first_seq == 1
    rows = wire.read_all(topic_id)
    assert [row.data for row in rows] == [b"", b"two", bytes(range(256))]
    assert ([r.tag for r in rows], [r.node for r in rows], [r.meta for r in rows]) == (tags, nodes, metas)


def test_answers_come_when_they_are_ready(wire: Wire, topic: str) -> None:
    """A write that waits for the disk does not hold up the question behind it."""
    topic_id = wire.open(topic, durability="fsync")
    body = append_body(topic_id, batch([b"x" * MIB]), 1)
    wire.send_raw(packed(Op.APPEND, 1000, body) + packed(Op.PING, 1001, {}))
    assert [wire.receive().op for _ in range(2)] == [Op.PING | ANSWER, Op.APPEND | ANSWER]


@pytest.mark.parametrize("durability", CLASSES)
def test_many_writes_under_way_are_all_answered_in_seq_order(wire: Wire, topic: str, durability: str) -> None:
    topic_id = wire.open(topic, durability=durability)
    ids = [wire.send_append(topic_id, batch([b"%d" % number]), 1) for number in range(500)]
    assert [wire.appended(request_id).first_seq for request_id in ids] == list(range(1, 501))
    assert [row.data for row in wire.read_all(topic_id)] == [b"%d" % number for number in range(500)]


def test_performance_is_told_to_those_who_ask(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, durability="fsync")
    plain = wire.append(topic_id, [b"x"])
    asked = wire.appended(wire.send_append(topic_id, batch([b"x"]), 1, flags=MessageFlag.PERFORMANCE))
    assert plain.performance is None
    assert asked.performance is not None
    assert asked.performance["server_total_ms"] > 0
    assert asked.performance["fsync_ms"] <= asked.performance["server_total_ms"]


# ---- limits of a record ----

META_FULL = msgpack.packb({"k": bytes(limits.MAX_META - 6)})
META_KEYS = msgpack.packb({f"{n:02d}": n for n in range(limits.MAX_META_KEYS)})

AT_THE_LIMIT = {
    "data": lambda more: raw_frame(bytes(limits.MAX_DATA_AND_META + more)),
    "data and meta": lambda more: raw_frame(bytes(limits.MAX_DATA_AND_META - len(META_KEYS) + more), meta=META_KEYS),
    "tag": lambda more: raw_frame(b"x", tag=b"t" * (limits.MAX_TAG + more)),
    "node": lambda more: raw_frame(b"x", node=b"n" * (limits.MAX_NODE + more)),
    "meta bytes": lambda more: raw_frame(b"x", meta=msgpack.packb({"k": bytes(limits.MAX_META - 6 + more)})),
}
KEYS = {
    "meta keys": lambda more: raw_frame(
        b"x", meta=msgpack.packb({f"{n:02d}": n for n in range(limits.MAX_META_KEYS + more)})
    )
}


@pytest.mark.parametrize("field", [*AT_THE_LIMIT, *KEYS])
def test_a_field_at_its_limit_is_stored(wire: Wire, topic: str, field: str) -> None:
    frame = {**AT_THE_LIMIT, **KEYS}[field](0)
    topic_id = wire.open(topic)
    assert wire.appended(wire.send_append(topic_id, frame, 1)).first_seq == 1
    [row] = wire.read_all(topic_id)
    assert sum(len(part or b"") for part in (row.data, row.tag, row.node, row.meta)) + (2 if row.meta else 0) == (
        len(frame) - limits.FRAME_OVERHEAD
    )


@pytest.mark.parametrize("field", AT_THE_LIMIT)
def test_a_field_one_beyond_its_limit_is_refused(wire: Wire, topic: str, field: str) -> None:
    topic_id = wire.open(topic)
    refused(wire, topic, append_body(topic_id, AT_THE_LIMIT[field](1), 1), RecordTooLarge)


def test_one_key_too_many_in_meta_is_refused(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    refused(wire, topic, append_body(topic_id, KEYS["meta keys"](1), 1), TopicdError)


def test_one_bad_record_refuses_its_whole_batch(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    good = bytearray(batch([b"a", b"b", b"c"]))
    for at in range(0, len(good), len(good) // 3):
        bad = bytearray(good)
        bad[at + TYPE_AT] = 9
        refused(wire, topic, append_body(topic_id, bad, 3), InvalidRequest)


# ---- limits of a batch ----


def test_a_batch_of_the_most_records_is_stored(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    count = limits.MAX_BATCH_RECORDS
    assert wire.append(topic_id, [b"x"] * count)[:3] == (1, count, count)


@pytest.mark.parametrize("claimed", [limits.MAX_BATCH_RECORDS, limits.MAX_BATCH_RECORDS + 1, 2**32 - 1])
def test_a_batch_of_one_record_too_many_is_refused(wire: Wire, topic: str, claimed: int) -> None:
    topic_id = wire.open(topic)
    count = limits.MAX_BATCH_RECORDS + 1
    more = raw_frame(b"x", flags=FrameFlag.MORE)
    body = append_body(topic_id, more * (count - 1) + raw_frame(b"x"), claimed)
    refused(wire, topic, body, BatchTooLarge)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_batch_of_the_most_bytes_is_stored_whole(wire: Wire, topic: str, durability: str) -> None:
    """64 MiB through a ring of 1.5 MiB. An ephemeral topic keeps what its bound allows."""
    topic_id = wire.open(topic, durability=durability)
    pieces = [bytes([number]) * MIB for number in range(64)]
    assert wire.append(topic_id, pieces)[:3] == (1, 64, 64)
    rows = wire.read_all(topic_id)
    if durability == "ephemeral":
        assert rows[-1].seq == 64
        assert sum(len(row.data) for row in rows) <= 32 * MIB
    else:
        assert [row.data for row in rows] == pieces


def test_a_batch_one_byte_too_large_is_refused(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    frames = raw_frame(bytes(MIB), flags=FrameFlag.MORE) * 64 + raw_frame(b"x")
    refused(wire, topic, append_body(topic_id, frames, 65), BatchTooLarge)


def test_a_message_too_large_for_any_batch_closes_the_connection(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    length = limits.MAX_MESSAGE + 1
    wire.send_raw(HEADER.pack(length, Op.APPEND, 0, 1) + APPEND.pack(topic_id, 0, 0, 1))
    assert [reply.request_id for reply in wire.wait_closed()] == [0]


def test_nobody_sees_a_part_of_a_batch(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, durability="disk")
    reader = served.wire(topic)
    request_id = wire.send_append(topic_id, batch([b"p" * 512 * KIB] * 40), 40)
    heads = set()
    while True:
        heads.add(reader.state(topic)["head_seq"])
        if 40 in heads:
            break
    wire.appended(request_id)
    assert heads <= {0, 40}


@pytest.mark.parametrize("claimed", [0, 1, 3, 10_000, 2**31])
def test_a_wrong_count_is_refused(wire: Wire, topic: str, claimed: int) -> None:
    topic_id = wire.open(topic)
    refused(wire, topic, append_body(topic_id, batch([b"a", b"b"]), claimed), TopicdError)


def test_no_records_are_no_batch(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    for claimed in (0, 1):
        refused(wire, topic, append_body(topic_id, b"", claimed), InvalidRequest)


# ---- frames that are none ----


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_frame_that_ends_too_early_is_refused(wire: Wire, topic: str, cut: int) -> None:
    topic_id = wire.open(topic)
    refused(wire, topic, append_body(topic_id, batch([b"0123456789"] * 2)[:-cut], 2), InvalidRequest)


def test_more_bytes_than_frames_are_refused(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    refused(wire, topic, append_body(topic_id, batch([b"a"]) + b"\0", 1), InvalidRequest)


def test_the_flag_more_must_stand_on_all_but_the_last(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    last_says_more = raw_frame(b"a", flags=FrameFlag.MORE)
    refused(wire, topic, append_body(topic_id, last_says_more, 1), InvalidRequest)
    first_says_no_more = raw_frame(b"a") + raw_frame(b"b")
    refused(wire, topic, append_body(topic_id, first_says_no_more, 2), InvalidRequest)


@pytest.mark.parametrize(
    "meta", [b"", b"\xc0", b"\x93\x01\x02\x03", b"\x81\xa1k", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000, b"\x81" * 100]
)
def test_meta_must_be_one_map(wire: Wire, topic: str, meta: bytes) -> None:
    topic_id = wire.open(topic)
    refused(wire, topic, append_body(topic_id, raw_frame(b"x", meta=meta), 1), TopicdError)


def test_what_only_the_daemon_may_say_is_overwritten(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    frame = batch([b"a"])
    frame[SEQ_AT : SEQ_AT + 8] = b"\xff" * 8
    frame[FLAGS_AT] |= FrameFlag.DURABLE
    wire.appended(wire.send_append(topic_id, frame, 1))
    assert [row.seq for row in wire.read_all(topic_id)] == [1]


@pytest.mark.parametrize("size", range(APPEND.size))
def test_a_body_shorter_than_its_fixed_fields_is_refused(wire: Wire, topic: str, size: int) -> None:
    topic_id = wire.open(topic)
    refused(wire, topic, append_body(topic_id, batch([b"a"]), 1)[:size], InvalidRequest)


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_store_nothing_or_a_record(wire: Wire, topic: str, seed: int) -> None:
    """A flip in the data is data; anywhere else it is refused. What is stored can be read."""
    chance = random.Random(seed)
    topic_id = wire.open(topic)
    frames = batch([chance.randbytes(20) for _ in range(3)], [b"tag", None, b"x"], b"node")
    for _ in range(25):
        bad = bytearray(frames)
        for _ in range(chance.randint(1, 3)):
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        reply = wire.wait(wire.send_append(topic_id, bad, 3))
        assert reply.op in (Op.APPEND | ANSWER, Op.ERROR)
    head = wire.state(topic)["head_seq"]
    assert [row.seq for row in wire.read_all(topic_id)] == list(range(1, head + 1))


def test_an_unknown_topic_id_is_named(wire: Wire) -> None:
    for topic_id in (0, 2**40, 2**64 - 1):
        with pytest.raises(TopicNotFound) as caught:
            wire.append(topic_id, [b"x"])
        assert caught.value.detail["topic_id"] == topic_id


# ---- retries ----


@pytest.mark.parametrize("durability", CLASSES)
def test_a_batch_that_is_sent_again_is_stored_once(wire: Wire, topic: str, durability: str) -> None:
    topic_id = wire.open(topic, durability=durability)
    first = wire.append(topic_id, [b"a", b"b"], producer=77, batch_no=1)
    wire.append(topic_id, [b"c"], producer=77, batch_no=2)
    again = wire.append(topic_id, [b"a", b"b"], producer=77, batch_no=1)
    assert (first.deduped, again.deduped) == (False, True)
    assert (again.first_seq, again.count, again.head_seq) == (1, 2, 3)
    assert [row.data for row in wire.read_all(topic_id)] == [b"a", b"b", b"c"]


def test_a_retry_while_the_first_is_under_way_gets_its_answer(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, durability="fsync")
    body = append_body(topic_id, batch([b"x" * MIB] * 3), 3, producer=5, batch_no=1)
    wire.send_raw(packed(Op.APPEND, 2001, body) + packed(Op.APPEND, 2002, body))
    first, again = wire.appended(2001), wire.appended(2002)
    assert (first[:2], first.deduped) == ((1, 3), False)
    assert (again[:2], again.deduped) == ((1, 3), True)
    assert wire.state(topic)["head_seq"] == 3


def test_a_number_beyond_the_next_is_out_of_order(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"a"], producer=9, batch_no=1)
    error = refused(wire, topic, append_body(topic_id, batch([b"c"]), 1, producer=9, batch_no=3), OutOfOrder)
    assert error.detail == {"expected": 2}
    assert wire.append(topic_id, [b"b"], producer=9, batch_no=2).first_seq == 2


def test_a_refused_batch_leaves_its_number_free(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    bad = append_body(topic_id, batch([b"a"]), 2, producer=3, batch_no=1)
    refused(wire, topic, bad, InvalidRequest)
    answer = wire.append(topic_id, [b"a"], producer=3, batch_no=1)
    assert (answer.first_seq, answer.deduped) == (1, False)


def test_producers_do_not_mix(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    seqs = [wire.append(topic_id, [b"x"], producer=p, batch_no=n).first_seq for n in (1, 2, 3) for p in (1, 2, 3)]
    assert seqs == list(range(1, 10))


def test_retries_are_known_after_a_restart(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic, durability="fsync")
    wire.append(topic_id, [b"a"], producer=4, batch_no=1)
    wire.append(topic_id, [b"b"], producer=4, batch_no=2)
    served.daemon.restart()
    wire = served.wire(topic)
    again = wire.append(topic_id, [b"b"], producer=4, batch_no=2)
    assert (again.first_seq, again.deduped) == (2, True)
    assert wire.append(topic_id, [b"c"], producer=4, batch_no=3).first_seq == 3


# ---- keys ----


def test_a_key_stores_once(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    first = wire.append(topic_id, [b"a"], key=b"order-7")
    again = wire.append(topic_id, [b"different"], key=b"order-7")
    other = wire.append(topic_id, [b"b"], key=b"order-8")
    assert (first.first_seq, again.first_seq, again.deduped, other.first_seq) == (1, 1, True, 2)
    assert [row.data for row in wire.read_all(topic_id)] == [b"a", b"b"]


def test_a_key_of_the_longest_kind_is_taken(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    key = b"k" * limits.IDEMPOTENCY_KEY_MAX
    assert not wire.append(topic_id, [b"a"], key=key).deduped
    assert wire.append(topic_id, [b"a"], key=key).deduped


@pytest.mark.parametrize(
    "tail",
    [
        lambda frames: b"",
        lambda frames: b"\x01",
        lambda frames: b"\x00\x00" + frames,
        lambda frames: (limits.IDEMPOTENCY_KEY_MAX + 1).to_bytes(2, "little") + bytes(257) + frames,
        lambda frames: b"\xff\xff" + frames,
    ],
)
def test_a_key_that_cannot_be_is_refused(wire: Wire, topic: str, tail: Callable[[bytes], bytes]) -> None:
    topic_id = wire.open(topic)
    body = APPEND.pack(topic_id, 0, 0, 1) + tail(bytes(batch([b"a"])))
    refused(wire, topic, body, InvalidRequest, MessageFlag.KEY)


# ---- caps ----


def test_a_full_topic_that_rejects_says_so_and_stores_nothing(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_records=3, discard="reject")
    wire.append(topic_id, [b"a", b"b"])
    error = refused(wire, topic, append_body(topic_id, batch([b"c", b"d"]), 2), TopicFull)
    assert (error.detail["cap"], error.detail["used"]) == (3, 2)
    assert wire.append(topic_id, [b"c"]).first_seq == 3


def test_a_write_larger_than_the_whole_cap_is_refused(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_bytes=100, discard="reject")
    refused(wire, topic, append_body(topic_id, batch([bytes(101)]), 1), RecordTooLarge)
    assert wire.append(topic_id, [bytes(100)]).first_seq == 1
