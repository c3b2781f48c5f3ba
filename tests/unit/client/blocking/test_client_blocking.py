from __future__ import annotations

from datetime import UTC, datetime

import pytest

import topicd
from tests.support.fakeserver import FakeServer
from topicd.errors import (
    BatchTooLarge,
    Conflict,
    InvalidRequest,
    RecordTooLarge,
    TopicFull,
    TopicNotFound,
)
from topicd.ipc.protocol.messages import Op
from topicd.limits import MAX_BATCH_RECORDS, MAX_DATA_AND_META, MIB

# ---- writing ----


def test_publish_returns_the_seq(client: topicd.Client, server: FakeServer) -> None:
    assert [client.publish("orders", b"a"), client.publish("orders", b"b")] == [1, 2]
    assert server.payloads("orders") == [b"a", b"b"]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        ("käse", "käse".encode()),
        ({"id": 7, "ü": [1, None, True]}, '{"id":7,"ü":[1,null,true]}'.encode()),
        ([1, 2], b"[1,2]"),
        (7, b"7"),
        (None, b"null"),
    ],
)
def test_values_are_serialised(client: topicd.Client, server: FakeServer, value: object, stored: bytes) -> None:
    client.publish("t", value)
    assert server.payloads("t") == [stored]


def test_msgpack_on_request(server: FakeServer) -> None:
    with topicd.connect(server.path, serializer="msgpack") as client:
        client.publish("t", {"a": 1})
        client.publish("t", b"as it is")
        records = client.fetch("t").records
    assert records[0].msgpack() == {"a": 1}
    assert records[1].data == b"as it is"


def test_a_record_keeps_its_labels(client: topicd.Client) -> None:
    client.publish("t", {"n": 1}, tag="x/y", node="host-1", meta={"trace": "abc", "n": 2})
    (record,) = client.fetch("t")
    assert (record.topic, record.seq, record.tag, record.node) == ("t", 1, "x/y", "host-1")
    assert record.meta == {"trace": "abc", "n": 2}
    assert record.json() == {"n": 1}
    assert record.text == '{"n":1}'
    assert record.time == datetime.fromtimestamp(record.ts / 1000, UTC)


def test_node_of_the_client_is_the_default(server: FakeServer) -> None:
    with topicd.connect(server.path, node="me") as client:
        client.publish("t", b"1")
        client.publish("t", b"2", node="other")
        client.publish_many("t", [b"3", topicd.Record(b"4", node="third")])
        assert [r.node for r in client.fetch("t")] == ["me", "other", "me", "third"]


def test_a_key_is_stored_once(client: topicd.Client, server: FakeServer) -> None:
    assert [client.publish("t", b"x", key="k") for _ in range(3)] == [1, 1, 1]
    assert client.publish("t", b"y") == 2
    assert server.payloads("t") == [b"x", b"y"]


def test_publish_many_takes_any_mixture(client: topicd.Client) -> None:
    stored = client.publish_many(
        "t", [b"1", "2", {"n": 3}, (b"4", "tag"), (5, None, "node", {"m": 1}), topicd.Record("6", tag="six")]
    )
    assert (stored.first_seq, stored.last_seq, stored.count, stored.deduped) == (1, 6, 6, False)
    found = client.fetch("t").records
    assert [r.data for r in found] == [b"1", b"2", b'{"n":3}', b"4", b"5", b"6"]
    assert [(r.tag, r.node, r.meta) for r in found[3:]] == [
        ("tag", None, {}),
        (None, "node", {"m": 1}),
        ("six", None, {}),
    ]


def test_the_daemon_says_where_its_time_went_when_asked(client: topicd.Client) -> None:
    assert client.publish_many("t", [b"x"]).performance is None
    told = client.publish_many("t", [b"x"], performance=True)
    assert told.first_seq == 2
    assert told.performance == {
        "server_total_ms": 1.5,
        "wal_append_ms": 0.5,
        "fsync_ms": 1.0,
        "records_scanned": 0,
        "throttle_wait_ms": 0.0,
    }


def test_columns_hold_what_records_hold(client: topicd.Client) -> None:
    client.publish_many("t", [(b"a", "x", None, {"m": 1}), (b"bc", None, "n")])
    batch = client.fetch("t")
    columns = batch.columns()
    assert (columns.count, columns.data, columns.tag, columns.node) == (2, b"abc", b"x", b"n")
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_batches([batch.to_arrow()])
    assert table.column("data").to_pylist() == [b"a", b"bc"]
    assert table.column("tag").to_pylist() == ["x", None]
    assert table.column("seq").to_pylist() == [1, 2]


def test_long_lists_are_cut_at_the_limit_of_records(client: topicd.Client, server: FakeServer) -> None:
    stored = client.publish_many("t", [b"%d" % n for n in range(2 * MAX_BATCH_RECORDS + 5)])
    assert (stored.first_seq, stored.last_seq, stored.count) == (1, 20_005, 20_005)
    assert server.payloads("t") == [b"%d" % n for n in range(20_005)]
    assert len([r for r in server.requests if r.op == Op.APPEND]) == 3


def test_large_lists_are_cut_at_the_limit_of_bytes(client: topicd.Client, server: FakeServer) -> None:
    stored = client.publish_many("t", [b"x" * MIB] * 66)
    assert (stored.first_seq, stored.count) == (1, 66)
    assert len([r for r in server.requests if r.op == Op.APPEND]) == 2


def test_a_list_stops_at_the_batch_that_is_refused(client: topicd.Client, server: FakeServer) -> None:
    client.configure("t", cap_records=15_000, discard="reject")
    with pytest.raises(TopicFull) as refused:
        client.publish_many("t", [b"x"] * (3 * MAX_BATCH_RECORDS))
    assert refused.value.detail["stored"] == MAX_BATCH_RECORDS
    assert len(server.payloads("t")) == MAX_BATCH_RECORDS


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.publish("t", b"x" * (MAX_DATA_AND_META + 1)), RecordTooLarge),
        (lambda c: c.publish("t", b"x", tag="t" * 257), RecordTooLarge),
        (lambda c: c.publish("t", b"x", node="n" * 129), RecordTooLarge),
        (lambda c: c.publish("t", b"x", meta={str(n): n for n in range(65)}), RecordTooLarge),
        (lambda c: c.publish("t", b"x", meta={"a": object()}), InvalidRequest),
        (lambda c: c.publish("t", object()), InvalidRequest),
        (lambda c: c.publish("t", float("nan")), InvalidRequest),
        (lambda c: c.publish("t", b"x", key=""), InvalidRequest),
        (lambda c: c.publish("bad name", b"x"), InvalidRequest),
        (lambda c: c.publish_many("t", []), InvalidRequest),
        (lambda c: c.publish_many("t", [b"ok", (1, 2, 3, 4, 5)]), InvalidRequest),
        (lambda c: c.publish_many("t", [b"ok"] * 10_000 + [b"x" * (MAX_DATA_AND_META + 1)]), RecordTooLarge),
        (lambda c: c.fetch("t", -1), InvalidRequest),
        (lambda c: c.fetch("t", limit=-1), InvalidRequest),
        (lambda c: c.fetch("t", match="a*b*"), InvalidRequest),
        (lambda c: c.watch([]), InvalidRequest),
        (lambda c: c.watch(["a*", "b"]), InvalidRequest),
        (lambda c: c.watch("t", start="yesterday"), InvalidRequest),
        (lambda c: c.watch("t", on_gap="ignore"), InvalidRequest),
        (lambda c: c.configure("t", colour="red"), InvalidRequest),
        (lambda c: c.delete("t"), InvalidRequest),
        (lambda c: c.pipeline("t", max_inflight=0), InvalidRequest),
        (lambda c: c.producer(on_full="drop"), InvalidRequest),
        (lambda c: c.consumer("t*", "name"), InvalidRequest),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent(
    client: topicd.Client, server: FakeServer, call: object, error: type[Exception]
) -> None:
    sent = len(server.requests)
    with pytest.raises(error):
        call(client)  # type: ignore[operator]
    assert server.requests[sent:] == []
    assert BatchTooLarge.code == "batch_too_large"


# ---- reading ----


def test_read_says_where_it_stands(client: topicd.Client) -> None:
    client.publish_many("t", [b"%d" % n for n in range(10)])
    first = client.fetch("t", limit=4)
    assert first.payloads() == [b"0", b"1", b"2", b"3"]
    assert (first.next_from_seq, first.head_seq, first.earliest_seq, first.caught_up, first.lag) == (4, 10, 1, False, 6)
    rest = client.fetch("t", first.next_from_seq)
    assert (len(rest), rest.caught_up, rest.lag) == (6, True, 0)
    assert rest.data[2] == b"6"
    assert rest[2].seq == 7


def test_read_filters_by_tag_node_and_time(client: topicd.Client) -> None:
    for n in range(6):
        client.publish("t", b"%d" % n, tag=f"{'ab'[n % 2]}{n}", node=f"n{n % 3}")
    assert client.fetch("t", match="a*").payloads() == [b"0", b"2", b"4"]
    assert client.fetch("t", match="b3").payloads() == [b"3"]
    assert client.fetch("t", match=topicd.TagMatch(b"b", prefix=True)).payloads() == [b"1", b"3", b"5"]
    assert client.fetch("t", exclude_nodes=["n0", "n1"]).payloads() == [b"2", b"5"]
    moment = client.fetch("t")[4].time
    assert client.fetch("t", from_time=moment).payloads() == [b"4", b"5"]


def test_a_trimmed_topic_gives_a_tombstone(client: topicd.Client) -> None:
    client.configure("t", cap_records=3)
    client.publish_many("t", [b"%d" % n for n in range(10)])
    found = client.fetch("t", 2)
    assert found.tombstone is not None
    assert (found.tombstone.gap_from, found.tombstone.gap_to, found.tombstone.reason) == (3, 7, "cap")
    assert found.payloads() == [b"7", b"8", b"9"]


def test_a_large_answer_survives_later_reads(client: topicd.Client) -> None:
    datas = [bytes([n]) * 50_000 for n in range(12)]
    client.publish_many("t", datas)
    results = [client.fetch("t", n * 4, limit=4, max_bytes=MIB) for n in range(3)]
    assert [p for r in results for p in r.payloads()] == datas


def test_an_unknown_topic_is_not_made_by_reading(client: topicd.Client, server: FakeServer) -> None:
    with pytest.raises(TopicNotFound):
        client.fetch("nothing")
    with pytest.raises(TopicNotFound):
        client.state("nothing")
    assert server.topics == {}


def test_a_topic_made_anew_is_found_under_its_new_id(client: topicd.Client) -> None:
    client.publish("t", b"old")
    client.delete_topic("t")
    assert client.publish("t", b"new") == 1
    assert client.fetch("t").payloads() == [b"new"]
    client.delete_topic("t")
    with pytest.raises(TopicNotFound):
        client.fetch("t")


# ---- topics ----


def test_topics_are_listed_sorted_over_all_shards_and_pages(client: topicd.Client) -> None:
    names = sorted(f"topic.{n}" for n in range(25))
    for name in names:
        client.publish(name, b"x")
    client.publish("zebra", b"x")
    assert [t.topic for t in client.topics("topic.")] == names
    assert [t.topic for t in client.topics()] == [*names, "zebra"]


def test_state_configure_and_delete(client: topicd.Client) -> None:
    assert client.configure("t", cap_records=100, durable=True).durability == "fsync"
    client.publish_many("t", [(b"%d" % n, "even" if n % 2 == 0 else "odd") for n in range(10)])
    state = client.state("t")
    assert (state.count, state.head_seq, state.config.cap_records) == (10, 10, 100)
    assert client.delete("t", before_seq=4).deleted == 3
    assert client.delete("t", match="odd").deleted == 4
    with pytest.raises(Conflict):
        client.delete_topic("t", if_empty=True)
    assert client.delete_topic("t") == state.topic_id


def test_ping_and_status(client: topicd.Client) -> None:
    assert client.ping() >= 0
    assert client.status() == {}
