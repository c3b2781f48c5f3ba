"""Streams with real Spark: over restarts of query and daemon, the batches are what was sent, each record once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.client.blocking.client import Client
from topicd.errors import InvalidRequest, TopicNotFound

pytestmark = pytest.mark.timeout(120)
WAIT_S = 60.0


class Stream:
    """A query of one topic or more, and the seqs of each batch. Restarts share the checkpoint."""

    def __init__(self, spark: Any, checkpoint: str, **options: Any) -> None:
        self.batches: dict[int, list[int]] = {}
        self.attempts: list[tuple[int, list[int]]] = []
        self.fail: Callable[[int], bool] = lambda batch: False
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = options
        self._query: Any = None

    def start(self, **trigger: Any) -> Any:
        source = self._spark.readStream.format("topicd").options(**self._options).load()
        writer = source.writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        self._query = (writer.trigger(**trigger) if trigger else writer).start()
        return self._query

    def _take(self, frame: Any, batch: int) -> None:
        seqs = sorted(row.seq for row in frame.select("seq").collect())
        self.attempts.append((batch, seqs))
        if self.fail(batch):
            raise RuntimeError("told to fail")
        self.batches[batch] = seqs

    def catch_up(self) -> Any:
        """Everything there is now, then ends; its last progress."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(WAIT_S)
        return query.lastProgress

    @property
    def seqs(self) -> list[int]:
        return [seq for _, batch in sorted(self.batches.items()) for seq in batch]

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()


@pytest.fixture
def stream(spark: Any, socket: str, checkpoint: str) -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def make(**options: Any) -> Stream:
        made.append(Stream(spark, checkpoint, **{"socket": socket, **options}))
        return made[-1]

    yield make
    for found in made:
        found.stop()


def test_batches_keep_to_the_limit_and_a_restart_goes_on(
    stream: Callable[..., Stream], client: Client, topic: str
) -> None:
    client.publish_many(topic, [b"x"] * 1_000)
    found = stream(topic=topic, maxOffsetsPerTrigger=400)
    found.catch_up()
    assert [len(batch) for batch in found.batches.values()] == [400, 400, 200]
    client.publish_many(topic, [b"y"] * 300)
    progress = found.catch_up()
    assert found.seqs == list(range(1, 1_301))
    end = json.loads(progress.sources[0].endOffset)
    assert end == {topic: {"id": client.state(topic).topic_id, "seq": 1_300}}


def test_a_failed_batch_is_repeated_as_it_was(stream: Callable[..., Stream], client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 100)
    found = stream(topic=topic)
    found.fail = lambda batch: True
    with pytest.raises(Exception, match="told to fail"):
        found.catch_up()
    client.publish_many(topic, [b"y"] * 50)
    found.fail = lambda batch: False
    found.catch_up()
    assert found.attempts == [(0, list(range(1, 101))), (0, list(range(1, 101))), (1, list(range(101, 151)))]


def test_a_restart_of_the_daemon_is_waited_out(spark: Any, tmp_path: Path, checkpoint: str, topic: str) -> None:
    with Daemon(tmp_path / "d", **LIVELY, wal_shards=1, delivery_shards=1) as daemon:
        found = Stream(spark, checkpoint, socket=daemon.run.socket, topic=topic, maxRecordsPerTrigger=700)
        daemon.client().publish_many(topic, [b"x"] * 1_000)
        sent = 1_000
        query = found.start()
        try:
            wait_until(lambda: len(found.seqs) >= 1_000, "the first records", WAIT_S)
            for kill in (False, True):
                if kill:
                    daemon.kill_all()
                else:
                    daemon.stop()
                daemon.start().wait_ready()
                sent += daemon.client().publish_many(topic, [b"y"] * 1_000).count
                wait_until(lambda: len(found.seqs) >= sent or query.exception(), "the records behind it", WAIT_S)  # noqa: B023
            assert query.exception() is None
            assert found.seqs == list(range(1, sent + 1))
        finally:
            found.stop()


def test_topics_of_a_pattern_are_found_as_they_appear(
    stream: Callable[..., Stream], client: Client, topic: str
) -> None:
    client.publish_many(f"{topic}.a", [b"x"] * 3)
    found = stream(topicPattern=f"{topic}\\..*")
    found.start()
    wait_until(lambda: len(found.seqs) == 3, "the first topic", WAIT_S)
    client.publish_many(f"{topic}.b", [b"x"] * 2)
    wait_until(lambda: len(found.seqs) == 5, "the second topic", WAIT_S)
    assert sorted(found.seqs) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_trimmed_topic_fails_the_query_or_the_progress_names_the_gap(
    stream: Callable[..., Stream], client: Client, topic: str, acknowledged: bool
) -> None:
    client.publish_many(topic, [b"x"] * 100)
    stream(topic=topic).catch_up()
    client.configure(topic, cap_records=500)
    for _ in range(3):
        client.publish_many(topic, [b"x"] * 300)
    gap = {topic: {"id": client.state(topic).topic_id, "seqs": "101-500"}}
    going_on = {"acknowledgeGaps": json.dumps(gap)} if acknowledged else {"failOnDataLoss": "false"}
    strict = stream(topic=topic)
    with pytest.raises(Exception, match=rf"topic {topic}: records 101 to 500 are gone \(cap or ttl\)"):
        strict.catch_up()
    lenient = stream(topic=topic, **going_on)
    progress = lenient.catch_up()
    assert lenient.seqs == list(range(501, 1_001))
    assert json.loads(progress.sources[0].endOffset)[topic]["lost"] == "101-500"


def test_a_topic_created_anew_is_noticed(stream: Callable[..., Stream], client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 100)
    stream(topic=topic).catch_up()
    client.delete_topic(topic)
    client.publish_many(topic, [b"x"] * 200)
    with pytest.raises(
        Exception, match=rf"topic {topic}: records above 100, if there were any, are gone \(recreated\)"
    ):
        stream(topic=topic).catch_up()
    lenient = stream(topic=topic, failOnDataLoss="false")
    lenient.catch_up()
    assert lenient.seqs == list(range(1, 201))


def test_a_consumer_shows_what_is_processed_and_frees_it(
    stream: Callable[..., Stream], client: Client, topic: str
) -> None:
    client.configure(topic, retain="acked")
    client.publish_many(topic, [b"x"] * 900)
    found = stream(topic=topic, consumer="job", maxRecordsPerTrigger=300)
    found.catch_up()
    (seen,) = client.consumers(topic)
    assert (seen.name, seen.acked_seq, seen.lag) == ("job", 600, 300)  # Spark commits one batch late
    assert client.state(topic).earliest_seq == 601
    assert found.seqs == list(range(1, 901))


def test_latest_skips_nothing_when_the_first_batch_fails(
    stream: Callable[..., Stream], client: Client, topic: str
) -> None:
    client.publish_many(topic, [b"old"] * 10)
    found = stream(topic=topic, startingOffsets="latest", consumer="job")
    found.catch_up()
    assert found.seqs == []
    client.publish_many(topic, [b"new"] * 5)
    found.fail = lambda batch: True
    with pytest.raises(Exception, match="told to fail"):
        found.catch_up()
    client.publish_many(topic, [b"newer"] * 5)
    found.fail = lambda batch: False
    found.catch_up()
    assert found.seqs == list(range(11, 21))


def test_latest_without_a_name_is_refused(stream: Callable[..., Stream], topic: str) -> None:
    with pytest.raises(Exception, match="a stream that begins at latest needs option consumer"):
        stream(topic=topic, startingOffsets="latest").catch_up()


def stream_reader(**options: Any) -> Any:
    """As Spark drives it, in this process."""
    from topicd.spark.options import ReadOptions
    from topicd.spark.stream import StreamReader

    pyspark_types = pytest.importorskip("pyspark.sql.types")
    return StreamReader(ReadOptions.parse(options), pyspark_types.StructType().add("seq", "long"))


def test_a_batch_waits_for_enough_records_or_long_enough(client: Client, socket: str, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 3)
    given = {"socket": socket, "topic": topic, "minRecordsPerTrigger": "10", "idleWait": "0"}
    patient, hasty = stream_reader(**given), stream_reader(**given, maxTriggerDelay="0")
    limit = patient.getDefaultReadLimit()
    start = patient.initialOffset()
    first = patient.latestOffset(start, limit)
    assert first[topic]["seq"] == 3, "nobody knows how long the last batch is ago: the first one comes at once"
    hasty.latestOffset(start, limit)
    client.publish_many(topic, [b"x"] * 9)
    assert patient.latestOffset(first, limit) == first
    assert hasty.latestOffset(first, limit)[topic]["seq"] == 12
    client.publish(topic, b"x")
    assert patient.latestOffset(first, limit)[topic]["seq"] == 13


def test_available_now_reads_what_there_is_however_little(client: Client, socket: str, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 3)
    reader = stream_reader(socket=socket, topic=topic, minRecordsPerTrigger="10", maxRecordsPerTrigger="10")
    reader.prepareForTriggerAvailableNow()
    limit, at = reader.getDefaultReadLimit(), reader.initialOffset()
    for seq in (3, 3):
        at = reader.latestOffset(at, limit)
        assert at[topic]["seq"] == seq


@pytest.mark.parametrize("options", [{"endingOffsets": "earliest"}, {"endingTimestamp": "5"}])
def test_a_stream_has_no_end(socket: str, topic: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="a stream has no end"):
        stream_reader(socket=socket, topic=topic, **options)


def test_a_start_for_a_topic_that_is_not_there_is_refused(client: Client, socket: str, topic: str) -> None:
    client.publish(f"{topic}.a", b"x")
    start = json.dumps({f"{topic}.b": 5})
    with pytest.raises(TopicNotFound, match="which is not there"):
        stream_reader(socket=socket, topics=f"{topic}.a,{topic}.b", startingOffsets=start).initialOffset()


def test_an_idle_stream_does_not_ask_all_the_time(client: Client, socket: str, topic: str) -> None:
    client.publish(topic, b"x")
    reader = stream_reader(socket=socket, topic=topic, idleWait=str(WAIT_S))
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(reader.latestOffset(start, limit)))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    client.publish(topic, b"y")
    waiting.join(WAIT_S)
    assert ended[0][topic]["seq"] == 2
