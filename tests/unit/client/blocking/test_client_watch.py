from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

import topicd
from tests.support.fakeserver import CUT, HALF, MUTE, FakeServer, Request
from topicd.client.blocking.watch import Watch
from topicd.client.core.batch import Batch
from topicd.client.core.watching import wanted_by
from topicd.errors import FormatError, NotReady, TopicNotFound
from topicd.ipc.protocol.codec import Fetched
from topicd.ipc.protocol.following import Following
from topicd.ipc.protocol.messages import Op


def take(watch: Watch, count: int) -> list[bytes]:
    return [event.data for event in islice(watch, count) if isinstance(event, topicd.Record)]


def numbers(*span: int) -> list[bytes]:
    return [b"%d" % n for n in range(*span)]


def test_latest_begins_with_what_comes_next(client: topicd.Client) -> None:
    client.publish("t", b"old")
    with client.watch("t") as watch:
        client.publish("t", b"new")
        assert take(watch, 1) == [b"new"]


def test_earliest_begins_at_the_beginning(client: topicd.Client) -> None:
    client.publish_many("t", numbers(5))
    with client.watch("t", start="earliest") as watch:
        assert take(watch, 5) == numbers(5)
        client.publish("t", b"5")
        assert take(watch, 1) == [b"5"]


def test_start_may_be_a_seq_or_a_moment(client: topicd.Client) -> None:
    for n in range(5):
        client.publish("t", b"%d" % n)
    moment = client.fetch("t")[3].time
    with client.watch("t", start=2) as watch:
        assert take(watch, 3) == numbers(2, 5)
    with client.watch("t", start=moment) as watch:
        assert take(watch, 2) == numbers(3, 5)
    with client.watch("t", start=datetime.now(UTC)) as watch:
        client.publish("t", b"later")
        assert take(watch, 1) == [b"later"]


def test_a_topic_may_be_watched_before_it_exists(client: topicd.Client) -> None:
    with client.watch("soon") as watch:
        client.publish("soon", b"x")
        assert take(watch, 1) == [b"x"]


def test_filters_reach_the_daemon(client: topicd.Client) -> None:
    with client.watch("t", match="a*", exclude_nodes=["me"]) as watch:
        client.publish("t", b"1", tag="a1", node="me")
        client.publish("t", b"2", tag="b1")
        client.publish("t", b"3", tag="a2")
        assert take(watch, 1) == [b"3"]


def test_several_topics_on_several_shards(client: topicd.Client) -> None:
    names = [f"t{n}" for n in range(6)]
    for name in names:
        client.publish(name, name)
    with client.watch(names, start="earliest") as watch:
        assert sorted(take(watch, 6)) == [name.encode() for name in names]
        for name in names:
            client.publish(name, b"again")
            assert take(watch, 1) == [b"again"]


@pytest.mark.parametrize("lost", [[0], [0, 1]])
def test_connections_that_broke_while_credit_was_returned_are_made_anew(client: topicd.Client, lost: list[int]) -> None:
    """The one that is noticed first must not be registered together with another that is closed already."""
    names = [f"t{n}" for n in range(6)]
    with client.watch(names) as watch:
        assert len(watch._watching.feeds) == 2
        for shard in lost:
            connection = watch._watching.feeds[shard].connection
            assert connection is not None
            connection.close()  # as a send does that fails
        for name in names:
            client.publish(name, name.encode())
        assert sorted(take(watch, len(names))) == [name.encode() for name in names]


def test_a_pattern_finds_topics_made_before_and_later(client: topicd.Client, server: FakeServer) -> None:
    client.publish("log.a", b"1")
    client.publish("other", b"x")
    with client.watch("log.*", start="earliest") as watch:
        assert take(watch, 1) == [b"1"]
        for n in range(2, 8):
            client.publish(f"log.{n}", b"%d" % n)
            assert take(watch, 1) == [b"%d" % n]
        server.restart()
        client.publish("log.born-while-away", b"8")
        client.publish("log.a", b"9")
        assert sorted(take(watch, 2)) == [b"8", b"9"]
    with client.watch("log.*") as watch:
        client.publish("log.a", b"10")
        assert take(watch, 1) == [b"10"]


def test_batches_are_whole_and_lazy(client: topicd.Client) -> None:
    client.publish_many("t", numbers(1000))
    with client.watch("t", start="earliest") as watch:
        found: list[bytes] = []
        for batch in watch.batches():
            assert len(batch) == len(batch.payloads()) == len(batch.records)
            assert batch.data[0] == batch[0].data
            found += batch.payloads()
            if batch.caught_up:
                break
    assert found == numbers(1000)


def test_credit_keeps_flowing(client: topicd.Client) -> None:
    datas = [b"%05d" % n + b"x" * 2000 for n in range(600)]
    client.publish_many("t", datas)
    with client.watch("t", start="earliest", batch_bytes=20_000) as watch:
        assert take(watch, 600) == datas


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
def test_a_watch_survives_a_broken_beginning(client: topicd.Client, server: FakeServer, fault: str) -> None:
    struck: list[Request] = []

    def strike(request: Request) -> str | None:
        if request.op == Op.SUBSCRIBE and not struck:
            struck.append(request)
            return fault
        return None

    client.publish_many("t", numbers(10))
    server.fault = strike
    with client.watch("t", start=4) as watch:
        assert take(watch, 6) == numbers(4, 10)


def test_no_record_is_missed_or_doubled_across_restarts(client: topicd.Client, server: FakeServer) -> None:
    found: list[bytes] = []
    with client.watch(["t", "u"], start="earliest") as watch:
        for round_ in range(8):
            client.publish_many("t", [b"t%d.%d" % (round_, n) for n in range(50)])
            client.publish_many("u", [b"u%d.%d" % (round_, n) for n in range(50)])
            # Part of it is read, part of it has arrived, part of it is still with the daemon.
            found += take(watch, 30)
            if round_ % 2:
                server.restart(shards=1 + round_ % 3)
            else:
                server.run(server.drop_connections)
        found += take(watch, 8 * 100 - len(found))
    for letter in (b"t", b"u"):
        mine = [data for data in found if data.startswith(letter)]
        assert mine == [letter + b"%d.%d" % (r, n) for r in range(8) for n in range(50)]


def test_records_written_while_the_watcher_is_away_are_not_missed(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=5) as client, client.watch("t") as watch:
        client.publish("t", b"0")
        assert take(watch, 1) == [b"0"]
        server.run(server.drop_connections)
        client.publish_many("t", numbers(1, 20))
        assert take(watch, 19) == numbers(1, 20)


def test_latest_stays_where_it_was_when_the_connection_breaks_before_the_first_record(
    client: topicd.Client, server: FakeServer
) -> None:
    client.publish("t", b"old")
    with client.watch("t") as watch:
        server.restart()
        client.publish("t", b"new")
        assert take(watch, 1) == [b"new"]


# ---- gaps ----


def trimmed(client: topicd.Client) -> None:
    client.configure("t", cap_records=3)
    client.publish_many("t", numbers(10))


def test_a_gap_comes_in_its_place(client: topicd.Client) -> None:
    trimmed(client)
    with client.watch("t", start=2, gaps=True) as watch:
        gap = next(watch)
        assert isinstance(gap, topicd.Gap)
        assert (gap.topic, gap.first_seq, gap.last_seq, gap.reason, gap.missed) == ("t", 3, 7, "cap", 5)
        assert take(watch, 3) == numbers(7, 10)


def test_who_asks_for_the_earliest_has_missed_nothing(client: topicd.Client) -> None:
    trimmed(client)
    with client.watch("t", start="earliest", on_gap="raise") as watch:
        assert take(watch, 3) == numbers(7, 10)


def test_a_gap_may_be_raised_and_iterating_goes_on_behind_it(client: topicd.Client) -> None:
    trimmed(client)
    with client.watch("t", start=2, on_gap="raise") as watch:
        with pytest.raises(topicd.RecordsMissed, match="3 to 7"):
            next(watch)
        assert take(watch, 3) == numbers(7, 10)
    with client.watch("t", start=2, on_gap="raise") as watch:
        batches = watch.batches()
        with pytest.raises(topicd.RecordsMissed):
            next(batches)
        assert next(batches).payloads() == numbers(7, 10)


def test_a_gap_may_be_given_to_a_function(client: topicd.Client) -> None:
    trimmed(client)
    gaps: list[topicd.Gap] = []
    with client.watch("t", start=2, on_gap=gaps.append) as watch:
        assert take(watch, 3) == numbers(7, 10)
    assert [gap.last_seq for gap in gaps] == [7]


def test_a_topic_made_anew_while_away_is_a_gap(client: topicd.Client, server: FakeServer) -> None:
    client.publish_many("t", numbers(5))
    with client.watch("t", start="earliest", gaps=True) as watch:
        assert take(watch, 5) == numbers(5)
        server.silence()
        del server.topics["t"]
        server.run(lambda: server.open("t", create=True))
        server.listen()
        client.publish("t", b"fresh")
        gap = next(watch)
        assert isinstance(gap, topicd.Gap)
        assert gap.reason == "recreated"
        assert take(watch, 1) == [b"fresh"]


# ---- ends ----


def test_a_deleted_topic_ends_the_watch_with_an_error(client: topicd.Client) -> None:
    with client.watch("t") as watch:
        client.publish("t", b"last")
        client.delete_topic("t")
        assert take(watch, 1) == [b"last"]
        with pytest.raises(TopicNotFound, match="deleted"):
            next(watch)


def test_a_deleted_topic_does_not_end_the_others(client: topicd.Client, server: FakeServer) -> None:
    with client.watch(["a", "b"]) as watch:
        client.publish("a", b"1")
        assert take(watch, 1) == [b"1"]
        server.silence()
        del server.topics["a"]
        server.listen()
        client.publish("b", b"2")
        events: list[object] = []
        while len(events) < 2:
            try:
                events.append(next(watch))
            except TopicNotFound as exc:
                events.append(exc)
        assert sorted(type(e).__name__ for e in events) == ["Record", "TopicNotFound"]


def test_close_from_another_thread_ends_the_iteration(client: topicd.Client) -> None:
    watch = client.watch("t")
    threading.Timer(0.05, watch.close).start()
    assert list(watch) == []
    assert list(watch.batches()) == []


def test_a_watch_waits_for_a_daemon_that_stays_away_and_says_so_once(server: FakeServer, caplog: Any) -> None:
    with topicd.connect(server.path, timeout=0.1) as client, client.watch("t") as watch:
        server.silence()
        for _ in range(3):
            assert watch.poll(0.2) is None  # longer than the client's timeout
        server.listen()
        client.publish("t", b"back")
        assert take(watch, 1) == [b"back"]
    said = [record for record in caplog.records if record.name == "topicd.client" and record.levelname == "WARNING"]
    assert 1 <= len(said) <= 2  # a daemon that is on its way down may answer once more


def test_temporary_refusals_of_a_subscription_are_waited_out(client: topicd.Client, server: FakeServer) -> None:
    refusals = [NotReady("recovering")] * 2
    server.fault = lambda r: refusals.pop() if r.op == Op.SUBSCRIBE and refusals else None
    with client.watch("t") as watch:
        client.publish("t", b"x")
        assert take(watch, 1) == [b"x"]


@pytest.mark.parametrize("garbage", [b"\xff" * 80, b"\x06\x00\x00\x00\xb8\x00\x01\x00\x00\x00", b"\x08" + bytes(60)])
def test_hostile_pushes_are_a_clear_error(client: topicd.Client, server: FakeServer, garbage: bytes) -> None:
    with client.watch("t") as watch:
        server.run(lambda: [s.transport.write(garbage) for s in server.connections if s.subscriptions])
        with pytest.raises(FormatError):
            next(watch)
        assert list(watch) == []


# ---- the state alone ----


def push(client: topicd.Client, topic: str, from_seq: int) -> Fetched:
    return client.fetch(topic, from_seq)._fetched


@pytest.fixture
def subscribed(client: topicd.Client) -> Callable[..., Following]:
    client.publish_many("t", numbers(10))

    def make(names: list[str], pattern: str | None = None) -> Following:
        return Following(wanted_by(pattern or names, "earliest", None, None), names, 1000)

    return make


def test_records_that_come_twice_are_delivered_once(
    client: topicd.Client, subscribed: Callable[..., Following]
) -> None:
    state = subscribed(["t"])
    state.accepted({"topics": [{"topic": "t", "topic_id": 1, "from_seq": 0}]}, 1)
    assert state.pushed(push(client, "t", 0)).fetched.records == 10
    client.publish("t", b"10")
    again = state.pushed(push(client, "t", 4))
    batch = Batch(again.topic, again.fetched)
    assert batch.payloads() == [b"10"]
    assert again.credit > batch.nbytes


def test_a_pattern_beyond_the_limit_of_topics_lists_those_furthest_ahead(
    subscribed: Callable[..., Following],
) -> None:
    state = subscribed([], "t*")
    topics = [{"topic": f"t{n}", "topic_id": n, "from_seq": n} for n in range(1, 301)]
    state.accepted({"topics": topics}, 1)
    request = state.request()
    assert len(request.topics) == 256
    assert min(entry.from_seq for entry in request.topics) == 45
    assert (request.from_seq, request.tail) == (0, False)
    state.accepted({"topics": [{**entry, "from_seq": 0} for entry in topics]}, 2)
    assert state.cursors["t7"].from_seq == 7


def test_credit_is_returned_in_quarters(subscribed: Callable[..., Following]) -> None:
    state = subscribed(["t"])
    assert state.consumed(100) == b""
    assert state.consumed(100) == b""
    assert len(state.consumed(100)) == 18
    assert state.consumed(100) == b""
