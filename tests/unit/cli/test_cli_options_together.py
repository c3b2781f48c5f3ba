"""Options that exclude each other are refused by name, those that mean nothing alone too: none is silently ignored."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest

from tests.unit.cli.kit import run
from tests.unit.cli.test_cli_program import VERBS
from topicd.cli.app import Verb, argument_name
from topicd.cli.contexts import Context, Contexts

DECLARED = {path: verb for path, verb in VERBS.items() if isinstance(verb, Verb)}
APART = [(path, pair) for path, verb in DECLARED.items() for names in verb.apart for pair in combinations(names, 2)]
NEEDS = [(path, names) for path, verb in DECLARED.items() for names in verb.needs]


def spelled(verb: click.Command) -> dict[str, click.Parameter]:
    """Its parameters as `apart` and `needs` name them."""
    return {
        name: param
        for param in verb.params
        for name in (param.opts if isinstance(param, click.Option) else [argument_name(param)])
    }


def typed(param: click.Parameter, tmp_path: Path) -> list[str]:
    """The parameter on a command line, with a value that it takes."""
    value = VALUES.get(param.type.name) or (param.type.choices[0] if isinstance(param.type, click.Choice) else "1")
    if param.type.name in ("directory", "path"):
        value = str(tmp_path)
    if isinstance(param, click.Argument):
        return [value]
    return [max(param.opts, key=len), *([] if param.is_flag else [value])]


VALUES = {"place": "1", "span": "5s", "time": "2027-01-31", "1/N": "1/10"}
SPECIAL = {"--where": "tag=a", "--older-than": "1d", "--every": "5s", "--meta": "{}", "--only": "A", "--until": "5s"}


def line(path: tuple[str, ...], names: tuple[str, ...], tmp_path: Path) -> list[str]:
    """The verb with what it requires and with these."""
    params = spelled(DECLARED[path])
    options: list[str] = []
    arguments: list[str] = []
    for param in DECLARED[path].params:
        mine = [name for name in names if params.get(name) is param]
        if not mine and not param.required:
            continue
        words = typed(param, tmp_path)
        if mine and mine[0] in SPECIAL:
            words = [mine[0], SPECIAL[mine[0]]]
        (arguments if isinstance(param, click.Argument) else options).extend(words)
    return [*path, *options, *arguments]


@pytest.mark.parametrize(("path", "pair"), APART, ids=" ".join)
def test_what_excludes_each_other_is_refused(path: tuple[str, ...], pair: tuple[str, str], tmp_path: Path) -> None:
    done = run(*line(path, pair, tmp_path), env={"TOPICD_SOCKET": "/nonexistent"})
    assert done.exit_code == 2, done.stderr
    assert f"{pair[0]} and {pair[1]} exclude each other" in done.stderr


@pytest.mark.parametrize(("path", "names"), NEEDS, ids=" ".join)
def test_what_means_nothing_alone_is_refused(path: tuple[str, ...], names: list[str], tmp_path: Path) -> None:
    extra = ("KEY",) if "KEY" in spelled(DECLARED[path]) else ()
    done = run(*line(path, (names[0], *extra), tmp_path), env={"TOPICD_SOCKET": "/nonexistent"})
    assert done.exit_code == 2, done.stderr
    assert f"{names[0]} goes only with {' or '.join(names[1:])}" in done.stderr


def test_only_what_there_is_is_declared() -> None:
    for path, verb in DECLARED.items():
        known = spelled(verb).keys()
        for names in (*verb.apart, *verb.needs):
            assert set(names) <= known, path
            assert len(names) > 1, path


@pytest.mark.parametrize(
    "pair",
    [
        *("--tag --tag-prefix", "--data --raw", "--data --json", "--raw --json", "--data --format", "--from --last"),
        *("--after --last", "--last --limit", "--until --follow", "--lines --raw", "--once --count", "--delay --at"),
        *("--dot --mermaid", "--dot --json", "--set-tag --drop-tag", "--expired KEY", "--groups --topic"),
    ],
)
def test_wherever_both_are_they_are_declared(pair: str) -> None:
    """A new verb with the same options is told apart as well."""
    one, other = pair.split()
    for path, verb in DECLARED.items():
        if {one, other} <= spelled(verb).keys() and (path, pair) not in TOGETHER:
            assert any({one, other} <= set(names) for names in verb.apart), path


TOGETHER = {
    (("read",), "--last --limit"),  # the last N, and no more of them than N
    (("publish",), "--raw --json"),  # what comes in, and what goes out
    (("pipeline", "run", "restore"), "--data --json"),  # the name of a column
    (("pipeline", "run", "restore"), "--data --format"),
}


def test_parse_is_for_json_and_every_yes_is_a_y() -> None:
    for path, verb in DECLARED.items():
        known = spelled(verb)
        assert "--parse" not in known or ["--parse", "--json"] in verb.needs, path
        assert ("--yes" in known) == ("-y" in known), path


@pytest.mark.parametrize(
    "wrong",
    [
        ["publish", "orders", "x", "--lines"],
        ["publish", "orders", "x", "--from-file", "f"],
        ["publish", "orders", "-", "--key", "k"],
        ["watch", "orders.*", "--create"],
        ["bench", "--only", "A", "--batch", "10"],
        ["bench", "--only", "A,C", "--in-flight", "10"],
        ["queue", "create", "q", "--lease", "3s", "lease=4s"],
        ["queue", "put", "q", "x", "--lines"],
        ["queue", "dead", "redrive", "q", "1", "--all"],
        ["read", "orders", "--grep", "x", "--limit", "1"],
        ["ping", "--socket", "/nonexistent", "--context", "prod"],
        ["tail", "orders", "--json", "--data"],
        ["tail", "orders", "--format", "{seq}", "--json"],
    ],
    ids=" ".join,
)
def test_other_words_that_contradict_each_other(wrong: list[str]) -> None:
    done = run(*wrong, env={"TOPICD_SOCKET": "/nonexistent"})
    assert done.exit_code == 2, done.stderr


def test_a_variable_that_names_a_daemon_goes_before_the_current_context(tmp_path: Path) -> None:
    here = Context("here", "/run/here")
    known = Contexts(tmp_path / "contexts.toml", "here", {"here": here})
    assert known.chosen(None, {}) is here
    for variable in ("TOPICD_SOCKET", "TOPICD_RUN_DIR"):
        assert known.chosen(None, {variable: "/run/there"}) is None
        assert known.chosen(None, {variable: "/run/there", "TOPICD_CONTEXT": "here"}) is here
        assert known.chosen("here", {variable: "/run/there"}) is here


def test_what_goes_together_is_not_refused() -> None:
    def given(*args: Any) -> int:
        return run(*args, env={"TOPICD_SOCKET": "/nonexistent"}).exit_code

    for args in (["--json", "read", "t", "--parse"], ["read", "t", "--last", "3", "--limit", "2"], ["top", "--once"]):
        assert given(*args) == 3
    assert given("--json", "read", "t", "--data") == 2
