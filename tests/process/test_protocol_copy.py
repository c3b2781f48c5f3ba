"""APPEND with COPY on a real daemon: what is stored already becomes a batch of another topic, whole or not at all."""

from __future__ import annotations

import pytest

from tests.process.conftest import Served
from tests.process.wire import Appended, Wire
from tests.support.daemon import wait_until
from topicd.client.staging.names import STAGES
from topicd.errors import BatchTooLarge, Conflict, InvalidRequest, OutOfOrder, TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import APPEND, COPIED, MessageFlag
from topicd.limits import KIB, MAX_COPY_BYTES, MAX_COPY_RANGES, MAX_U64
from topicd.placement import delivery_shard
from topicd.shards.storage.segment.index import ENTRY_BYTES

SETTINGS = {"segment_max_records": 500, "snapshot_ms": 100, "checkpoint_ms": 10}

Range = tuple[int, int, int]  # topic id, from seq, records


class Pair:
    """Two topics of one shard."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self.name = name
        self.topic_id = wire.open(name)
        shards = wire.hello["delivery_shards"]
        mine = [f"{name}.{n}" for n in range(99)]
        self.far_name = next(one for one in mine if delivery_shard(one, shards) != wire.hello["shard"])
        self.source_name = next(one for one in mine if delivery_shard(one, shards) == wire.hello["shard"])
        self.source = wire.open(self.source_name)

    def copy(self, ranges: list[Range], count: int | None = None, *, no: int = 0, flags: int = 0) -> Appended:
        packed = b"".join(COPIED.pack(*one) for one in ranges)
        return self.send(packed, sum(one[2] for one in ranges) if count is None else count, no=no, flags=flags)

    def send(self, packed: bytes, count: int, *, no: int = 0, flags: int = 0) -> Appended:
        body = APPEND.pack(self.topic_id, 7 if no else 0, no, count) + packed
        return self.wire.appended(self.wire.send(Op.APPEND, body, flags | MessageFlag.COPY))

    def refused(self, kind: type[TopicdError], packed: bytes, count: int, flags: int = 0) -> None:
        """And the topic is as it was."""
        before = self.wire.state(self.name)
        with pytest.raises(kind):
            self.send(packed, count, flags=flags)
        after = self.wire.state(self.name)
        for field in ("head_seq", "next_seq", "count", "bytes"):
            assert after[field] == before[field], field
        assert self.wire.append(self.topic_id, [b"next"]).first_seq == before["next_seq"]

    def datas(self) -> list[bytes]:
        return self.wire.fetch(self.topic_id, 0, limit=100_000, max_bytes=8 << 20).datas


@pytest.fixture
def pair(served: Served, topic: str) -> Pair:
    return Pair(served.wire(topic), topic)


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def test_a_stored_batch_becomes_one_of_another_topic(pair: Pair) -> None:
    pair.wire.append(pair.source, numbered(1, 3_000))
    assert pair.copy([(pair.source, 0, 3_000)])[:2] == (1, 3_000)
    assert pair.copy([(pair.source, 2_990, 10)]).first_seq == 3_001
    assert pair.datas() == numbered(1, 3_000) + numbered(2_991, 10)
    assert pair.wire.state(pair.source_name)["count"] == 3_000


def test_ranges_of_several_batches_are_one_batch(pair: Pair) -> None:
    """Stored and in memory, large and small."""
    for start, count in ((1, 1), (2, 700), (702, 3), (705, 20)):
        pair.wire.append(pair.source, numbered(start, count))
    ranges = [(pair.source, 704, 20), (pair.source, 1, 700), (pair.source, 0, 1), (pair.source, 701, 3)]
    assert pair.copy(ranges)[:2] == (1, 724)
    assert pair.datas() == numbered(705, 20) + numbered(2, 700) + numbered(1, 1) + numbered(702, 3)
    assert len({row.ts for row in pair.wire.fetch(pair.topic_id, 0, limit=10_000).rows}) == 1


def test_a_number_is_copied_once_even_when_its_source_is_gone(pair: Pair) -> None:
    pair.wire.append(pair.source, [b"a", b"b"])
    first = pair.copy([(pair.source, 0, 2)], no=1)
    pair.wire.ask(Op.DELETE_TOPIC, {"topic": pair.source_name})
    again = pair.copy([(pair.source, 0, 2)], no=1)
    assert again.deduped and again.first_seq == first.first_seq
    with pytest.raises(OutOfOrder):
        pair.copy([(pair.source, 0, 2)], no=3)
    with pytest.raises(Conflict):
        pair.copy([(pair.source, 0, 2)], no=2)
    assert pair.datas() == [b"a", b"b"]


def test_what_is_not_all_there_is_refused(pair: Pair, served: Served) -> None:
    pair.wire.append(pair.source, numbered(1, 10))
    far = served.wire(pair.far_name)
    far_id = far.open(pair.far_name)
    far.append(far_id, [b"far"])
    for wanted in ((pair.source, 5, 6), (pair.source, 10, 1), (12_345, 0, 1), (far_id, 0, 1)):
        pair.refused(Conflict, COPIED.pack(*wanted), wanted[2])
    pair.wire.ask(Op.DELETE_RECORDS, {"topic": pair.source_name, "before_seq": 3})
    pair.refused(Conflict, COPIED.pack(pair.source, 0, 10), 10)
    pair.refused(Conflict, COPIED.pack(pair.source, 1, 9), 9)
    assert pair.copy([(pair.source, 2, 8)]).count == 8


def test_what_is_no_list_of_ranges_is_refused(pair: Pair) -> None:
    pair.wire.append(pair.source, numbered(1, 10))
    good = COPIED.pack(pair.source, 0, 10)
    for packed, count in (
        (b"", 0),
        (b"", 1),
        (good[:-1], 10),
        (good + b"x", 10),
        (good, 9),
        (good, 0),
        (COPIED.pack(pair.source, 0, 0), 0),
        (good + COPIED.pack(pair.source, 0, 0), 10),
        (COPIED.pack(pair.source, MAX_U64, 1), 1),
        (COPIED.pack(MAX_U64, 2**63 - 1, 1), 1),
    ):
        pair.refused(InvalidRequest, packed, count)
    pair.refused(InvalidRequest, b"\x01\x00k" + good, 10, MessageFlag.KEY)
    pair.refused(InvalidRequest, COPIED.pack(pair.source, 0, 9), 9)  # not the end of its batch


def test_a_copy_is_bounded_in_places_and_bytes(pair: Pair) -> None:
    one = COPIED.pack(pair.source, 0, 1)
    pair.wire.append(pair.source, [bytes(64 * KIB)])
    fitting = MAX_COPY_BYTES // (64 * KIB) - 1
    assert fitting <= MAX_COPY_RANGES
    assert pair.send(one * fitting, fitting).count == fitting
    pair.refused(BatchTooLarge, one * (fitting + 1), fitting + 1)
    pair.wire.append(pair.source, [b"small"])
    small = COPIED.pack(pair.source, 1, 1)
    assert pair.send(small * MAX_COPY_RANGES, MAX_COPY_RANGES).count == MAX_COPY_RANGES
    pair.refused(BatchTooLarge, small * (MAX_COPY_RANGES + 1), MAX_COPY_RANGES + 1)


def test_a_stage_that_is_in_its_file_can_be_copied_again_and_again(pair: Pair, served: Served) -> None:
    """Its records are dropped from memory once they were copied; the file keeps them."""
    shards = pair.wire.hello["delivery_shards"]
    names = (f"{STAGES}{pair.name}.{n}" for n in range(99))
    stage = next(name for name in names if delivery_shard(name, shards) == pair.wire.hello["shard"])
    stage_id = pair.wire.ask(Op.OPEN, {"topic": stage, "internal": True})["topic_id"]
    for start in (0, 2_000):
        pair.wire.append(stage_id, numbered(start, 2_000))
    index = served.daemon.data.topic(stage_id) / f"seg-{1:020}.idx"
    wait_until(lambda: index.exists() and index.stat().st_size == 4_000 * ENTRY_BYTES, "the checkpoint")
    for _ in range(2):
        pair.copy([(stage_id, 0, 2_000)])
        pair.copy([(stage_id, 2_000, 2_000)])
    assert pair.datas() == numbered(0, 4_000) * 2


def test_a_topic_may_be_copied_onto_itself(pair: Pair) -> None:
    pair.wire.append(pair.topic_id, numbered(1, 2_000))
    pair.copy([(pair.topic_id, 0, 2_000)])
    pair.copy([(pair.topic_id, 2_000, 2_000)])
    assert pair.datas() == numbered(1, 2_000) * 3


def test_copies_of_one_connection_are_stored_in_order_with_other_requests_between(pair: Pair) -> None:
    """More than one turn's worth at once: others have theirs in between, and nothing is mixed up."""
    for start in range(0, 40_000, 8_000):
        pair.wire.append(pair.source, numbered(start, 8_000))
    sent = []
    for n in range(5):
        body = APPEND.pack(pair.topic_id, 7, n + 1, 8_000) + COPIED.pack(pair.source, n * 8_000, 8_000)
        sent.append(pair.wire.send(Op.APPEND, body, MessageFlag.COPY))
        sent.append(pair.wire.send_append(pair.topic_id, b"", 0))
    for n, request_id in enumerate(sent):
        if n % 2:
            with pytest.raises(InvalidRequest):
                pair.wire.appended(request_id)
        else:
            assert pair.wire.appended(request_id).first_seq == n // 2 * 8_000 + 1
    assert pair.datas() == numbered(0, 40_000)
