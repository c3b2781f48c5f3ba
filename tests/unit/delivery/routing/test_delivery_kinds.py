"""Which destinations are derived."""

from __future__ import annotations

from typing import Any

import pytest

from topicd.model import TopicConfig
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.graph import Graph
from topicd.shards.delivery.routing.kinds import logged_from, logged_into, unfit_source
from topicd.shards.delivery.topic.topic import Topic


def topic(name: str = "b", **config: Any) -> Topic:
    return Topic(1, name, TopicConfig.from_fields(config), 0, 0)


def graph(*ways: tuple[str, str]) -> Graph:
    made = Graph()
    for number, (source, dest) in enumerate(ways, 1):
        made.put(Definition(f"r{number}", source, dest, id=number))
    return made


@pytest.mark.parametrize(
    ("config", "fit"),
    [
        ({}, True),
        ({"durability": "fsync"}, True),
        ({"cap_records": 5, "discard": "reject"}, True),
        ({"cap_records": 5}, False),
        ({"cap_bytes": 5_000}, False),
        ({"ttl_ms": 5_000}, False),
        ({"retain": "acked"}, False),
        ({"compact": "last-per-tag"}, False),
        ({"durability": "memory"}, False),
        ({"durability": "ephemeral"}, False),
        ({"type": "queue"}, False),
    ],
)
def test_sources_whose_records_stay(config: dict[str, Any], fit: bool) -> None:
    assert (unfit_source(TopicConfig.from_fields(config)) == "") == fit


def test_a_source_with_what_is_about_to_be() -> None:
    source = topic("a")
    assert logged_from(source) == ""
    source.next_config = TopicConfig.from_fields({"ttl_ms": 5})
    assert logged_from(source) == "its source has a TTL"
    source.next_config, source.inflows.derived = None, 3
    assert logged_from(source) == "its source is derived itself"


@pytest.mark.parametrize(
    ("config", "of", "fit"),
    [
        ({}, "disk", True),
        ({"ttl_ms": 5_000, "cap_records": 3}, "disk", True),
        ({"durability": "memory"}, "disk", True),
        ({"durability": "fsync"}, "fsync", True),
        ({"durability": "fsync"}, "disk", False),
        ({"durability": "ephemeral"}, "fsync", False),
        ({"type": "queue"}, "fsync", False),
        ({"retain": "acked"}, "fsync", False),
        ({"compact": "last-per-tag"}, "fsync", False),
    ],
)
def test_destinations_that_promise_no_more(config: dict[str, Any], of: str, fit: bool) -> None:
    assert (logged_into(topic(**config), graph(("a", "b")), of) == "") == fit


def test_destinations_of_one_router_and_nobody_else() -> None:
    assert logged_into(topic(), graph(("a", "b"), ("a", "b")), "disk") == "another router leads to it"
    assert logged_into(topic(), graph(("a", "b"), ("b", "c")), "disk") == "routers leave it"
    written = topic()
    written.seqs.head = 1
    assert logged_into(written, graph(("a", "b")), "disk") == "others have written to it"
