"""Batch reads with real Spark: what arrives is what was sent, once; what is gone is named."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import wait_until
from topicd.client.blocking.client import Client
from topicd.client.core.records import Record

pytestmark = pytest.mark.timeout(120)
COUNT = 3_000


class Reading:
    def __init__(self, spark: Any, socket: str) -> None:
        self._spark = spark
        self._socket = socket

    def __call__(self, columns: str | None = None, /, **options: Any) -> Any:
        reader = self._spark.read.format("topicd").option("socket", self._socket).options(**options)
        return (reader.schema(columns) if columns else reader).load()


@pytest.fixture(scope="module")
def read(spark: Any, socket: str) -> Reading:
    return Reading(spark, socket)


def order(n: int) -> Record:
    tag = ("created", "changed.a", "changed.b")[n % 3]
    return Record(
        f'{{"id":{n},"total":{n}.5}}',
        tag=tag if n % 2 else None,
        node=f"host-{n % 4}" if n % 5 else None,
        meta={"trace": f"t{n}", "n": n} if n % 7 == 0 else None,
    )


@pytest.fixture(scope="module")
def orders(client: Client) -> list[Record]:
    """The records of topic orders.all; part of them is sealed, part is not."""
    client.publish_many("orders.all", [order(n) for n in range(1, COUNT)])
    client.publish_many("orders.all", [order(COUNT)])
    return [record for batch in client.history("orders.all") for record in batch]


def seqs(frame: Any) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def test_every_record_arrives_once_with_all_its_columns(read: Reading, orders: list[Record]) -> None:
    frame = read(topic="orders.all", includeMeta="true", minPartitions=5)
    assert frame.columns == ["topic", "seq", "ts", "node", "tag", "meta", "data"]
    assert frame.rdd.getNumPartitions() == 5
    rows = sorted(frame.collect(), key=lambda row: row.seq)
    assert [(r.topic, r.seq, r.tag, r.node, bytes(r.data)) for r in rows] == [
        (r.topic, r.seq, r.tag, r.node, r.data) for r in orders
    ]
    assert [int(r.ts.timestamp() * 1000) for r in rows] == [r.ts for r in orders]
    assert [json.loads(r.meta or "{}") for r in rows] == [r.meta for r in orders]


def test_a_schema_of_the_user_is_followed(read: Reading, orders: list[Record]) -> None:
    frame = read("tag string, seq bigint, data string, meta map<string,string>", topic="orders.all")
    assert frame.columns == ["tag", "seq", "data", "meta"]
    assert frame.where("meta['trace'] = 't7'").select("meta").collect()[0].meta == {"trace": "t7", "n": "7"}
    frame = frame.drop("meta")
    assert sorted(map(tuple, frame.collect()), key=lambda row: row[1]) == [(r.tag, r.seq, r.text) for r in orders]


def test_values_as_json(read: Reading, client: Client, topic: str) -> None:
    client.publish_many(topic, ['{"id":1,"total":1.5}', "not json", '{"id":"x"}', '{"id":4,"more":true}'])
    frame = read(topic=topic, valueFormat="json", schema="id INT, total DOUBLE")
    rows = frame.orderBy("seq").select("data.id", "data.total", "data").collect()
    assert [(r.id, r.total, r.data is None) for r in rows] == [
        (1, 1.5, False),
        (None, None, True),
        (None, None, True),
        (4, None, False),
    ]


def test_values_as_avro(read: Reading, client: Client, topic: str, tmp_path: Path) -> None:
    import fastavro

    fields = [{"name": "id", "type": "int"}, {"name": "tags", "type": {"type": "map", "values": "string"}}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"id": 7, "tags": {"a": "b"}})
    client.publish_many(topic, [out.getvalue(), b"\xff"])
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    frame = read(topic=topic, valueFormat="avro", schemaFile=str(tmp_path / "order.avsc"))
    rows = frame.orderBy("seq").select("data.id", "data.tags", "data").collect()
    assert [(r.id, r.tags, r.data is None) for r in rows] == [(7, {"a": "b"}, False), (None, None, True)]


def test_values_as_protobuf(read: Reading, client: Client, topic: str, tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2, timestamp_pb2

    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(name="order.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=5, label=1)
    order.field.add(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    (tmp_path / "order.desc").write_bytes(found.SerializeToString())
    client.publish_many(topic, [b"\x08\x07\x12\x02\x08\x64", b"\xff"])  # id: 7, at: {seconds: 100}
    frame = read(topic=topic, valueFormat="protobuf", schemaFile=str(tmp_path / "order.desc"))
    rows = frame.orderBy("seq").selectExpr("data.id", "unix_seconds(data.at) AS at", "data").collect()
    assert [(r.id, r.at, r.data is None) for r in rows] == [(7, 100, False), (None, None, True)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"tag": "created"}, lambda r: r.tag == "created"),
        ({"tagPrefix": "changed."}, lambda r: r.tag is not None and r.tag.startswith("changed.")),
        ({"node": "host-1"}, lambda r: r.node == "host-1"),
        ({"startingOffsets": '{"orders.all": 100}'}, lambda r: r.seq >= 100),
        ({"endingOffsets": '{"orders.all": 1700}'}, lambda r: r.seq < 1700),
    ],
    ids=["tag", "tagPrefix", "node", "start", "end"],
)
def test_options_choose_records(read: Reading, orders: list[Record], options: Any, wanted: Any) -> None:
    expected = [r.seq for r in orders if wanted(r)]
    assert expected
    assert seqs(read(topic="orders.all", minPartitions=2, **options)) == expected


def test_times_choose_records(read: Reading, orders: list[Record]) -> None:
    first, last = orders[0].ts, orders[-1].ts
    assert last > first
    assert seqs(read(topic="orders.all", startingTimestamp=first + 1)) == [r.seq for r in orders if r.ts > first]
    assert seqs(read(topic="orders.all", endingTimestamp=last)) == [r.seq for r in orders if r.ts < last]


def test_filters_of_one_frame_do_not_leak_into_each_other(read: Reading, orders: list[Record]) -> None:
    frame = read(topic="orders.all")
    both = frame.filter("seq <= 10").union(frame.filter("tag = 'created' AND seq <= 10"))
    tagged = [r for r in orders[:10] if r.tag == "created"]
    assert both.count() == 10 + len(tagged)
    assert frame.count() == COUNT


def test_topics_by_list_pattern_and_sql(spark: Any, read: Reading, client: Client, socket: str) -> None:
    for name in ("many.a", "many.b", "many.bc", "manyfold"):
        client.publish_many(name, [b"x"] * 3)
    counted = read(subscribePattern=r"many\.b.*").groupBy("topic").count()
    assert sorted(map(tuple, counted.collect())) == [("many.b", 3), ("many.bc", 3)]
    assert seqs(read(topics="many.a,manyfold")) == [1, 1, 2, 2, 3, 3]
    spark.sql(f"CREATE OR REPLACE TEMP VIEW v USING topicd OPTIONS (socket '{socket}', topic 'many.a')")
    assert spark.sql("SELECT max(seq) FROM v").collect()[0][0] == 3


def test_tables_of_the_catalog_are_read_with_options_where_they_are_read(
    spark: Any, client: Client, socket: str, topic: str
) -> None:
    client.publish_many(topic, [b"x"] * 3)
    where = f"socket '{socket}', topic '{topic}'"
    spark.sql(f"CREATE TABLE catalogued USING topicd OPTIONS ({where})")
    spark.sql("CREATE TABLE chosen (topic STRING, seq BIGINT, data BINARY) USING topicd")
    try:
        with pytest.raises(Exception, match=r"Spark hands the OPTIONS of a CREATE TABLE to no Python source: use"):
            spark.sql("SELECT count(*) FROM catalogued").collect()
        for table in ("catalogued", "chosen"):
            assert spark.sql(f"SELECT max(seq) FROM {table} WITH ({where})").collect()[0][0] == 3
        spark.sql(f"INSERT INTO chosen WITH (socket '{socket}') VALUES ('{topic}', 0, X'41')")
        assert client.state(topic).head_seq == 4
    finally:
        spark.sql("DROP TABLE catalogued")
        spark.sql("DROP TABLE chosen")


def test_a_gap_that_is_acknowledged_fails_no_more(read: Reading, client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 2_000)
    client.configure(topic, cap_records=500)
    wait_until(lambda: client.state(topic).evict_floor == 1_501, "the cap to be applied")
    asked = {"topic": topic, "startingOffsets": f'{{"{topic}": 11}}'}
    with pytest.raises(Exception, match=rf"topic {topic}: records 11 to 1500 are gone") as raised:
        read(**asked).count()
    found = re.search(r"acknowledgeGaps=(\{.*\}),", str(raised.value))
    assert found is not None
    asked["acknowledgeGaps"] = found[1]
    assert seqs(read(**asked)) == list(range(1_501, 2_001))
    client.configure(topic, cap_records=400)
    wait_until(lambda: client.state(topic).evict_floor == 1_601, "the cap to be applied")
    with pytest.raises(Exception, match=rf"topic {topic}: records 1501 to 1600 are gone"):
        read(**asked).count()


def test_what_cap_took_fails_the_query_or_is_passed_over(read: Reading, client: Client, topic: str) -> None:
    client.configure(topic, cap_records=1_000)
    for _ in range(5):
        client.publish_many(topic, [b"x"] * 500)
    floor = client.state(topic).evict_floor
    assert floor == 1_501
    asked = {"topic": topic, "startingOffsets": f'{{"{topic}": 11}}'}
    with pytest.raises(Exception, match=rf"topic {topic}: records 11 to 1500 are gone \(cap or ttl\)"):
        read(**asked).count()
    assert seqs(read(**asked, failOnDataLoss="false")) == list(range(floor, 2_501))
    assert seqs(read(topic=topic)) == list(range(floor, 2_501))  # earliest: nothing is missing


def test_what_cap_takes_from_a_running_query_fails_it_or_is_passed_over(
    read: Reading, client: Client, topic: str
) -> None:
    client.publish_many(topic, [b"x"] * 2_000)
    strict, lenient = (read(topic=topic, failOnDataLoss=fail).select("seq").rdd for fail in ("true", "false"))
    assert (strict.getNumPartitions(), lenient.getNumPartitions()) == (1, 1)  # they are planned
    client.configure(topic, cap_records=700)
    with pytest.raises(Exception, match=rf"topic {topic}: records 1 to 1300 are gone \(cap\)"):
        strict.collect()
    assert [row.seq for row in lenient.collect()] == list(range(1_301, 2_001))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "there.is.none"}, "there.is.none"),
        ({"topic": "orders.all", "startingOffsets": "latest"}, "a batch query begins at earliest"),
        ({"topic": "orders.all", "startingOffsets": '{"orders.all": 99999}'}, "whose newest record is 3000"),
        ({"topic": "orders.all", "startingOffsets": '{"order.all": 17}'}, "names topic 'order.all', which is not read"),
        ({"topicPattern": "orders.*", "startingOffsets": '{"orders.al": 17}'}, "'orders.al', which is not there"),
        (
            {"topic": "orders.all", "startingOffsets": '{"orders.all": 500}', "endingTimestamp": "1"},
            "the start, seq 500, is behind the end, seq 1",
        ),
        (
            {
                "topic": "orders.all",
                "startingOffsets": '{"orders.all": "latest"}',
                "endingOffsets": '{"orders.all": 7}',
            },
            "the start, seq 3001, is behind the end, seq 7",
        ),
    ],
)
def test_what_cannot_be_read_is_said(read: Reading, orders: list[Record], options: Any, said: str) -> None:
    with pytest.raises(Exception, match=said):
        read(**options).count()


def test_an_empty_topic_is_an_empty_frame(read: Reading, client: Client, topic: str) -> None:
    client.configure(topic)
    assert read(topic=topic).collect() == []
