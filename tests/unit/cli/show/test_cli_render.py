"""Numbers, sizes, times, bytes, colours, widths."""

from __future__ import annotations

import io
import json
import os
import sys
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicd.cli.show import human, render
from topicd.cli.show.render import Column, Output, fitted, json_bytes, json_text, total_width


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.5, "0.50"),
        (999, "999"),
        (999.9, "1.00k"),
        (1234, "1.23k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (999_999, "1.00M"),
        (1_234_567, "1.23M"),
        (5e9, "5.00G"),
        (5e12, "5.00T"),
        (5e15, "5e+15"),
    ],
)
def test_short_count(number: float, text: str) -> None:
    assert human.short_count(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1.0 MiB"), (2**60, "1024.0 PiB")],
)
def test_size(number: float, text: str) -> None:
    assert human.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (0.0032, "3.2 ms"),
        (4.13, "4.1 s"),
        (59.96, "1m 00s"),
        (125, "2m 05s"),
        (3599.6, "1h 00m"),
        (11_220, "3h 07m"),
        (187_200, "2d 04h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert human.duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("90s", 90),
        ("15m", 900),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("250ms", 0.25),
        ("5", None),
        ("m", None),
        ("1w", 604_800),
        ("1y", None),
    ],
)
def test_ages(text: str, age: float | None) -> None:
    assert human.parse_age(text) == (None if age is None else timedelta(seconds=age))


@given(st.binary(max_size=60))
def test_printable_is_one_harmless_line(data: bytes) -> None:
    assert human.printable(data).isprintable()


@given(st.binary(max_size=60))
def test_bytes_survive_json(data: bytes) -> None:
    found = json.loads(json.dumps(json_bytes(data)))
    if isinstance(found, dict):
        import base64

        assert base64.b64decode(found["base64"]) == data
    else:
        assert found.encode() == data


def test_labels_that_are_not_text() -> None:
    assert json_text(b"\xff".decode("utf-8", "surrogateescape")) == {"base64": "/w=="}
    assert json_text(None) is None


names = st.text("abcdefgh", min_size=1, max_size=12)
columns = st.lists(st.builds(Column, names, st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=8)


@given(columns, st.integers(1, 120), st.data())
def test_tables_fit_whenever_that_is_possible(columns: list[Column], width: int, data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(st.lists(st.text("xyz", max_size=40), min_size=len(columns), max_size=len(columns)), max_size=3)
    )
    widths = fitted(columns, rows, width)
    assert total_width(widths) <= width or len(widths) <= 1
    for i in widths:
        if columns[i].right:  # a number that is cut is another number
            assert widths[i] >= max([len(columns[i].title), *(len(row[i]) for row in rows)])
    if len(widths) == len(columns) and total_width(widths) < width:
        # Nothing is cut without need.
        assert all(widths[i] >= max([len(columns[i].title), *(len(row[i]) for row in rows)]) for i in widths)


@pytest.mark.parametrize(
    ("tty", "env", "wanted"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, tty: bool, env: dict[str, str], wanted: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    assert render.wants_color() is wanted


def test_a_coloured_table_has_colours_and_a_plain_one_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    for color in (True, False):
        Output(json_mode=False, width=80, color=color).table([Column("state")], [["serving"]])
        assert ("\x1b[" in capsys.readouterr().out) is color


def test_width_comes_from_columns_then_from_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert render.terminal_width() == 33
    monkeypatch.setenv("COLUMNS", "many")
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((77, 20)))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    assert render.terminal_width() == 77

    def no_terminal(fd: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", no_terminal)
    assert render.terminal_width() == render.UNBOUNDED


def test_short_writes_lose_nothing() -> None:
    class Raw(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:3]))

    stream = Raw()
    render.write_all(stream, b"all of this")
    assert stream.getvalue() == b"all of this"


def test_a_table_without_rows_says_so(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = Output(json_mode=False, width=80, color=False)
    out.table([Column("a")], [])
    out.table([Column("a")], iter(()), empty="no topics")
    out.table([Column("a")], [["x"]])
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[:2] == ["none", "no topics"] and lines[-1] == "x"
