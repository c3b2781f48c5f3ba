"""The stats page: what is on it, and that it stays bounded."""

from __future__ import annotations

from typing import Any

from tests.unit.delivery.desk import Desk
from topicd import metrics
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.survey import TOP_TOPICS


def test_every_key_is_a_metric_and_every_metric_has_its_key(desk: Desk) -> None:
    saves = {"store_saves", "store_save_failures", "store_save_histogram", "store_save_seconds"}  # of two metrics
    appends = {"append_histogram", "append_seconds_total"}  # of one
    assert set(desk.parts.figures.page()) == {
        *metrics.DELIVERY,
        "top_topics",
        "top_consumers",
        "top_routers",
        "cold_trouble",
        "damaged",
        "stopped_queues",
        *saves,
        *appends,
    }


def test_it_tells_of_topics_connections_and_what_is_under_way(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    desk.line()
    before = desk.parts.figures.page()
    assert (before["topics"], before["sessions"], before["in_flight_bytes"]) == (1, 1, 0)
    desk.append(topic, [b"x" * 100])
    desk.parts.turn.end()
    assert desk.parts.figures.page()["in_flight_bytes"] > 100
    desk.settle()
    after = desk.parts.figures.page()
    assert (after["in_flight_bytes"], after["appends"], after["records"]) == (0, 1, 1)


def top_topics(desk: Desk) -> list[list[Any]]:
    """After a look at all topics."""
    desk.parts.tick()
    desk.settle()
    found: list[list[Any]] = desk.parts.figures.page()["top_topics"]
    return found


def test_a_row_of_a_topic_has_its_name_and_one_figure_for_each_metric(desk: Desk) -> None:
    topic = desk.topic()
    desk.write(topic, [b"abc", b"de"])
    line = desk.line()
    line.ask(Op.CONSUMER_OPEN, topic="orders", name="c")
    [row] = top_topics(desk)
    assert row == ["orders", 2, 2, 5, 0, 2]
    desk.write(desk.topic("jobs", type="queue"), [b"a", b"b"])
    rows = {row[0]: row for row in top_topics(desk)}
    assert rows["jobs"] == ["jobs", 2, 2, 2, 0, 0, 2, 0, 0, 0, 0]
    assert len(rows["jobs"]) == 1 + len(metrics.TOPIC)


def test_only_the_topics_written_last_are_listed(desk: Desk) -> None:
    for number in range(TOP_TOPICS + 5):
        desk.topic(f"t{number}").last_write_ms = number
    rows = top_topics(desk)
    assert [row[0] for row in rows] == [f"t{number}" for number in reversed(range(5, TOP_TOPICS + 5))]


def test_a_long_name_is_cut(desk: Desk) -> None:
    desk.topic("n" * 255)
    assert top_topics(desk)[0][0] == "n" * 64
