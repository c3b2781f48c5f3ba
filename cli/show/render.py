"""Everything topicctl prints: tables, fields, JSON documents and streams. Promise: tables fit the terminal,
colours appear on terminals only, and JSON holds every byte: text as text, other bytes as {"base64": …}.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Nobody looks at the edge of a pipe: a table is as wide as its content.
UNBOUNDED = 1_000
# What SIMPLE_HEAD puts between two columns.
BETWEEN = 3
# Cells that may be cut keep at least so much, as long as there are others to leave out: those of a rank first, then,
# where it is very narrow, any but the first, which names the row.
SHRUNK, LEAST = 20, 10
STATE_STYLE = {"serving": "green", "recovering": "yellow", "starting": "yellow", "draining": "yellow"}


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    shrink: bool = False  # its cells may be cut with an ellipsis
    wrap: bool = False  # its cells may go on in further lines instead
    rank: int = 0  # 0: always shown; on a narrow terminal the highest rank is left out first


class PipeClosed(Exception):
    """Who read our output has left, as `head` does: no error."""


class Output:
    """stdout of one run."""

    def __init__(self, *, json_mode: bool, width: int | None = None, color: bool | None = None) -> None:
        self.json_mode = json_mode
        self.color = wants_color() if color is None else color
        self._width = width

    @cached_property
    def width(self) -> int:
        return terminal_width() if self._width is None else self._width

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(
            width=self.width, no_color=not self.color, force_terminal=self.color, highlight=False, markup=False
        )

    # ---- JSON ----

    def document(self, body: Any) -> None:
        """One JSON document: indented for people, compact in a pipe."""
        indent = 2 if sys.stdout.isatty() else None
        self._write(dumps(body, indent))

    def lines(self, bodies: Iterable[Any]) -> None:
        """NDJSON."""
        self.raw(b"".join(dumps(body).encode("utf-8", "backslashreplace") + b"\n" for body in bodies))

    def raw(self, data: bytes) -> None:
        if data:
            self._write(data, nl=False)

    def either(self, body: Any, line: str) -> None:
        """One JSON document, or what it says in a line."""
        if self.json_mode:
            self.document(body)
        else:
            self.text(line)

    # ---- for people ----

    def text(self, line: str) -> None:
        self._write(line)

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[str]], title: str = "", *, empty: str = "none"
    ) -> None:
        """One without rows says so, instead of a head without a body."""
        cells = list(rows)
        if cells:
            self.show(make_table(columns, cells, self.width, title))
        else:
            self.text(f"{title}: {empty}" if title else empty)

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """`name  value`, one per line, values under each other."""
        pairs = list(pairs)
        widest = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.text(f"{self.styled(f'{name:<{widest}}', 'bright_black')}  {value}")

    def show(self, what: RenderableType) -> None:
        with self.console.capture() as capture:
            self.console.print(what, soft_wrap=False)
        lines = [line.rstrip() for line in capture.get().splitlines()]
        self._write("\n".join(lines))

    def _write(self, what: str | bytes, *, nl: bool = True) -> None:
        """Styles are in it only where colours are wanted, so it is written as it is."""
        raw = what if isinstance(what, bytes) else what.encode("utf-8", "backslashreplace")
        try:
            sys.stdout.flush()
            write_all(sys.stdout.buffer, raw + b"\n" if nl else raw)
        except BrokenPipeError:
            raise PipeClosed from None

    def styled(self, text: str, color: str) -> str:
        return click.style(text, fg=color) if self.color and color else text


def write_all(stream: BinaryIO, data: bytes) -> None:
    """Every byte: without a buffer, as with PYTHONUNBUFFERED, a write may take only a part."""
    left = memoryview(data)
    while left:
        done = stream.write(left)
        left = left[len(left) if done is None else done :]
    stream.flush()


def make_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, title: str = "") -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    widths = fitted(columns, rows, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", title=title or None)
    for number, wide in widths.items():
        column = columns[number]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
            width=wide,
        )
    for row in rows:
        table.add_row(*(Text(row[i], style=STATE_STYLE.get(row[i], "")) for i in widths))
    return table


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """Number and width of the columns to show: the least important are left out before any cell is cut."""
    from rich.cells import cell_len

    natural = {
        i: max([cell_len(column.title), *(cell_len(row[i]) for row in rows)]) for i, column in enumerate(columns)
    }
    shrink = {i for i, column in enumerate(columns) if (column.shrink or column.wrap) and not column.right}
    least = {i: min(wide, SHRUNK) if i in shrink else wide for i, wide in natural.items()}
    while total_width(least) > width:
        last = max(least, key=lambda i: (columns[i].rank, i))
        if columns[last].rank == 0:
            break
        del least[last]
    widths = {i: natural[i] for i in least}
    _cut(widths, shrink, SHRUNK, width)
    # Only what is meant to be cut is cut: a number or a time that is cut is another one.
    _cut(widths, shrink, LEAST, width)
    while total_width(widths) > width and len(widths) > 1:
        del widths[max(widths)]
        widths = {i: natural[i] for i in widths}
        _cut(widths, shrink, LEAST, width)
    _cut(widths, set() if columns[0].right else {0}, 1, width)
    return widths


def _cut(widths: dict[int, int], which: set[int], floor: int, width: int) -> None:
    """The widest of them first, until it fits or none is above the floor."""
    while total_width(widths) > width and (cut := [i for i in widths if i in which and widths[i] > floor]):
        widths[max(cut, key=lambda i: widths[i])] -= 1


def total_width(widths: dict[int, int]) -> int:
    return sum(widths.values()) + BETWEEN * (len(widths) - 1)


def dumps(body: Any, indent: int | None = None) -> str:
    separators = None if indent else (",", ":")
    return json.dumps(body, ensure_ascii=False, indent=indent, separators=separators, default=_json_value)


def json_bytes(data: bytes) -> str | dict[str, str]:
    """UTF-8 as text, anything else in base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def json_text(text: str | None) -> Any:
    """A tag or node: text that stands for undecodable bytes becomes base64."""
    return None if text is None else json_bytes(text.encode("utf-8", "surrogateescape"))


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return json_bytes(value)
    return str(value)


def wants_color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """COLUMNS, else the terminal's, else no limit."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return UNBOUNDED
