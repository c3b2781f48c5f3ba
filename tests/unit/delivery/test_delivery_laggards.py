"""Consumers furthest behind: who is listed, that the list is bounded, and that it fits on the stats page."""

from __future__ import annotations

from typing import Any

import msgpack

from tests.unit.delivery.desk import Desk
from topicd.frames import FrameType
from topicd.ipc import stats
from topicd.shards.delivery.laggards import TOP_CONSUMERS
from topicd.shards.delivery.survey import TOP_TOPICS


def looked(desk: Desk) -> dict[str, Any]:
    desk.parts.tick()
    desk.settle()
    return desk.parts.figures.page()


def consumer(topic: Any, name: str, acked: int) -> None:
    topic.consumers.replay(FrameType.CURSOR, {"action": "open", "name": name, "acked": acked}, 0)


def test_the_one_furthest_behind_comes_first_with_what_it_has_acknowledged(desk: Desk) -> None:
    topic = desk.topic()
    desk.write(topic, [b"x"] * 10)
    consumer(topic, "near", 9)
    consumer(topic, "far", 2)
    page = looked(desk)
    assert page["top_consumers"] == [["orders", "far", 2, 8], ["orders", "near", 9, 1]]
    assert (page["consumers"], page["consumer_lag"]) == (2, 9)


def test_the_figures_are_of_now_and_who_is_gone_is_not_listed(desk: Desk) -> None:
    topic = desk.topic()
    desk.write(topic, [b"x"] * 3)
    consumer(topic, "stays", 0)
    consumer(topic, "goes", 0)
    looked(desk)
    desk.write(topic, [b"x"] * 2)
    topic.consumers.replay(FrameType.CURSOR, {"action": "remove", "name": "goes", "acked": None}, 0)
    assert desk.parts.figures.page()["top_consumers"] == [["orders", "stays", 0, 5]]
    desk.parts.catalog.forget(topic)
    assert desk.parts.figures.page()["top_consumers"] == []
    assert looked(desk)["consumers"] == 0


def test_the_list_is_bounded_and_the_page_has_room_for_names_of_full_length(desk: Desk) -> None:
    for number in range(TOP_TOPICS + 2):
        topic = desk.topic(f"{number:02d}" + "t" * 253)
        desk.write(topic, [b"x"] * (number + 1))
        for which in range(2):
            consumer(topic, f"{which}" + "c" * 100, 0)
    page = looked(desk)
    assert len(page["top_consumers"]) == TOP_CONSUMERS
    assert page["consumers"] == 2 * (TOP_TOPICS + 2)
    lags = [row[3] for row in page["top_consumers"]]
    assert lags == sorted(lags, reverse=True) and lags[0] == TOP_TOPICS + 2
    routers = [["r" * 64, 2**63, 2**63, "w" * 64]] * 10
    assert len(msgpack.packb({**page, "top_routers": routers})) < stats.PAYLOAD_MAX * 3 // 4
