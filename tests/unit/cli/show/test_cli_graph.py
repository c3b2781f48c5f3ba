"""Routers, drawn."""

from __future__ import annotations

from topicd.cli.show.graph import Edge, dot, mermaid, tree

EDGES = [
    Edge("fan-1", "orders", "audit"),
    Edge("fan-2", "orders", "eu", "eu:*"),
    Edge("on", "audit", "archive"),
    Edge("ab", "a", "b"),
    Edge("ba", "b", "a"),
]


def test_the_terminal_shows_ways_and_circles() -> None:
    assert (
        "\n".join(tree(EDGES))
        == """\
orders
├─ fan-1 ─> audit
│  └─ on ─> archive
└─ fan-2 ─> eu  (eu:*)
a
└─ ab ─> b
   └─ ba ─> a  ^"""
    )


def test_every_router_is_drawn_once() -> None:
    diamond = [Edge("1", "a", "b"), Edge("2", "a", "c"), Edge("3", "b", "d"), Edge("4", "c", "e"), Edge("5", "a", "b")]
    drawn = "\n".join(tree(diamond))
    assert all(drawn.count(f"─ {edge.router} ─>") == 1 for edge in diamond)


def test_other_programs_get_their_own() -> None:
    assert '  "orders" -> "eu" [label="fan-2\\neu:*"];' in list(dot(EDGES))
    lines = list(mermaid(EDGES))
    assert lines[0] == "graph LR"
    assert '  t5 -- "fan-2, eu:*" --> t4' in lines
