"""What time does on a real daemon, with a clock that stands still until the test moves it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.process.conftest import SETTINGS, SHARDS
from tests.process.wire import Reply, Wire, packed
from tests.support.daemon import Daemon
from topicd.ipc.protocol.messages import Op
from topicd.placement import delivery_shard


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("timed"), env={"TOPICD_TEST_CLOCK": "1"}, **SETTINGS) as daemon:
        yield daemon


def test_ttl_removes_records_and_tells_so(timed: Daemon) -> None:
    wire = Wire(timed.run.delivery_socket(delivery_shard("ttl", SHARDS)))
    topic_id = wire.open("ttl", ttl_ms=60_000)
    wire.append(topic_id, [b"old"] * 3)
    wire.ask(Op.DEBUG, {"advance_ms": 40_000})
    wire.append(topic_id, [b"young"])
    wire.ask(Op.DEBUG, {"advance_ms": 20_000})
    assert wire.fetch(topic_id).count == 4
    wire.ask(Op.DEBUG, {"advance_ms": 1})
    answer = wire.fetch(topic_id)
    assert answer.datas == [b"young"]
    assert answer.tombstone is not None
    assert (answer.tombstone["gap_from"], answer.tombstone["gap_to"], answer.tombstone["reason"]) == (1, 3, "ttl")
    assert wire.state("ttl")["count"] == 1
    wire.close()


def test_reasons_mix_when_cap_and_ttl_took_records(timed: Daemon) -> None:
    wire = Wire(timed.run.delivery_socket(delivery_shard("mixed", SHARDS)))
    topic_id = wire.open("mixed", ttl_ms=60_000, cap_records=3)
    for _ in range(2):
        wire.append(topic_id, [b"x"] * 3)
    wire.ask(Op.DEBUG, {"advance_ms": 60_001})
    wire.append(topic_id, [b"y"])
    tombstone = wire.fetch(topic_id).tombstone
    assert tombstone is not None
    assert (tombstone["gap_to"], tombstone["reason"]) == (6, "mixed")
    wire.close()


def test_an_idempotency_key_is_new_again_after_its_window(timed: Daemon) -> None:
    wire = Wire(timed.run.delivery_socket(delivery_shard("keys", SHARDS)))
    topic_id = wire.open("keys", idempotency_window_ms=1000)
    wire.append(topic_id, [b"a"], key=b"k")
    wire.ask(Op.DEBUG, {"advance_ms": 1000})
    assert wire.append(topic_id, [b"a"], key=b"k").deduped
    wire.ask(Op.DEBUG, {"advance_ms": 1})
    assert not wire.append(topic_id, [b"a"], key=b"k").deduped
    wire.close()


def test_reading_from_a_time_finds_the_first_record_of_it(timed: Daemon) -> None:
    wire = Wire(timed.run.delivery_socket(delivery_shard("times", SHARDS)))
    topic_id = wire.open("times")
    times = []
    for _ in range(5):
        times.append(wire.ask(Op.DEBUG, {"advance_ms": 1000})["now_ms"])
        wire.append(topic_id, [b"x"] * 2)
    for number, now in enumerate(times):
        assert wire.fetch(topic_id, from_ts=now).seqs == list(range(2 * number + 1, 11))
        assert wire.fetch(topic_id, from_ts=now - 999).seqs == list(range(2 * number + 1, 11))
    wire.close()


def last_words(wire: Wire, victim: Wire, step_ms: int = 31_000) -> list[Reply]:
    """What the daemon tells one that it closes, as time goes by."""
    for _ in range(30):
        wire.ask(Op.DEBUG, {"advance_ms": step_ms})
        with suppress(TimeoutError):
            return [victim.receive(timeout=1.2), *victim.wait_closed()]
    return []


def test_a_message_that_never_ends_is_closed(timed: Daemon) -> None:
    wire, slow = Wire(timed.run.delivery_socket(0)), Wire(timed.run.delivery_socket(0))
    slow.send_raw(packed(Op.PING, 1, {})[:-1])
    assert [(reply.op, reply.request_id) for reply in last_words(wire, slow)] == [(Op.ERROR, 0)]
    assert wire.ask(Op.PING) == {}  # who has nothing half said may stay
    wire.close()


def test_one_who_never_says_hello_is_closed(timed: Daemon) -> None:
    wire = Wire(timed.run.delivery_socket(0))
    wire.ask(Op.DEBUG, {"advance_ms": 1})
    silent = Wire(timed.run.delivery_socket(0), greet=False)
    assert [(reply.op, reply.request_id) for reply in last_words(wire, silent)] == [(Op.ERROR, 0)]
    wire.close()


def test_dripping_bytes_do_not_keep_a_message_alive(timed: Daemon) -> None:
    wire, slow = Wire(timed.run.delivery_socket(0)), Wire(timed.run.delivery_socket(0))
    wire.ask(Op.DEBUG, {"advance_ms": 1})
    closed = False
    for byte in packed(Op.PING, 1, {"x": bytes(100)})[:60]:
        wire.ask(Op.DEBUG, {"advance_ms": 10_000})
        try:
            slow.send_raw(bytes([byte]))
            closed = slow.receive(timeout=1.2).op == Op.ERROR
        except TimeoutError:
            continue
        break
    assert closed
    wire.close()


def test_the_timed_daemon_stops_like_any_other(timed: Daemon) -> None:
    assert timed.stop(signal.SIGTERM).code == 0
