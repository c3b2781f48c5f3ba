"""Connections that come and go: nothing of them is left, and what they had sent counts."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import msgpack
import psutil
import pytest

from tests.process.conftest import SHARDS, Served
from tests.process.procstat import open_files
from tests.process.wire import Closed, Wire, append_body, batch, packed
from tests.support.daemon import wait_until
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, FETCH, MessageFlag
from topicd.limits import KIB, MIB
from topicd.placement import delivery_shard


def shard_pid(served: Served, topic: str) -> int:
    return served.daemon.pids()[f"dlv-{delivery_shard(topic, SHARDS):02d}"]


def test_hundreds_of_connections_leave_no_descriptor_behind(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic)
    pid = shard_pid(served, topic)
    before = open_files(pid)
    for _ in range(3):
        wires = [served.wire(topic) for _ in range(100)]
        for other in wires:
            other.send_fetch(topic_id, wait_ms=30_000)
            other.send(Op.SUBSCRIBE, {"topics": [{"topic": topic}], "credit": 1000})
            other.send_raw(packed(Op.PING, 1, {"half": True})[:-3])
        for other in wires:
            other.close()
    wait_until(lambda: open_files(pid) <= before + 2, "descriptors to be closed")
    wire.append(topic_id, [b"still here"])


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_batch_whose_sender_left_is_stored_whole(served: Served, topic: str, durability: str) -> None:
    wire, hasty = served.wire(topic), served.wire(topic)
    topic_id = wire.open(topic, durability=durability)
    hasty.send_append(topic_id, batch([b"x" * 1000] * 500), 500)
    hasty.close()
    wait_until(lambda: wire.state(topic)["head_seq"] == 500, "the batch")
    assert wire.append(topic_id, [b"y"]).first_seq == 501


def test_a_batch_that_was_cut_off_is_not_stored(served: Served, topic: str) -> None:
    wire, hasty = served.wire(topic), served.wire(topic)
    topic_id = wire.open(topic)
    whole = packed(Op.APPEND, 1, append_body(topic_id, batch([bytes(MIB)] * 5), 5))
    hasty.send_raw(whole[:-1])
    hasty.close()
    assert wire.append(topic_id, [b"y"]).first_seq == 1


def test_answers_still_come_to_one_who_has_nothing_more_to_say(served: Served, topic: str) -> None:
    """What was asked before the connection was half closed is done; an answer may be lost, the record is not."""
    wire, last_words = served.wire(topic), served.wire(topic)
    topic_id = wire.open(topic)
    last_words.send_append(topic_id, batch([b"x"]), 1)
    last_words.sock.shutdown(socket.SHUT_WR)
    replies = last_words.wait_closed()
    assert all(reply.op == Op.APPEND | ANSWER for reply in replies)
    wait_until(lambda: wire.state(topic)["head_seq"] == 1, "the record")


def test_many_writers_of_one_topic_share_its_seqs_without_holes(served: Served, topic: str) -> None:
    topic_id = served.wire(topic).open(topic, durability="disk")
    taken: list[int] = []

    def write(wire: Wire, who: int) -> None:
        for number in range(100):
            answer = wire.append(topic_id, [b"%d-%d" % (who, number)] * 2)
            taken.extend((answer.first_seq, answer.first_seq + 1))

    threads = [threading.Thread(target=write, args=(served.wire(topic), who)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 1601))
    rows = served.wire(topic).read_all(topic_id)
    assert [row.seq for row in rows] == list(range(1, 1601))
    for who in range(8):
        mine = [row.data for row in rows if row.data.startswith(b"%d-" % who)]
        assert mine == [b"%d-%d" % (who, number) for number in range(100) for _ in range(2)]


def test_a_large_answer_reaches_a_slow_reader_whole(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic)
    pieces = [bytes([n]) * MIB for n in range(7)]
    wire.append(topic_id, pieces)
    slow = served.wire(topic)
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ids = [slow.send_fetch(topic_id, max_bytes=8 * MIB) for _ in range(5)]
    assert wire.ask(Op.PING) == {}
    for request_id in ids:
        assert slow.fetched(request_id).datas == pieces


def test_a_flood_of_questions_does_not_stop_the_supervisor(served: Served) -> None:
    """Looking at every process takes time; thousands of questions at once must not take it thousands of times."""
    wire = served.supervisor()
    floods = [served.supervisor() for _ in range(20)]
    for flood in floods:
        flood.sock.setblocking(False)
        with suppress(BlockingIOError):
            flood.sock.send(packed(Op.STATUS, 5, {}) * 6000)
    began = time.monotonic()
    assert wire.ask(Op.PING) == {}
    assert time.monotonic() - began < 10.0


@pytest.mark.slow
def test_a_shard_with_hundreds_of_busy_peers_is_not_taken_for_dead(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic)
    for _ in range(16):
        wire.append(topic_id, [bytes(1000)] * 1000)
    pids = served.daemon.pids()
    body = FETCH.pack(topic_id, 0, 0, 8 * MIB, 0) + msgpack.packb({"match": "none"})
    message = packed(Op.FETCH, 7, body, MessageFlag.FILTER)
    busy = [served.wire(topic) for _ in range(600)]
    for other in busy:
        other.send_raw(message * 10)
    assert busy[-1].wait(7, timeout=60).op == Op.FETCH | ANSWER
    for other in busy:
        other.close()
    assert wire.ask(Op.PING) == {}
    assert served.daemon.pids() == pids


# ---- the last request of a connection ----


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_who_sends_no_more_gets_its_answers(served: Served, topic: str, durability: str) -> None:
    wire = served.wire(topic)
    topic_id = wire.open(topic, durability=durability)
    for _ in range(5):
        last = served.wire(topic)
        ids = [last.send_append(topic_id, batch([b"x" * 1000]), 1) for _ in range(20)]
        ids.append(last.send(Op.CONFIGURE, {"topic": topic, "config": {"cap_records": 1_000_000}}))
        last.sock.shutdown(socket.SHUT_WR)
        assert [last.appended(request_id).count for request_id in ids[:-1]] == [1] * 20
        last.wait(ids[-1]).checked(Op.CONFIGURE)
        with pytest.raises(Closed):
            last.receive()


def test_who_sends_no_more_and_waits_for_nothing_is_let_go(served: Served, topic: str) -> None:
    wire = served.wire(topic)
    wire.open(topic)
    wire.subscribe([{"topic": topic}])
    wire.send_raw(packed(Op.PING, 9, {})[:-1])  # half a request is no request
    wire.sock.shutdown(socket.SHUT_WR)
    with pytest.raises(Closed):
        wire.receive(5.0)


def test_who_sends_no_more_gets_what_he_waits_for_at_the_end_of_a_topic(served: Served, topic: str) -> None:
    wire, writer = served.wire(topic), served.wire(topic)
    topic_id = wire.open(topic)
    asked = wire.send_fetch(topic_id, wait_ms=20_000)
    wire.sock.shutdown(socket.SHUT_WR)
    writer.append(topic_id, [b"late"])
    assert wire.fetched(asked).datas == [b"late"]
    with pytest.raises(Closed):
        wire.receive()


# ---- memory ----


@pytest.mark.fault("NET-04")
def test_connections_that_said_hello_and_no_more_cost_little(served: Served, topic: str) -> None:
    """Also after each of them was busy once."""
    wire = served.wire(topic)
    topic_id = wire.open(topic, durability="ephemeral", cap_records=10)
    pid, count = shard_pid(served, topic), 600
    before = psutil.Process(pid).memory_info().rss
    wires = [served.wire(topic) for _ in range(count)]
    assert psutil.Process(pid).memory_info().rss - before < count * 24 * KIB
    for other in wires:
        other.send_append(topic_id, batch([b"x" * 40_000]), 1)
    for other in wires:
        other.receive()
    wait_until(lambda: psutil.Process(pid).memory_info().rss - before < count * 40 * KIB, "its memory", 20.0)
