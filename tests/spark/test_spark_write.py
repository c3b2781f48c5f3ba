"""Writing with real Spark: what a job or a batch wrote is there once and whole, or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.cluster import Cluster
from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from topicd.client.blocking.client import Client
from topicd.client.staging.names import STAGES
from topicd.client.staging.sweep import drop, list_stages
from topicd.clock import SystemClock
from topicd.errors import TopicNotFound

pytestmark = pytest.mark.timeout(180)
WAIT_S = 60.0


def payloads(client: Client, topic: str) -> list[str]:
    try:
        return [record.text for record in drain_topic(client, topic)]
    except TopicNotFound:
        return []


def save(frame: Any, socket: str, **options: str) -> None:
    frame.write.format("topicd").option("socket", socket).options(**options).mode("append").save()


def stages_left(client: Client) -> list[str]:
    return [info.topic for info in client.topics(STAGES)]


# ---- batch ----


def test_every_column_arrives_and_rows_keep_their_order(spark: Any, client: Client, socket: str, topic: str) -> None:
    frame = spark.range(0, 25_000, 1, 2).selectExpr(
        "cast(concat('row ', id) as binary) as data",
        f"concat('{topic}.', id % 3) as topic",
        "if(id % 2 = 0, concat('t', id % 5), null) as tag",
        "if(id % 7 = 0, 'host', '') as node",
        "if(id % 1000 = 0, map('id', cast(id as string)), null) as meta",
        "id as seq",
    )
    save(frame, socket)
    for part in range(3):
        found = [(r.text, r.tag, r.node, r.meta) for r in drain_topic(client, f"{topic}.{part}")]
        assert found == [
            (
                f"row {n}",
                f"t{n % 5}" if n % 2 == 0 else None,
                "host" if n % 7 == 0 else None,
                {"id": str(n)} if n % 1000 == 0 else {},
            )
            for n in range(part, 25_000, 3)
        ]
    assert stages_left(client) == []


@pytest.mark.parametrize("meta", ["""'{"a": [1, 2]}'""", "unhex('81a16192" + "0102')"], ids=["json", "msgpack"])
def test_the_option_names_the_topic_and_meta_has_three_forms(
    spark: Any, client: Client, socket: str, topic: str, meta: str
) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) as data", "'elsewhere' as topic", f"{meta} as meta")
    save(frame, socket, topic=topic)
    assert [record.meta for record in drain_topic(client, topic)] == [{"a": [1, 2]}] * 3


def test_what_was_read_can_be_written(spark: Any, client: Client, socket: str, topic: str) -> None:
    def meta(n: int) -> dict[str, Any]:
        return {"n": n, "text": str(n), "x": 1.5, "yes": True, "none": None, "list": [n, {"raw": b"\xff"}]}

    records = [(f"{n}".encode(), f"tag-{n % 3}", "here", meta(n)) for n in range(2_000)]
    client.publish_many(topic, records)
    source = spark.read.format("topicd").options(socket=socket, topic=topic, includeMeta="true", minPartitions="2")
    save(source.load(), socket, topic=f"{topic}.copy")
    found = [(r.data, r.tag, r.node, r.meta) for r in drain_topic(client, f"{topic}.copy")]
    assert found == records


def test_a_job_that_fails_leaves_nothing_behind(spark: Any, client: Client, socket: str, topic: str) -> None:
    bad = "if(id = 39000, raise_error('told to fail'), cast(id as string)) as data"
    with pytest.raises(Exception, match="told to fail"):
        save(spark.range(0, 40_000, 1, 2).selectExpr(bad), socket, topic=topic)
    assert payloads(client, topic) == []
    # The attempt that failed may still have been on its way when the job gave up: what it stages then nobody decides
    # on, and it expires. The other one's is gone.
    left = list_stages(client, SystemClock().now_ms())
    assert len(left) <= 1 and not any(one.decided for one in left)
    drop(client, left)
    assert stages_left(client) == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id as value"], {"topic": "t"}, "a column data is needed"),
        (["'x' as data"], {}, "column topic or the option topic is needed"),
        (["id as data"], {"topic": "t"}, "column data cannot be bigint"),
        (["'x' as data", "id as color"], {"topic": "t"}, "column 'color' has no place"),
        (["'x' as data"], {"topic": "topicd.stage.x"}, "topicd's own"),
        (["cast(null as string) as data"], {"topic": "t"}, "record 0: data is null"),
        (["'x' as data", "cast(null as string) as topic"], {}, "a row has no topic"),
        (["'x' as data", "'not json' as meta"], {"topic": "t"}, "meta is not JSON"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(
    spark: Any, socket: str, columns: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        save(spark.range(0, 1, 1, 1).selectExpr(*columns), socket, **options)


def test_topics_are_not_overwritten(spark: Any, client: Client, socket: str, topic: str) -> None:
    client.publish(topic, b"stays")
    frame = spark.range(1).selectExpr("'x' as data")
    with pytest.raises(Exception, match="overwrite"):
        frame.write.format("topicd").options(socket=socket, topic=topic).mode("overwrite").save()
    assert payloads(client, topic) == ["stays"]


def test_attempts_that_fail_die_or_are_overtaken_write_nothing_twice(
    cluster: Cluster, client: Client, remote: dict[str, str], topic: str
) -> None:
    answer = cluster.run("tests.spark.write_jobs", "write", "12000", topic, json.dumps(remote))
    assert answer == "written"
    assert payloads(client, topic) == [str(n) for n in range(12_000)]
    assert stages_left(client) == []


# ---- stream ----


class Copy:
    """A query from one topic to another."""

    def __init__(self, spark: Any, socket: str, topic: str, checkpoint: str) -> None:
        self._spark, self._socket, self._checkpoint = spark, socket, checkpoint
        self.source, self.target = f"{topic}.source", f"{topic}.target"

    def start(self, **trigger: Any) -> Any:
        options = {"socket": self._socket, "topic": self.source, "maxRecordsPerTrigger": "2000"}
        frame = self._spark.readStream.format("topicd").options(**options).load().drop("topic")
        writer = frame.writeStream.format("topicd").option("socket", self._socket).option("topic", self.target)
        writer = writer.option("checkpointLocation", self._checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def catch_up(self) -> None:
        query = self.start(availableNow=True)
        assert query.awaitTermination(WAIT_S)


def test_a_batch_that_is_written_again_is_stored_once(
    spark: Any, client: Client, socket: str, topic: str, checkpoint: str
) -> None:
    """The driver died between the commit and Spark's note of it: the batch is planned, written and committed again."""
    copy = Copy(spark, socket, topic, checkpoint)
    client.publish_many(copy.source, [str(n) for n in range(5_000)])
    copy.catch_up()
    wanted = [str(n) for n in range(5_000)]
    assert payloads(client, copy.target) == wanted
    notes = sorted((path for path in Path(checkpoint, "commits").iterdir() if path.name.isdigit()), key=_number)
    notes[-1].unlink()
    (notes[-1].parent / f".{notes[-1].name}.crc").unlink(missing_ok=True)
    client.publish_many(copy.source, ["later"])
    copy.catch_up()
    assert payloads(client, copy.target) == [*wanted, "later"]
    assert stages_left(client) == []


def _number(path: Path) -> int:
    return int(path.name)


def test_a_daemon_that_is_killed_under_a_stream_costs_nothing(
    spark: Any, tmp_path: Path, topic: str, checkpoint: str
) -> None:
    with Daemon(tmp_path / "d", wal_shards=2, delivery_shards=2, **LIVELY) as daemon:
        client = daemon.client(timeout=60)
        copy = Copy(spark, str(daemon.run.socket), topic, checkpoint)
        client.publish_many(copy.source, [str(n) for n in range(20_000)])
        query = copy.start()
        try:
            for enough in (4_000, 12_000):
                wait_until(lambda enough=enough: len(payloads(client, copy.target)) >= enough, "batches", WAIT_S)
                daemon.kill_all()
                daemon.start().wait_ready()
            wait_until(lambda: len(payloads(client, copy.target)) >= 20_000 or not query.isActive, "the end", WAIT_S)
            assert query.exception() is None
        finally:
            query.stop()
        assert payloads(client, copy.target) == [str(n) for n in range(20_000)]
    shutil.rmtree(tmp_path / "d")
