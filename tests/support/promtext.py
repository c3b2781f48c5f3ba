"""Prometheus text, read strictly: what a scraper would refuse is an AssertionError."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"([a-z_][a-z0-9_]*)(\{.*\})? (-?[0-9.e+-]+)")
_LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_PARTS = ("_bucket", "_sum", "_count")
_UNESCAPED = {'\\"': '"', "\\\\": "\\", "\\n": "\n"}

Labels = frozenset[tuple[str, str]]


class Exposition:
    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        assert text.endswith("\n")
        current = ""
        closed: set[str] = set()
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                closed.add(current)
                _, _, current, kind = line.split(" ")
                assert current not in closed, f"{current} stands in two places"
                self.kinds[current] = kind
            elif not line.startswith("# HELP "):
                self._take(line, current)

    def _take(self, line: str, family: str) -> None:
        match = _SAMPLE.fullmatch(line)
        assert match is not None, line
        name, raw, value = match.groups()
        allowed = [family + part for part in _PARTS] if self.kinds.get(family) == "histogram" else [family]
        assert name in allowed, f"{name} under {family}"
        key = (name, labels_of(raw or "{}"))
        assert key not in self.samples, f"twice: {line}"
        self.samples[key] = float(value)

    def value(self, name: str, **labels: str) -> float:
        """The sum over every series with at least these labels; 0 without any."""
        wanted = set(labels.items())
        return sum(value for (found, has), value in self.samples.items() if found == name and wanted <= has)

    def has(self, name: str, **labels: str) -> bool:
        wanted = set(labels.items())
        return any(found == name and wanted <= has for found, has in self.samples)


def labels_of(raw: str) -> Labels:
    body = raw[1:-1]
    found, at = [], 0
    while at < len(body):
        match = _LABEL.match(body, at)
        assert match is not None, raw
        value = re.sub(r'\\["\\n]', lambda m: _UNESCAPED[m.group()], match.group(2))
        found.append((match.group(1), value))
        at = match.end()
    return frozenset(found)
