"""What the next step of a streaming rollup reads, and when it refuses to go on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.rollup_kills import Storm, pass_window
from tests.spark.rollup_victim import WINDOW_MS, inline, options
from topicd.client.blocking.client import Client
from topicd.errors import Conflict, FormatError, InvalidRequest
from topicd.spark.loss import Policy, RecordsLost, parse_gaps
from topicd.spark.pipelines import rollup
from topicd.spark.pipelines.rollup import steps
from topicd.spark.pipelines.rollup.progress import Book, Due, Place, plan

STRICT = Policy()


@pytest.fixture
def asked(socket: str, topic: str, tmp_path: Path) -> rollup.Options:
    return options(socket, str(tmp_path / "r"), [topic])


def book(asked: rollup.Options, **places: Place) -> Book:
    made = Book.of(asked, None)
    made.places = dict(places)
    return made


def windows(client: Client, topic: str) -> list[int]:
    return [record.ts // WINDOW_MS for batch in client.history(topic) for record in batch]


def test_a_step_ends_before_the_window_that_is_still_open(client: Client, topic: str, asked: rollup.Options) -> None:
    client.publish_many(topic, [b"x"] * 10)
    pass_window(client, topic)
    found = windows(client, topic)
    last = max(n for n, window in enumerate(found, 1) if window < found[-1])
    state = client.state(topic)
    assert plan(client, [topic], book(asked), STRICT) == [Due(topic, state.topic_id, None, last)]
    assert plan(client, [topic], book(asked, **{topic: Place(state.topic_id, 4)}), STRICT)[0].after == 4
    assert plan(client, [topic], book(asked, **{topic: Place(state.topic_id, last)}), STRICT) == []


def test_records_that_were_deleted_end_no_window(client: Client, topic: str, asked: rollup.Options) -> None:
    client.publish_many(topic, [b"x"] * 10)
    last = client.fetch(topic, 9).records[-1].ts // WINDOW_MS
    pass_window(client, topic)
    state = client.state(topic)
    client.publish_many(topic, [b"gone"] * 300, tag="gone")
    pass_window(client, topic)
    client.publish(topic, b"gone", tag="gone")
    client.delete(topic, match="gone")
    (due,) = plan(client, [topic], book(asked), STRICT)
    assert due.up_to >= 10
    newest = windows(client, topic)[-1]
    assert newest > last
    for record in client.fetch(topic, due.up_to):
        assert record.ts // WINDOW_MS >= newest
    client.delete(topic, before_seq=client.state(topic).head_seq + 1)
    assert plan(client, [topic], book(asked, **{topic: Place(state.topic_id, 5)}), STRICT) == []


def test_a_topic_that_was_created_again_is_noticed_and_can_be_acknowledged(
    client: Client, topic: str, asked: rollup.Options
) -> None:
    client.publish(topic, b"x")
    old = client.state(topic).topic_id
    client.delete_topic(topic)
    client.publish(topic, b"x")
    pass_window(client, topic)
    before = book(asked, **{topic: Place(old, 1)})
    with pytest.raises(RecordsLost, match="records above 1, if there were any, are gone") as raised:
        plan(client, [topic], before, STRICT)
    told = re.search(r"acknowledgeGaps=(\{.*\}),", raised.value.message)
    assert told is not None
    (due,) = plan(client, [topic], before, Policy(acknowledged=parse_gaps(told[1])))
    assert (due.topic_id, due.after) == (client.state(topic).topic_id, None)


def test_a_topic_that_ends_before_the_rollup_is_refused(client: Client, topic: str, asked: rollup.Options) -> None:
    client.publish(topic, b"x")
    with pytest.raises(InvalidRequest, match="ends at 1, but the rollup says that 5 was read"):
        plan(client, [topic], book(asked, **{topic: Place(client.state(topic).topic_id, 5)}), STRICT)


def test_a_book_survives_its_json_and_is_mixed_with_no_other(asked: rollup.Options) -> None:
    made = book(asked, t=Place(5, 10))
    made.planned = [Due("t", 5, None, 20)]
    assert Book.of(asked, made.to_json()) == made
    with pytest.raises(Conflict, match="this rollup was begun with window_ms 20; name another directory"):
        Book.of(replace(asked, window="1s"), made.to_json())
    for broken in ({}, {**made.to_json(), "places": {"t": [1]}}, {**made.to_json(), "planned": 5}):
        with pytest.raises(FormatError, match="the rollup's manifest is malformed"):
            Book.of(asked, broken)


def test_options_that_belong_elsewhere_are_refused(asked: rollup.Options, tmp_path: Path) -> None:
    spark: Any = None
    with pytest.raises(InvalidRequest, match="--checkpoint belongs to --to-topic"):
        rollup.run(spark, replace(asked, checkpoint=tmp_path / "c"))
    with pytest.raises(InvalidRequest, match="acknowledgeGaps must be JSON"):
        rollup.run(spark, replace(asked, acknowledge_gaps="1-5"))


@pytest.mark.parametrize("kind", ["directory", "topic"])
def test_a_continuous_rollup_goes_on_until_it_is_interrupted(
    client: Client, socket: str, topic: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Storm(client, socket, tmp_path, topic, kind)
    one.fill()
    looks = 0

    def wait(seconds: float) -> None:
        nonlocal looks
        looks += 1
        one.check()
        if looks == 3:
            raise KeyboardInterrupt
        one.fill()

    monkeypatch.setattr(steps, "time", SimpleNamespace(sleep=wait))
    report = rollup.run(inline(monkeypatch.setattr), replace(one.options(), stream=rollup.CONTINUOUS))
    assert report.totals["records"] == sum(records * n for (_, _, records), n in one.written().items())
    assert [row["topic"] for row in report.rows] == one.topics
