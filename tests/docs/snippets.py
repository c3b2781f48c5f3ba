"""Runnable blocks of a Markdown page: ```sh and ```python, run in order; a ```text block right behind one is what it
prints, where … stands for anything and a line of … alone for any lines. `<!-- not run: reason -->` in the line before
a block leaves it out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ANY = "…"
_FENCE = re.compile(r"```(\w*)\s*")
_SKIP = re.compile(r"<!-- not run: \S.* -->")
RUN = ("sh", "python")


@dataclass
class Snippet:
    page: Path
    line: int
    language: str
    code: str
    expected: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    found: list[Snippet] = []
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    latest: Snippet | None = None  # the block whose output may follow
    skip = False
    for number, line in lines:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if line.strip():
                skip = _SKIP.fullmatch(line.strip()) is not None
                if "<!-- not run" in line and not skip:
                    raise ValueError(f"{page}:{number}: say why: <!-- not run: reason -->")
                latest = None
            continue
        body = _body(page, number, lines)
        if fence[1] in RUN:
            latest = None if skip else Snippet(page, number, fence[1], body)
            found += [latest] if latest else []
        elif fence[1] == "text" and latest is not None:
            latest.expected, latest = body, None
        skip = False
    return found


def _body(page: Path, began: int, lines: object) -> str:
    taken: list[str] = []
    for _, line in lines:  # type: ignore[attr-defined]
        if line == "```":
            return "".join(f"{text}\n" for text in taken)
        taken.append(line)
    raise ValueError(f"{page}:{began}: the block never ends")


def matches(expected: str, printed: str) -> bool:
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == ANY:
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split(ANY)) + r"[ \t]*\n"
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else printed + "\n") is not None
