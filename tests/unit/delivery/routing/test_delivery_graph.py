"""Routers judged as one graph."""

from __future__ import annotations

import pytest

from topicd.errors import Incompatible, RouterCycle, RouterNotFound, Throttled
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.graph import Graph


def graph_of(*ways: str) -> Graph:
    """`a>b`: a router of that name from a to b."""
    graph = Graph()
    for number, way in enumerate(ways, 1):
        graph.put(wanted(way, id=number))
    return graph


def wanted(way: str, name: str = "", **more: object) -> Definition:
    source, dest = way.split(">")
    return Definition(name or way, source, dest, **more)  # type: ignore[arg-type]


def test_a_topic_has_one_source() -> None:
    graph = graph_of("a>b")
    with pytest.raises(Incompatible) as refused:
        graph.judge(wanted("c>b"), 0)
    assert refused.value.detail["reason"] == "router_dest_fan_in"
    graph.judge(wanted("a>b", name="a second one"), 0)


def test_a_router_keeps_its_ends() -> None:
    with pytest.raises(Incompatible) as refused:
        graph_of("a>b").judge(wanted("a>c", name="a>b"), 0)
    assert refused.value.detail["reason"] == "router_repoint_forbidden"
    assert (refused.value.detail["existing_source"], refused.value.detail["existing_dest"]) == ("a", "b")


def test_new_ones_beyond_the_limit_are_refused_and_changes_are_not() -> None:
    graph = graph_of("a>b")
    with pytest.raises(Throttled) as refused:
        graph.judge(wanted("a>c"), 1)
    assert (refused.value.detail["limit"], refused.value.detail["max"]) == ("max_routers", 1)
    graph.judge(wanted("a>b", preserve_tag=False), 1)
    graph.judge(wanted("a>c"), 0)


def test_a_circle_is_refused_with_its_way() -> None:
    graph = graph_of("b>c", "c>d", "b>x")
    with pytest.raises(RouterCycle) as refused:
        graph.judge(wanted("d>b"), 0)
    assert refused.value.detail["cycle"] == ["d", "b", "c", "d"]
    graph.judge(wanted("d>b", allow_cycle=True), 0)


def test_fan_in_is_judged_before_the_circle() -> None:
    with pytest.raises(Incompatible):
        graph_of("a>b", "b>c").judge(wanted("c>b"), 0)


def test_pages_are_by_name_and_by_topic() -> None:
    graph = graph_of("a>b", "a>c", "b>d")
    page, following = graph.page("", None, None, "", 2)
    assert ([one.router for one in page], following) == (["a>b", "a>c"], "a>c")
    assert [one.router for one in graph.page("", None, None, "a>c", 2)[0]] == ["b>d"]
    assert [one.router for one in graph.page("", "a", None, "", 9)[0]] == ["a>b", "a>c"]
    assert [one.router for one in graph.page("", "a", "c", "", 9)[0]] == ["a>c"]
    assert [one.router for one in graph.page("b", None, None, "", 9)[0]] == ["b>d"]


def test_what_is_removed_is_nowhere() -> None:
    graph = graph_of("a>b")
    assert graph.touching("a") == graph.touching("b") == ["a>b"]
    assert graph.remove("a>b") is not None
    assert graph.remove("a>b") is None
    assert graph.touching("a") == []
    with pytest.raises(RouterNotFound):
        graph.get("a>b")
