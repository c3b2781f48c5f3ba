"""The topics of a shard by name: pages in order, whatever comes and goes between them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from tests.unit.delivery.kit import TS
from topicd.model import TopicConfig
from topicd.shards.delivery.topic.catalog import Catalog, TopicIds
from topicd.shards.delivery.topic.topic import Topic


def make() -> Catalog:
    place: Any = SimpleNamespace(index=0, delivery_shards=1)
    log: Any = None
    return Catalog(place, log, TopicIds(lambda: None))


def listed(catalog: Catalog, prefix: str, limit: int) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page, following = catalog.page(prefix, after, limit, lambda name: not name.endswith("7"))
        found += [topic.name for topic in page]
        if following is None:
            return found
        assert len(page) == limit
        after = following


def test_pages_show_what_is_there_once_and_in_order() -> None:
    catalog, chance = make(), random.Random(7)
    names = [f"{letter}.{number}" for letter in "abc" for number in range(40)]
    for number in range(2_000):
        name = chance.choice(names)
        known = catalog.by_name.get(name)
        if known is not None:
            catalog.forget(known)
        else:
            catalog.add(Topic(number + 1, name, TopicConfig(), 0, TS))
        if number % 50 == 0:
            prefix = chance.choice(["", "a", "b.", "c.1", "d"])
            there = sorted(n for n in catalog.by_name if n.startswith(prefix) and not n.endswith("7"))
            assert listed(catalog, prefix, chance.choice([1, 3, 100])) == there
    assert len(catalog._names) <= 2 * len(names)  # names that are gone do not pile up
