from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import topicd
from tests.support.fakeserver import CUT, HALF, MUTE, FakeServer, Request
from topicd.client.blocking.receipts import Delivery
from topicd.errors import (
    ConnectionLost,
    FormatError,
    InvalidRequest,
    RecordTooLarge,
    Throttled,
    TopicdError,
    TopicFull,
)
from topicd.ipc.protocol.messages import Op
from topicd.placement import delivery_shard


def nth(op: int, n: int, fault: TopicdError | str | bytes) -> Callable[[Request], TopicdError | str | bytes | None]:
    """A fault that strikes the n-th request of that kind."""
    seen: list[int] = []

    def strike(request: Request) -> TopicdError | str | bytes | None:
        if request.op != op:
            return None
        seen.append(request.request_id)
        return fault if len(seen) == n else None

    return strike


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_deliveries_know_their_seqs(client: topicd.Client, server: FakeServer) -> None:
    with client.producer() as producer:
        deliveries = [producer.send("t", data) for data in numbers(2500)]
        producer.flush()
        assert [d.seq for d in deliveries] == list(range(1, 2501))
        assert deliveries[7].result() == 8
        assert deliveries[7].done()
        assert deliveries[7].exception() is None
    assert server.payloads("t") == numbers(2500)


def test_a_lone_record_is_sent_after_the_linger(client: topicd.Client) -> None:
    with client.producer(linger=0.001) as producer:
        assert producer.send("t", b"x").result(5) == 1
    with client.producer(linger=0) as producer:
        assert producer.send("t", b"x").result(5) == 2


def test_records_of_a_linger_share_a_batch(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(linger=60) as producer:
        for n in range(100):
            producer.send("a" if n % 2 else "b", b"%d" % n)
        producer.flush()
    assert len([r for r in server.requests if r.op == Op.APPEND]) == 2


def test_batches_end_at_their_limits(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(linger=60, max_batch_records=10, max_batch_bytes=1000) as producer:
        for _ in range(10):
            producer.send("t", b"x")
        for _ in range(4):
            producer.send("t", b"x" * 500)
        producer.flush()
    assert len([r for r in server.requests if r.op == Op.APPEND]) == 3


def test_labels_and_serialisers(client: topicd.Client) -> None:
    with client.producer(serializer="msgpack") as producer:
        producer.send("t", b"plain")
        producer.send("t", {"a": 1}, tag="x", node="n", meta={"m": 1})
        producer.send("t", b"plain too")
        producer.send_many("t", [b"1", ({"b": 2}, "y")], node="many")
        producer.flush()
    found = client.fetch("t").records
    assert [(r.tag, r.node, r.meta) for r in found] == [
        (None, None, {}),
        ("x", "n", {"m": 1}),
        (None, None, {}),
        (None, "many", {}),
        ("y", "many", {}),
    ]
    assert found[1].msgpack() == {"a": 1}


def test_send_many_keeps_its_place_behind_send(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(linger=60) as producer:
        producer.send("t", b"0")
        sent = producer.send_many("t", numbers(3001)[1:])
        last = producer.send("t", b"3001")
        stored = sent.result()
        assert (stored.first_seq, stored.last_seq, stored.count, len(sent)) == (2, 3001, 3000, 3000)
        assert sent.seqs() == list(range(2, 3002))
        producer.flush()
        assert last.seq == 3002
    assert server.payloads("t") == numbers(3002)


def test_delivery_reports(client: topicd.Client) -> None:
    reports: list[Delivery] = []
    called: list[int] = []
    with client.producer(on_delivery=reports.append) as producer:
        sent = [producer.send("t", data) for data in numbers(50)]
        sent[3].add_done_callback(lambda d: called.append(d.result()))
        producer.flush()
        sent[4].add_done_callback(lambda d: called.append(d.result()))
    assert [report.seq for report in reports] == list(range(1, 51))
    assert called == [4, 5]


def test_a_record_too_large_is_refused_alone(client: topicd.Client, server: FakeServer) -> None:
    with client.producer() as producer:
        producer.send("t", b"ok")
        with pytest.raises(RecordTooLarge):
            producer.send("t", b"x" * (1 << 21))
        with pytest.raises(RecordTooLarge):
            producer.send("t", b"x", tag="t" * 300)
        with pytest.raises(InvalidRequest):
            producer.send("t", object())
        producer.send("t", b"ok too")
    assert server.payloads("t") == [b"ok", b"ok too"]


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
@pytest.mark.parametrize("at", range(1, 13))
def test_a_cut_at_every_point_neither_loses_nor_doubles(
    client: topicd.Client, server: FakeServer, at: int, fault: str
) -> None:
    with client.producer(max_batch_records=5, linger=60) as producer:
        sent = [producer.send("t", data) for data in numbers(5)]
        server.fault = nth(Op.APPEND, at, fault)
        sent += [producer.send("t", data) for data in numbers(60)[5:]]
        producer.flush()
        assert [d.result() for d in sent] == list(range(1, 61))
    assert server.payloads("t") == numbers(60)


@pytest.mark.parametrize("error", [Throttled("full", retry_after_ms=1), TopicFull("full")])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_refusal_at_every_point_keeps_the_order(
    client: topicd.Client, server: FakeServer, at: int, error: TopicdError
) -> None:
    with client.producer(max_batch_records=5, linger=60) as producer:
        server.fault = nth(Op.APPEND, at, error)
        sent = [producer.send("t", data) for data in numbers(60)]
        failed = [d for d in sent if d.exception(5) is not None]
        producer.flush()
    lost = 0 if error.retriable else 5
    assert len(failed) == lost
    kept = [data for d, data in zip(sent, numbers(60), strict=True) if d not in failed]
    assert server.payloads("t") == kept


def test_a_refusal_nobody_looked_at_comes_out_of_flush(client: topicd.Client, server: FakeServer) -> None:
    server.fault = lambda r: TopicFull("no room") if r.op == Op.APPEND else None
    producer = client.producer()
    producer.send("t", b"x")
    with pytest.raises(TopicFull, match="no room"):
        producer.flush()
    seen = producer.send("t", b"y")
    assert isinstance(seen.exception(5), TopicFull)
    producer.flush()
    producer.send("t", b"z")
    with pytest.raises(TopicFull):
        producer.close()


def test_many_topics_and_restarts_with_other_shards(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(max_batch_records=3, linger=0.001) as producer:
        for round_ in range(6):
            for n in range(120):
                producer.send(f"t{n % 7}", b"%d.%d" % (round_, n))
            server.restart(shards=1 + round_ % 4)
        producer.flush()
    for topic in range(7):
        expected = [b"%d.%d" % (r, n) for r in range(6) for n in range(120) if n % 7 == topic]
        assert server.payloads(f"t{topic}") == expected


def test_full_blocks_until_there_is_room(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(max_batch_records=1, max_inflight=2) as producer:
        for data in numbers(50):
            producer.send("t", data)
            assert producer._collector.unsettled <= 2
    assert server.payloads("t") == numbers(50)


def test_full_raises_when_asked_to(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=5) as client:
        producer = client.producer(max_batch_records=1, max_inflight=2, on_full="raise")
        server.silence()
        with pytest.raises(Throttled, match="unacknowledged"):
            for data in numbers(5):
                producer.send("t", data)
        server.listen()
        producer.close()
    assert server.payloads("t") == numbers(2)


def test_a_daemon_that_stays_away_fails_the_deliveries(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=5) as client:
        producer = client.producer(timeout=0.1, linger=0)
        server.silence()
        delivery = producer.send("t", b"x")
        assert isinstance(delivery.exception(5), ConnectionLost)
        server.listen()
        producer._collector.timeout = 5
        assert producer.send("t", b"y").result(5) == 1
        producer.close()


def test_a_shard_that_never_greets_holds_up_nobody_else(server: FakeServer) -> None:
    by_shard = {delivery_shard(f"t{n}", 2): f"t{n}" for n in range(20)}
    with topicd.connect(server.path, timeout=60) as client:
        server.fault = lambda r: b"" if r.op == Op.HELLO and r.shard == 0 else None
        producer = client.producer(linger=0)
        began = time.monotonic()
        waiting = producer.send(by_shard[0], b"held up")
        assert [producer.send(by_shard[1], data).result(30) for data in numbers(20)] == list(range(1, 21))
        # Far less than the time a dial may take.
        assert time.monotonic() - began < 1.0
        assert not waiting.done()
        server.fault = lambda r: None
        server.run(server.drop_connections)
        assert waiting.result(30) == 1
        producer.close()


def test_a_front_door_that_never_greets_holds_up_nobody(server: FakeServer) -> None:
    by_shard = {delivery_shard(f"t{n}", 2): f"t{n}" for n in range(20)}
    with topicd.connect(server.path, timeout=60) as client:
        server.fault = lambda r: CUT if r.shard == 0 else b"" if r.op == Op.HELLO and r.shard == -1 else None
        producer = client.producer(linger=0)
        began = time.monotonic()
        waiting = producer.send(by_shard[0], b"held up")
        assert [producer.send(by_shard[1], data).result(30) for data in numbers(20)] == list(range(1, 21))
        assert time.monotonic() - began < 1.0
        assert not waiting.done()
        server.fault = lambda r: None
        server.run(server.drop_connections)
        assert waiting.result(30) == 1
        producer.close()


def test_a_producer_closes_while_a_shard_never_greets(server: FakeServer) -> None:
    """What is still being dialled when it ends is closed, not kept."""
    with topicd.connect(server.path, timeout=60) as client:
        server.fault = lambda r: b"" if r.op == Op.HELLO and r.shard >= 0 else None
        producer = client.producer(linger=0, timeout=0.05)
        delivery = producer.send("t", b"x")
        assert isinstance(delivery.exception(30), ConnectionLost)
        producer.close()
        held = list(server.run(lambda: [s for s in server.connections if s.shard >= 0]))
        server.run(lambda: [s.transport.write(s._answer(r, 0)) for s in held for r in server.requests if r.shard >= 0])
        deadline = time.monotonic() + 30
        while server.run(lambda: any(s in server.connections for s in held)):
            assert time.monotonic() < deadline


def test_hostile_bytes_fail_the_deliveries(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(linger=0) as producer:
        server.fault = lambda r: b"\xff" * 50 if r.op == Op.APPEND else None
        assert isinstance(producer.send("t", b"x").exception(5), FormatError)
        server.fault = lambda r: None
        assert producer.send("t", b"y").result(5) == 1


def test_threads_share_a_producer(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(max_batch_records=7) as producer:

        def work(n: int) -> None:
            for i in range(200):
                producer.send("t", b"%d-%d" % (n, i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = server.payloads("t")
    assert len(stored) == len(set(stored)) == 1000
    for n in range(5):
        assert [p for p in stored if p.startswith(b"%d-" % n)] == [b"%d-%d" % (n, i) for i in range(200)]


def test_a_list_that_waited_for_room_takes_nobody_elses_records(client: topicd.Client, server: FakeServer) -> None:
    with client.producer(linger=60) as producer:
        collector = producer._collector

        def another_thread_comes_first() -> None:
            """While this thread waits, another gets the room and begins a batch for the same topic."""
            collector.max_inflight = 64
            collector.add(collector.begin(producer, producer._routes.outbox("t")), b"theirs", None)

        producer._make_room = another_thread_comes_first  # type: ignore[method-assign]
        collector.max_inflight = 0
        sent = producer.send_many("t", [b"mine"])
        producer.flush()
        assert sent.result(5).first_seq == 2
    assert server.payloads("t") == [b"theirs", b"mine"]


def test_what_is_sent_while_a_producer_closes_has_an_outcome(client: topicd.Client, server: FakeServer) -> None:
    producer = client.producer(linger=60)
    late: list[Delivery] = []
    flush = producer.flush

    def flush_and_send(timeout: float | None = None) -> None:
        flush(timeout)
        late.append(producer.send("t", b"too late"))

    producer.flush = flush_and_send  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost, match="1 record was not acknowledged"):
        producer.close()
    assert isinstance(late[0].exception(5), ConnectionLost)
    assert [record.data for record in producer.not_stored()] == [b"too late"]


def test_a_closed_producer_says_so(client: topicd.Client) -> None:
    producer = client.producer()
    producer.close()
    producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send("t", b"x")


# ---- pipelines ----


def test_a_pipeline_returns_seqs_in_order(client: topicd.Client, server: FakeServer) -> None:
    with client.pipeline("t", max_inflight=16) as pipe:
        for data in numbers(200):
            pipe.append(data)
            assert pipe.unacknowledged <= 16
        assert pipe.drain() == list(range(1, 201))
        pipe.append({"n": 1}, tag="x")
        assert pipe.drain() == [201]
        assert pipe.drain() == []
    assert server.payloads("t")[:200] == numbers(200)


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
@pytest.mark.parametrize("at", [1, 2, 5, 17, 40])
def test_a_pipeline_survives_cuts(client: topicd.Client, server: FakeServer, at: int, fault: str) -> None:
    server.fault = nth(Op.APPEND, at, fault)
    with client.pipeline("t", max_inflight=8) as pipe:
        for data in numbers(60):
            pipe.append(data)
        assert pipe.drain() == list(range(1, 61))
    assert server.payloads("t") == numbers(60)


def test_a_pipeline_follows_topics_to_other_shards(client: topicd.Client, server: FakeServer) -> None:
    with client.pipeline("t", max_inflight=8) as pipe:
        for shards in (5, 1, 3):
            for data in numbers(40):
                pipe.append(data)
            server.restart(shards)
        assert pipe.drain() == list(range(1, 121))


def test_a_refused_record_comes_out_of_drain_and_the_others_are_stored(
    client: topicd.Client, server: FakeServer
) -> None:
    server.fault = nth(Op.APPEND, 4, TopicFull("no room"))
    pipe = client.pipeline("t", max_inflight=8)
    for data in numbers(20):
        pipe.append(data)
    with pytest.raises(TopicFull) as refused:
        pipe.drain()
    assert refused.value.detail["positions"] == [3]
    assert server.payloads("t") == [data for data in numbers(20) if data != b"3"]
    assert pipe.drain() == []
    pipe.close()


def test_a_pipeline_gives_up_after_the_timeout(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=5) as client:
        client._caller.timeout = 0.1
        pipe = client.pipeline("t")
        server.silence()
        pipe.append(b"x")
        with pytest.raises(ConnectionLost):
            pipe.drain()
        pipe.close()
