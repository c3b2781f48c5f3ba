"""Small things that people stumble over."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import topicd
from tests.support.fakeserver import FakeServer
from tests.unit.cli.kit import run
from tests.unit.cli.test_cli_program import VERBS
from topicd.cli.main import root_command
from topicd.cli.show.human import records_word
from topicd.cli.show.render import Column, fitted
from topicd.client.core.held import merged
from topicd.client.core.options import seconds
from topicd.client.core.settling import Redriving
from topicd.errors import InvalidRequest
from topicd.filechannel import FileChannel
from topicd.ipc.protocol.retry import FOREVER_S
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


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


WRONG = ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), {"a": 1}]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_one_value_is_no_list(wrong: Any, server: FakeServer, tmp_path: Path) -> None:
    """Bytes would be taken apart into numbers, and those be seqs of jobs to delete."""
    with (
        topicd.connect(server.path) as client,
        client.producer() as producer,
        FileChannel(tmp_path, codec="json") as channel,
    ):
        client.publish_many("orders", [b"x"])
        jobs, stages = client.queue("jobs"), client.stages("load")
        asked: dict[str, Callable[[], Any]] = {
            "publish_many": lambda: client.publish_many("orders", wrong),
            "send_many": lambda: producer.send_many("orders", wrong),
            "put_many": lambda: jobs.put_many(wrong),
            "ack": lambda: jobs.ack(wrong),
            "extend": lambda: jobs.extend(wrong, 1_000),
            "nack": lambda: jobs.nack(wrong),
            "retry": lambda: jobs.retry(wrong),
            "delete": lambda: jobs.delete(wrong),
            "then": lambda: merged(wrong),
            "redrive": lambda: Redriving("dead", "jobs", wrong, discard=False),
            "write_records": lambda: stages.write_records(0, 0, "orders", wrong),
            "commit": lambda: stages.commit(0, wrong),
            "file channel": lambda: channel.sender().send_many(wrong),
        }
        if not isinstance(wrong, str):  # one name is enough
            asked["watch"] = lambda: client.watch(wrong)
            asked["lists of channels"] = lambda: client.channels.set_acl("lobby", "join", wrong)
        if not isinstance(wrong, str | bytes):
            asked["exclude_nodes"] = lambda: list(client.read("orders", exclude_nodes=wrong))
        for what, call in asked.items():
            with pytest.raises(InvalidRequest, match=r"a list of .* is needed, not one"):
                pytest.fail(f"{what} took {call()!r}")


def test_a_name_as_bytes_is_that_name(server: FakeServer) -> None:
    with topicd.connect(server.path) as client:
        client.publish("orders", b"x", node=b"here")
        client.publish("orders", b"y", node="there")
        for nodes in (b"here", [b"here"], "here", ["here"]):
            assert [record.data for record in client.read("orders", exclude_nodes=nodes)] == [b"y"]
        with pytest.raises(InvalidRequest, match="a node is text or bytes"):
            list(client.read("orders", exclude_nodes=[7]))  # type: ignore[list-item]


def test_a_stage_is_what_was_staged(server: FakeServer) -> None:
    with topicd.connect(server.path) as client, pytest.raises(InvalidRequest, match="a stage is what write"):
        client.stages("load").commit(0, ["abc"])  # type: ignore[list-item]


# ---- timeouts ----


def test_no_timeout_is_for_ever_and_nonsense_is_none() -> None:
    assert (seconds(None), seconds(...), seconds(..., 7), seconds(0), seconds(2)) == (FOREVER_S, 30.0, 7, 0.0, 2.0)
    for wrong in (-1, float("nan"), True, "5"):
        with pytest.raises(InvalidRequest, match="a number of seconds, or None to wait for ever"):
            seconds(wrong)  # type: ignore[arg-type]


def test_a_client_without_a_timeout_outwaits_a_daemon_that_is_away(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=None) as client:
        client.publish("orders", b"before")
        server.silence()
        waiting = threading.Thread(target=client.publish, args=("orders", b"behind"))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        server.listen()
        waiting.join(30)
        assert not waiting.is_alive()
        assert [record.data for record in client.read("orders")] == [b"before", b"behind"]
