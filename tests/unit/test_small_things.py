"""Small things that people stumble over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.unit.cli.kit import run
from tests.unit.cli.test_cli_program import VERBS
from topicd.cli.main import root_command
from topicd.cli.show.human import records_word
from topicd.cli.show.render import Column, fitted
from topicd.client.core.encode import check_list
from topicd.errors import InvalidRequest
from topicd.words import counted

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("topicd", "ipc", "shards", "cli") for path in (ROOT / folder).rglob("*.py")]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "adr").glob("*.md")]


@pytest.mark.parametrize("width", range(1, 80))
def test_a_number_is_never_cut(width: int) -> None:
    columns = [Column("topic", shrink=True), Column("records", right=True), Column("bytes", right=True)]
    rows = [("a.rather.long.name.of.a.topic", "123,456,789,012", "1,023.9 GiB")]
    found = fitted(columns, rows, width)
    for number in (1, 2):
        assert number not in found or found[number] == len(rows[0][number])


@pytest.mark.parametrize("width", range(1, 80))
def test_nor_is_a_time_and_names_stay_readable(width: int) -> None:
    columns = [Column("name", shrink=True), Column("state"), Column("next"), Column("data", shrink=True)]
    rows = [("nightly.reports.of.all.shops", "recovering", "2026-11-19 03:00:00.000", "x" * 60)]
    found = fitted(columns, rows, width)
    assert found.get(1, 10) == 10 and found.get(2, 23) == 23
    if len(found) > 1:  # columns are left out before the name of the row means nothing any more
        assert found[0] >= 10


# ---- counts ----


def test_one_record_is_not_1_records() -> None:
    assert (records_word(1), records_word(2), records_word(1_000)) == ("1 record", "2 records", "1,000 records")
    assert (counted(1, "copy", "copies"), counted(0, "copy", "copies")) == ("1 copy", "0 copies")


NOUNS = re.compile(
    r" (?:(?!in |of |to |and |with )\w+ )?"
    r"(?:records|topics|segments|frames|seqs|jobs|messages|files|chats|members|consumers|connections|processes|stages|"
    r"commits|copies|shards|streams|claims|tokens|users|places|times|days|letters|routers|backups|requests)\b"
)
# What is written for people to read, not for whoever handles an error.
FOR_PEOPLE = [
    *(path for path in SOURCES if path.is_relative_to(ROOT / "cli")),
    ROOT / "topicd/gateway/dashboard/problems.py",
    ROOT / "shards/delivery/queues/asking.py",
]


def numbers_before_plurals(source: str) -> Iterator[tuple[int, str]]:
    """Places of f-strings where any number may stand before a noun that is right for all but one."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            if isinstance(value.value, ast.Name) and value.value.id.isupper():
                continue  # a limit, which is not 1
            if NOUNS.match(str(text.value)):
                yield node.lineno, str(text.value)


def test_the_check_sees_them() -> None:
    assert list(numbers_before_plurals('f"{n} records"')) and list(numbers_before_plurals('f"{n:,} dead letters"'))
    assert not list(numbers_before_plurals('f"{MOST} records, {n} of them"'))


@pytest.mark.parametrize("path", FOR_PEOPLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_numbers_come_with_the_noun_they_need(path: Path) -> None:
    assert list(numbers_before_plurals(path.read_text())) == []


# ---- what is named exists ----

SAID = re.compile(r"(?:`|^\s*(?:\$ )?)(topicctl(?: [a-z][a-z-]*)+)", re.M)


def commands_named(text: str) -> Iterator[str]:
    yield from (match[1] for match in SAID.finditer(text))


def is_a_command(line: str) -> bool:
    """As far as its words are commands."""
    found: click.Command = root_command()
    for word in line.split()[1:]:
        if not isinstance(found, click.Group):
            return True
        step = found.get_command(click.Context(found), word)
        if step is None:
            return False
        found = step
    return True


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_named_exist(path: Path) -> None:
    assert [line for line in commands_named(path.read_text()) if not is_a_command(line)] == []


def test_that_check_sees_them_too() -> None:
    assert not is_a_command("topicctl topic configure")
    assert not is_a_command("topicctl topics")
    assert is_a_command("topicctl publish orders") and is_a_command("topicctl topic config")
    assert list(commands_named("see `topicctl top` or\n  topicctl queue list x")) == [
        "topicctl top",
        "topicctl queue list x",
    ]


def test_lists_of_commands_are_not_cut_off() -> None:
    for path in {(), *(path[:-1] for path in VERBS)}:
        assert "..." not in run(*path, "--help").stdout.partition("Commands:")[2]


# ---- lists ----


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}])
def test_one_value_is_no_list_of_records(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="a list of records is needed"):
        check_list(wrong)
