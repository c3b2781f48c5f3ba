"""Option committed: a commit is read when all of it is there, by batches, by streams and by the pipelines."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.process.test_commits import half_published
from tests.spark.test_spark_stream import WAIT_S, stream_reader
from tests.support.inlinespark import InlineSpark
from topicd.client.blocking.client import Client
from topicd.client.staging import sweep
from topicd.errors import InvalidRequest
from topicd.spark.loss import Policy
from topicd.spark.options import ReadOptions
from topicd.spark.pipelines import archive, dedup
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.rollup.progress import Book, plan
from topicd.spark.plan import Range, batch_ranges

pytestmark = pytest.mark.timeout(120)
BEFORE, HALF, BEHIND = 100, 25_000, 5


@pytest.fixture
def halved(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A topic with 100 records, a part of a commit of 25,000, and 5 records behind that; its committer is dead."""
    client.publish_many(topic, [b"before"] * BEFORE)
    query = half_published(client, topic, monkeypatch, HALF)
    client.publish_many(topic, [b"behind"] * BEHIND)
    state = client.state(topic)
    assert (state.settled_seq, state.open_commits) == (BEFORE, 1) and state.head_seq < BEFORE + HALF
    yield query
    sweep.finish(client, topic)


def ranges(client: Client, topic: str, **options: str) -> list[tuple[int, int]]:
    found = batch_ranges(client, ReadOptions.parse({"topic": topic, **options}))
    assert all(isinstance(one, Range) for one in found)
    return [(one.after, one.up_to) for one in found]


def test_a_batch_ends_where_the_commit_begins_until_it_is_whole(
    spark: Any, client: Client, socket: str, topic: str, halved: Any
) -> None:
    source = spark.read.format("topicd").options(socket=socket, topic=topic).schema("data string")
    assert source.load().where("data like 'half%'").count() > 0
    whole = source.option("committed", "true")
    assert [(row.data, row["count"]) for row in whole.load().groupBy("data").count().collect()] == [("before", BEFORE)]
    halved.finish()
    assert whole.load().count() == BEFORE + HALF + BEHIND


@pytest.mark.parametrize("half_ends", ["finish", "abandon"])
def test_a_stream_comes_to_a_commit_when_it_is_over(
    client: Client, socket: str, topic: str, halved: Any, half_ends: str
) -> None:
    reader = stream_reader(socket=socket, topic=topic, committed="true", idleWait=str(WAIT_S))
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    assert start[topic]["seq"] == BEFORE
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(reader.latestOffset(start, limit)))
    waiting.start()
    client.publish(topic, b"behind, too")
    waiting.join(0.3)
    assert waiting.is_alive(), "what lies behind the commit comes with it"
    if half_ends == "finish":
        halved.finish()
    else:
        sweep.abandon(client, topic, take_back=True)
    waiting.join(WAIT_S)
    head = client.state(topic).head_seq
    assert ended[0][topic]["seq"] == head
    (task,) = reader.partitions(start, ended[0])
    found = [seq for batch in reader.read(task) for seq in batch.column("seq").to_pylist()]
    assert len(found) == (HALF if half_ends == "finish" else 0) + BEHIND + 1 and min(found) > BEFORE


def test_available_now_and_patterns_end_there_too(client: Client, socket: str, topic: str, halved: Any) -> None:
    pattern = topic.replace(".", r"\.") + ".*"
    client.publish_many(f"{topic}.other", [b"x"] * 7)
    reader = stream_reader(socket=socket, topicPattern=pattern, committed="true", idleWait="0")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert {name: place["seq"] for name, place in end.items()} == {topic: BEFORE, f"{topic}.other": 7}
    assert reader.reportLatestOffset()[topic]["seq"] == BEFORE


def test_a_query_that_was_further_goes_on_from_there(client: Client, socket: str, topic: str, halved: Any) -> None:
    """It ran without the option before: nothing is read twice, and nothing is refused."""
    plain = stream_reader(socket=socket, topic=topic)
    limit = plain.getDefaultReadLimit()
    at = plain.latestOffset(plain.initialOffset(), limit)
    for available_now in (False, True):
        strict = stream_reader(socket=socket, topic=topic, committed="true", idleWait="0")
        if available_now:
            strict.prepareForTriggerAvailableNow()
        assert strict.latestOffset(at, limit) == at
    halved.finish()
    strict = stream_reader(socket=socket, topic=topic, committed="true")
    assert strict.latestOffset(at, limit)[topic]["seq"] == client.state(topic).head_seq


def test_latest_is_behind_the_last_whole_commit(client: Client, socket: str, topic: str, halved: Any) -> None:
    reader = stream_reader(socket=socket, topic=topic, committed="true", startingOffsets="latest", consumer="late")
    assert reader.initialOffset()[topic]["seq"] == BEFORE
    halved.finish()
    again = stream_reader(socket=socket, topic=topic, committed="true", startingOffsets="latest", consumer="late")
    assert again.initialOffset()[topic]["seq"] == BEFORE, "the commit that was half is not skipped"


def test_bounds_inside_half_a_commit(client: Client, topic: str, halved: Any) -> None:
    now = str(client.fetch(topic, client.state(topic).head_seq - 1).records[0].ts + 1)
    assert ranges(client, topic, committed="true", endingTimestamp=now) == [(0, BEFORE)]
    assert ranges(client, topic, committed="true", endingOffsets=json.dumps({topic: BEFORE + 1})) == [(0, BEFORE)]
    for bound in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidRequest, match=f"whole commits end at {BEFORE}"):
            ranges(client, topic, committed="true", **{bound: json.dumps({topic: BEFORE + 2})})


def test_a_commit_whose_beginning_was_evicted_is_named_and_the_rest_comes(
    client: Client, socket: str, topic: str, halved: Any
) -> None:
    client.configure(topic, cap_records=1_000)
    floor = client.state(topic).evict_floor - 1
    assert floor > BEFORE
    reader = stream_reader(socket=socket, topic=topic, committed="true", failOnDataLoss="false", idleWait="0")
    limit = reader.getDefaultReadLimit()
    assert ranges(client, topic, committed="true") == []
    topic_id = client.state(topic).topic_id
    start = {topic: {"id": topic_id, "seq": BEFORE - 50}}
    end = reader.latestOffset(start, limit)
    assert end[topic] == {"id": topic_id, "seq": floor, "after": floor, "lost": f"{BEFORE - 49}-{floor}"}
    assert [one for one in reader.partitions(start, end) if one.ranges] == []
    halved.finish()
    head = client.state(topic).head_seq
    assert reader.latestOffset(end, limit)[topic]["seq"] == head
    lost = reader.latestOffset({topic: {"id": topic_id, "seq": BEFORE}}, limit)[topic]["lost"]
    assert lost == f"{BEFORE + 1}-{client.state(topic).evict_floor - 1}"


def test_pipelines_leave_half_a_commit_to_a_later_run(
    spark: Any, client: Client, socket: str, topic: str, halved: Any, tmp_path: Path
) -> None:
    place = connection_options(socket, timeout=60.0)
    asked = archive.Options(place, (topic,), tmp_path / "a")
    inline: Any = InlineSpark()
    report = archive.run(inline, asked)
    assert report.rows[0]["added"] == BEFORE and "being committed" in report.notes[0]
    marked = dedup._marked(spark, dedup.Options(place, (topic,)), {topic: client.state(topic)})
    assert marked.count() == BEFORE, "what is kept of repeated records must not be taken back"
    steps = plan(client, [topic], Book({"window_ms": 1}, "q"), Policy())
    assert all(due.up_to <= BEFORE for due in steps), "a window that is written stays as it is"
    halved.finish()
    report = archive.run(inline, asked)
    assert report.rows[0]["added"] == HALF + BEHIND and report.notes == []
