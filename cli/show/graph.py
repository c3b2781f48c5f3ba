"""Routers as a drawing: for the terminal, Graphviz and Mermaid. Promise: every router is drawn once, circles too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Edge(NamedTuple):
    router: str
    source: str
    dest: str
    note: str = ""


def tree(edges: list[Edge]) -> Iterator[str]:
    """From the topics that nothing feeds; a topic that was drawn before is only named."""
    leaving: dict[str, list[Edge]] = {}
    for edge in sorted(edges):
        leaving.setdefault(edge.source, []).append(edge)
    fed = {edge.dest for edge in edges}
    drawn: set[str] = set()
    roots = [topic for topic in sorted(leaving) if topic not in fed]
    # What is left when all of those are drawn are circles: each begins with its first topic by name.
    for topic in [*roots, *(topic for topic in sorted(leaving) if topic in fed)]:
        if topic not in drawn:
            yield topic
            yield from _below(topic, leaving, drawn, "")


def _below(topic: str, leaving: dict[str, list[Edge]], drawn: set[str], indent: str) -> Iterator[str]:
    drawn.add(topic)
    ways = leaving.get(topic, [])
    for edge in ways:
        last = edge is ways[-1]
        note = f"  ({edge.note})" if edge.note else ""
        again = "  ^" if edge.dest in drawn and edge.dest in leaving else ""
        yield f"{indent}{'└' if last else '├'}─ {edge.router} ─> {edge.dest}{note}{again}"
        if edge.dest not in drawn:
            yield from _below(edge.dest, leaving, drawn, indent + ("   " if last else "│  "))


def dot(edges: list[Edge]) -> Iterator[str]:
    yield "digraph routers {"
    yield "  rankdir=LR;"
    for edge in sorted(edges):
        label = edge.router + (f"\\n{edge.note}" if edge.note else "")
        yield f'  "{edge.source}" -> "{edge.dest}" [label="{label.replace(chr(34), chr(39))}"];'
    yield "}"


def mermaid(edges: list[Edge]) -> Iterator[str]:
    """Names stand in quotes behind ids, so that no character of them means anything."""
    yield "graph LR"
    topics = sorted({topic for edge in edges for topic in (edge.source, edge.dest)})
    ids = {topic: f"t{number}" for number, topic in enumerate(topics)}
    for topic, known in ids.items():
        yield f'  {known}["{topic}"]'
    for edge in sorted(edges):
        label = edge.router + (f", {edge.note}" if edge.note else "")
        yield f'  {ids[edge.source]} -- "{label.replace(chr(34), chr(39))}" --> {ids[edge.dest]}'
