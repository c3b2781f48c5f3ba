"""FETCH on a real daemon: limits, byte budget, long polls, filters, tombstones, deletes; from memory and segments."""

from __future__ import annotations

import time

import msgpack
import pytest

from tests.process.conftest import Served
from tests.process.wire import Wire, batch, packed
from tests.support.daemon import wait_until
from topicd import limits
from topicd.errors import InvalidRequest, Throttled, TopicdError, TopicNotFound
from topicd.frames import parse_header
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCH, MessageFlag
from topicd.limits import FRAME_OVERHEAD, KIB, MIB

SETTINGS = {"segment_max_records": 100, "max_inflight_per_connection": 100}


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


@pytest.fixture(params=["memory", "segments"])
def place(request: pytest.FixtureRequest) -> str:
    """Where the records are when they are read: ephemeral ones are in memory only."""
    return str(request.param)


def fill(wire: Wire, topic: str, place: str, datas: list[bytes], **names: object) -> int:
    """Records 1 to n, where the test wants them."""
    topic_id = wire.open(topic, durability="ephemeral" if place == "memory" else "disk")
    wire.appended(wire.send_append(topic_id, batch(datas, **names), len(datas)))  # type: ignore[arg-type]
    if place == "segments":
        wait_until(lambda: wire.state(topic)["stored_seq"] == len(datas), "the checkpoint")
    return topic_id


# ---- where and how much ----


def test_a_cursor_is_an_exclusive_lower_bound(wire: Wire, topic: str, place: str) -> None:
    topic_id = fill(wire, topic, place, [b"%d" % n for n in range(1, 251)])
    for from_seq in (0, 1, 99, 100, 101, 249):
        answer = wire.fetch(topic_id, from_seq, limit=1000)
        assert answer.seqs == list(range(from_seq + 1, 251))
        assert (answer.next_from_seq, answer.head_seq, answer.earliest_seq, answer.caught_up) == (250, 250, 1, True)
    for from_seq in (250, 251, 10**12, limits.MAX_SEQ):
        answer = wire.fetch(topic_id, from_seq)
        assert (answer.seqs, answer.next_from_seq, answer.caught_up) == ([], from_seq, True)


def test_reading_on_from_next_from_seq_gives_every_record_once(wire: Wire, topic: str, place: str) -> None:
    topic_id = fill(wire, topic, place, [b"%d" % n for n in range(1, 331)])
    seqs, cursor = [], 0
    while True:
        answer = wire.fetch(topic_id, cursor, limit=7)
        seqs += answer.seqs
        assert answer.caught_up == (answer.next_from_seq == 330)
        if answer.caught_up:
            break
        assert answer.next_from_seq > cursor
        cursor = answer.next_from_seq
    assert seqs == list(range(1, 331))


def test_limit_counts_records_and_zero_is_the_default(wire: Wire, topic: str, place: str) -> None:
    topic_id = fill(wire, topic, place, [b"x"] * 400)
    assert wire.fetch(topic_id, limit=1).count == 1
    assert wire.fetch(topic_id, limit=150).count == 150
    assert wire.fetch(topic_id, limit=0).count == limits.FETCH_RECORDS_DEFAULT
    assert wire.fetch(topic_id, limit=2**32 - 1).count == 400


def test_the_byte_budget_is_kept_but_one_record_always_comes(wire: Wire, topic: str, place: str) -> None:
    size = 1000 + FRAME_OVERHEAD
    topic_id = fill(wire, topic, place, [bytes(1000)] * 250)
    for budget, count in ((1, 1), (size - 1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (120 * size, 120)):
        answer = wire.fetch(topic_id, 5, limit=1000, max_bytes=budget)
        assert answer.count == count, budget
        assert answer.seqs == list(range(6, 6 + count))
        assert len(answer.frames) <= max(budget, size)


def test_an_answer_is_bounded_whatever_is_asked_for(wire: Wire, topic: str, place: str) -> None:
    topic_id = fill(wire, topic, place, [bytes(MIB)] * 12)
    answer = wire.fetch(topic_id, limit=2**32 - 1, max_bytes=2**32 - 1)
    assert 1 <= answer.count <= 8
    assert len(answer.frames) <= limits.FETCH_BYTES_MAX


def test_an_unknown_topic_is_named(wire: Wire) -> None:
    for topic_id in (0, 2**50, 2**64 - 1):
        with pytest.raises(TopicNotFound):
            wire.fetch(topic_id)


@pytest.mark.parametrize("from_seq", [limits.MAX_SEQ + 1, 2**64 - 1])
def test_a_cursor_beyond_every_seq_is_refused(wire: Wire, topic: str, from_seq: int) -> None:
    topic_id = wire.open(topic)
    with pytest.raises(InvalidRequest):
        wire.fetch(topic_id, from_seq)
    with pytest.raises(InvalidRequest):
        wire.fetch(topic_id, from_seq, epoch=topic_id + 1)
    assert wire.ask(Op.PING) == {}


@pytest.mark.parametrize("size", [0, 1, FETCH.size - 1, FETCH.size + 1])
def test_a_body_of_another_size_is_refused(wire: Wire, topic: str, size: int) -> None:
    body = (FETCH.pack(wire.open(topic), 0, 0, 0, 0) + b"\0")[:size]
    with pytest.raises(InvalidRequest):
        wire.wait(wire.send(Op.FETCH, body)).checked(Op.FETCH)


def test_performance_says_how_many_records_were_looked_at(wire: Wire, topic: str, place: str) -> None:
    topic_id = fill(wire, topic, place, [b"x"] * 50, tags=[b"a", b"b"] * 25)
    answer = wire.fetch(topic_id, match="a", flags=MessageFlag.PERFORMANCE)
    assert answer.performance is not None
    assert (answer.count, answer.performance["records_scanned"]) == (25, 50)


# ---- long polls ----


def test_a_long_poll_ends_at_its_deadline_with_nothing(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    began = time.monotonic()
    answer = wire.fetch(topic_id, wait_ms=300)
    assert time.monotonic() - began >= 0.29
    assert (answer.count, answer.next_from_seq, answer.caught_up) == (0, 0, True)


def test_a_long_poll_wakes_at_the_first_record(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    poll = wire.send_fetch(topic_id, wait_ms=30_000)
    assert wire.quiet(0.05)
    served.wire(topic).append(topic_id, [b"news"])
    began = time.monotonic()
    assert wire.fetched(poll).datas == [b"news"]
    assert time.monotonic() - began < 5.0


def test_a_long_poll_does_not_wait_when_there_is_something(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"a"])
    assert wire.fetched(wire.send_fetch(topic_id, wait_ms=30_000), timeout=10).count == 1


def test_a_long_poll_with_a_filter_sleeps_through_what_does_not_match(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    poll = wire.send_fetch(topic_id, wait_ms=30_000, match="wanted")
    other = served.wire(topic)
    other.appended(other.send_append(topic_id, batch([b"1", b"2"], b"boring"), 2))
    assert wire.quiet(0.1)
    other.appended(other.send_append(topic_id, batch([b"3"], b"wanted"), 1))
    answer = wire.fetched(poll)
    assert (answer.seqs, answer.next_from_seq) == ([3], 3)


def test_a_long_poll_of_a_topic_that_is_deleted_ends(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    poll = wire.send_fetch(topic_id, wait_ms=30_000)
    served.wire(topic).ask(Op.DELETE_TOPIC, {"topic": topic})
    with pytest.raises(TopicNotFound):
        wire.fetched(poll)


def test_other_requests_are_answered_while_a_poll_waits(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.send_fetch(topic_id, wait_ms=30_000)
    assert wire.ask(Op.PING) == {}


def test_a_wait_longer_than_allowed_is_refused(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    with pytest.raises(InvalidRequest):
        wire.fetch(topic_id, wait_ms=limits.LONG_POLL_MS_MAX + 1)


def test_the_polls_of_a_connection_are_bounded(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    polls = [wire.send_fetch(topic_id, wait_ms=30_000) for _ in range(SETTINGS["max_inflight_per_connection"])]
    with pytest.raises(Throttled) as caught:
        wire.fetch(topic_id, wait_ms=30_000)
    assert caught.value.detail["limit"] == "max_inflight_per_connection"
    wire.append(topic_id, [b"x"])
    assert [wire.fetched(poll).count for poll in polls] == [1] * len(polls)
    assert wire.fetch(topic_id, 1, wait_ms=1).count == 0


# ---- filters ----


def test_a_tag_is_matched_exactly_or_by_its_beginning(wire: Wire, topic: str, place: str) -> None:
    tags = [b"a", b"ab", b"b", None, b"abc", b"A"] * 40
    topic_id = fill(wire, topic, place, [b"%d" % n for n in range(240)], tags=tags)
    for match, wanted in (
        ("a", {b"a"}),
        (["tag", "Eq", "ab"], {b"ab"}),
        (["tag", "Glob", "ab*"], {b"ab", b"abc"}),
        (["tag", "Glob", "*"], {b"a", b"ab", b"b", b"abc", b"A"}),
        ("none", set()),
    ):
        answer = wire.fetch(topic_id, limit=1000, match=match)
        assert answer.seqs == [n for n, tag in enumerate(tags, start=1) if tag in wanted], match
        assert (answer.next_from_seq, answer.caught_up) == (240, True)


@pytest.mark.parametrize("match", [1, "", ["tag"], ["tag", "Eq", 1], ["tag", "Glob", "a*b"], ["x", "Eq", "a"], {}])
def test_a_match_that_is_none_is_refused(wire: Wire, topic: str, match: object) -> None:
    topic_id = wire.open(topic)
    with pytest.raises(InvalidRequest):
        wire.fetch(topic_id, match=match)


def test_own_records_are_left_out_silently_and_the_cursor_advances(wire: Wire, topic: str, place: str) -> None:
    nodes = [b"n1", b"n2", None] * 50
    topic_id = fill(wire, topic, place, [b"x"] * 150, nodes=nodes)
    answer = wire.fetch(topic_id, limit=1000, nodes=["n1"])
    assert [row.node for row in answer.rows] == [b"n2", None] * 50
    answer = wire.fetch(topic_id, 147, nodes=["n1", "n2"])
    assert (answer.seqs, answer.next_from_seq, answer.tombstone) == ([150], 150, None)


def test_a_topic_may_give_writers_their_own_records(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, dedupe_node=False)
    wire.appended(wire.send_append(topic_id, batch([b"x"], None, b"n1"), 1))
    assert wire.fetch(topic_id, nodes=["n1"]).count == 1


@pytest.mark.parametrize("nodes", ["", [""], ["n" * 129], [1], 5, ["n"] * 257])
def test_nodes_that_are_none_are_refused(wire: Wire, topic: str, nodes: object) -> None:
    topic_id = wire.open(topic)
    with pytest.raises(InvalidRequest):
        wire.fetch(topic_id, nodes=nodes)


def test_a_filter_that_is_no_map_is_refused(wire: Wire, topic: str) -> None:
    body = FETCH.pack(wire.open(topic), 0, 0, 0, 0)
    for rest in (b"", b"\xc1", msgpack.packb([1])):
        with pytest.raises(InvalidRequest):
            wire.wait(wire.send(Op.FETCH, body + rest, MessageFlag.FILTER)).checked(Op.FETCH)


def test_metadata_only_leaves_out_data_and_meta(wire: Wire, topic: str, place: str) -> None:
    metas = [msgpack.packb({"k": 1}), None] * 10
    topic_id = fill(wire, topic, place, [bytes(10_000)] * 20, tags=b"t", metas=metas)
    answer = wire.fetch(topic_id, flags=MessageFlag.METADATA_ONLY)
    assert answer.seqs == list(range(1, 21))
    assert {(row.data, row.tag, row.meta) for row in answer.rows} == {(b"", b"t", None)}
    assert len(answer.frames) == 20 * (FRAME_OVERHEAD + 1)
    assert parse_header(answer.frames, 0).data_len == 0
    chosen = wire.fetch(topic_id, flags=MessageFlag.METADATA_ONLY, match="t", limit=3)
    assert (chosen.seqs, chosen.datas) == ([1, 2, 3], [b""] * 3)


def test_reading_from_a_time_begins_with_the_first_record_of_it(wire: Wire, topic: str, place: str) -> None:
    topic_id = fill(wire, topic, place, [b"x"] * 3)
    rows = wire.read_all(topic_id)
    assert wire.fetch(topic_id, from_ts=rows[0].ts).seqs == [1, 2, 3]
    assert wire.fetch(topic_id, from_ts=0).seqs == [1, 2, 3]
    assert wire.fetch(topic_id, from_ts=rows[-1].ts + 1).seqs == []
    with pytest.raises(InvalidRequest):
        wire.fetch(topic_id, from_ts=-1)


# ---- what is gone ----


def test_what_the_cap_took_is_told_once_with_its_exact_range(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_records=10)
    for _ in range(5):
        wire.append(topic_id, [b"x"] * 10)
    answer = wire.fetch(topic_id)
    assert answer.seqs == list(range(41, 51))
    assert answer.tombstone == {
        "gap_from": 1,
        "gap_to": 40,
        "reason": "cap",
        "missed_estimate": 40,
        "earliest_seq": 41,
        "head_seq": 50,
    }
    behind = wire.fetch(topic_id, 25)
    assert behind.tombstone is not None
    assert (behind.tombstone["gap_from"], behind.tombstone["missed_estimate"]) == (26, 15)
    assert wire.fetch(topic_id, 40).tombstone is None


def test_a_tombstone_comes_also_when_nothing_else_does(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_records=1)
    wire.append(topic_id, [b"x"])
    wire.appended(wire.send_append(topic_id, batch([b"y"], b"tag"), 1))
    answer = wire.fetch(topic_id, match="none", wait_ms=30_000)
    assert answer.tombstone is not None
    assert (answer.count, answer.next_from_seq) == (0, 2)


def test_what_the_cap_took_is_still_told_after_a_restart(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic, cap_records=10, durability="fsync")
    wire.append(topic_id, [b"x"] * 10)
    wire.append(topic_id, [b"x"] * 10)
    before = wire.fetch(topic_id)
    served.daemon.restart()
    after = served.wire(topic).fetch(topic_id)
    assert (after.tombstone, after.seqs) == (before.tombstone, before.seqs)
    assert after.tombstone is not None


def test_deletes_are_silent_permanent_and_immediate(wire: Wire, topic: str, place: str) -> None:
    topic_id = fill(wire, topic, place, [b"x"] * 200, tags=[b"odd", b"even"] * 100)
    answer = wire.ask(Op.DELETE_RECORDS, {"topic": topic, "match": "odd", "before_seq": 101})
    assert (answer["deleted"], answer["count"], answer["earliest_seq"]) == (50, 150, 2)
    assert wire.fetch(topic_id, limit=1000).seqs == [*range(2, 101, 2), *range(101, 201)]
    answer = wire.ask(Op.DELETE_RECORDS, {"topic": topic, "before_seq": 150})
    assert answer["earliest_seq"] == 150
    read = wire.fetch(topic_id, limit=1000)
    assert (read.seqs, read.tombstone) == (list(range(150, 201)), None)
    wire.ask(Op.DELETE_RECORDS, {"topic": topic, "match": ["tag", "Glob", "*"]})
    read = wire.fetch(topic_id)
    assert (read.seqs, read.tombstone, read.earliest_seq, read.caught_up) == ([], None, 201, True)


@pytest.mark.parametrize("body", [{}, {"before_seq": -1}, {"before_seq": "1"}, {"match": 5}, {"before_seq": 2**64 - 1}])
def test_a_delete_of_nothing_in_particular_is_refused(wire: Wire, topic: str, body: dict[str, object]) -> None:
    wire.open(topic)
    with pytest.raises(TopicdError):
        wire.ask(Op.DELETE_RECORDS, {"topic": topic, **body})


# ---- fairness ----


def test_one_who_asks_much_and_reads_nothing_keeps_nobody_waiting(served: Served, wire: Wire, topic: str) -> None:
    """Thousands of questions for megabytes at once, of which no answer is taken."""
    topic_id = fill(wire, topic, "segments", [bytes(10 * KIB)] * 800)
    greedy = served.wire(topic)
    greedy.sock.settimeout(0.5)
    plain = packed(Op.FETCH, 7, FETCH.pack(topic_id, 0, 100_000, limits.FETCH_BYTES_MAX, 0))
    body = FETCH.pack(topic_id, 0, 100_000, limits.FETCH_BYTES_MAX, 0) + msgpack.packb({"match": "none"})
    filtered = packed(Op.FETCH, 8, body, MessageFlag.FILTER)
    pids = served.daemon.pids()
    with pytest.raises(TimeoutError):
        greedy.sock.sendall(filtered * 500 + plain * 20_000)
    worst = 0.0
    for _ in range(50):
        began = time.monotonic()
        assert wire.ask(Op.PING) == {}
        worst = max(worst, time.monotonic() - began)
    assert worst < 3.0
    assert served.daemon.pids() == pids
