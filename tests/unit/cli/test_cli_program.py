"""The program as a whole: errors, exit codes, help, typos, what it loads."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.support.fakeserver import FakeServer, Request
from tests.unit.cli.kit import Ctl, run
from topicd import errors
from topicd.cli.app import Verb
from topicd.cli.exits import EXIT_OF, Exit, as_cli_error, exit_of, hint_of
from topicd.cli.main import root_command
from topicd.client.core.records import Gap, RecordsMissed
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.model import Tombstone


def every_verb(
    group: click.Group | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    group = group or root_command()
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_verb(command, (*path, name))
        else:
            yield (*path, name), command


VERBS = dict(every_verb())


# ---- errors ----


@pytest.mark.parametrize("cls", errors.ERRORS.values(), ids=lambda cls: cls.code)
def test_every_error_has_an_exit_code(ctl: Ctl, server: FakeServer, cls: type[TopicdError]) -> None:
    assert cls in EXIT_OF or cls is errors.Internal
    if cls.retriable:
        return  # the client repeats those until time is up

    def refuse(request: Request) -> TopicdError | None:
        return cls("something to say") if request.op == Op.APPEND else None

    server.fault = refuse
    done = ctl("publish", "orders", "x")
    assert done.exit_code == exit_of(cls("")) != 0
    assert done.stderr.startswith("topicctl: something to say") and done.stderr.count("\n") == 1


def test_errors_of_the_client_have_exit_codes_too() -> None:
    gap = Gap("t", Tombstone(1, 2, "cap", 2, 3, 4))
    assert exit_of(RecordsMissed(gap)) == Exit.FAILED
    assert exit_of(TopicdError("of a newer daemon")) == Exit.FAILED


def test_an_error_on_many_lines_becomes_one() -> None:
    found = as_cli_error(errors.ConnectionLost("no daemon; tried\n  /a: no file\n  /b: no file"))
    assert found.message == "no daemon; tried /a: no file; /b: no file"
    assert as_cli_error(errors.Internal("")).message == "internal"


def test_time_is_up_when_the_daemon_stays_busy(ctl: Ctl, server: FakeServer) -> None:
    server.fault = lambda request: errors.NotReady("recovering") if request.op == Op.STATE else None
    done = ctl("topic", "show", "orders", "--timeout", "0.2")
    assert done.exit_code == 6 and "topicctl status" in done.stderr


@pytest.mark.parametrize("args", [("status",), ("publish", "a", "b"), ("read", "a"), ("topic", "list"), ("top",)])
def test_no_daemon_is_exit_code_3_and_says_where_it_looked(args: tuple[str, ...]) -> None:
    done = run(*args, "--socket", "/nonexistent/topicd.sock")
    assert done.exit_code == 3
    assert "/nonexistent/topicd.sock" in done.stderr and "TOPICD_SOCKET" in done.stderr
    assert done.stderr.count("\n") == 1


def test_errors_are_json_when_json_was_asked_for(ctl: Ctl) -> None:
    done = ctl("read", "missing", "--json")
    assert done.stdout == ""
    error = json.loads(done.stderr)["error"]
    assert (error["exit_code"], error["code"]) == (4, "topic_not_found")


def test_hints_about_tokens_are_for_those_who_have_one() -> None:
    assert "token" in hint_of(errors.Forbidden("token 'ci' has no write right", token="ci"))
    assert hint_of(errors.Forbidden("the user is not a member of this chat")) == ""
    assert "later" in hint_of(errors.Throttled("busy", limit="router", retry_after_ms=5))
    assert "max_routers" in hint_of(errors.Throttled("a cap", limit="max_routers", max=3, retry_after_ms=1_000))


def test_the_unexpected_is_one_line_too(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("never seen before")

    monkeypatch.setattr("topicd.connect", broken, raising=False)
    done = ctl("status")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1 and "TOPICCTL_DEBUG=1" in done.stderr
    assert isinstance(ctl("status", env={"TOPICCTL_DEBUG": "1"}).exception, RuntimeError)


def test_the_socket_may_be_named_before_and_after_the_verb(server: FakeServer) -> None:
    where = str(server.path)
    assert run("--socket", where, "ping").exit_code == 0
    assert run("ping", "-s", where).exit_code == 0
    assert run("-s", "/nonexistent", "ping", "-s", str(server.run_dir)).exit_code == 0


# ---- help ----


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_verb_has_json_examples_and_help(path: tuple[str, ...]) -> None:
    command = VERBS[path]
    if not isinstance(command, Verb):
        pytest.skip("declared elsewhere")
    done = run(*path, "--help")
    assert done.exit_code == 0
    assert "--json" in done.stdout
    assert "\nExamples:\n" in done.stdout and f"topicctl {' '.join(path)}" in done.stdout.partition("Examples:")[2]
    assert command.help


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_examples_are_accepted(path: tuple[str, ...], tmp_path: Path) -> None:
    """Each example of the help is parsed as far as its options go; its backups lie in a directory that is there."""
    command = VERBS[path]
    if not isinstance(command, Verb):
        pytest.skip("declared elsewhere")
    for line in command.examples.strip().splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "|"]:
            if word not in ("|", ">", "||"):
                words.append(str(tmp_path) if word.startswith("/backups") else word)
                continue
            if words[:1] == ["topicctl"] and tuple(words[1 : 1 + len(path)]) == path:
                command.make_context("topicctl", words[1 + len(path) :], obj=None)
            words = []


def test_the_root_lists_every_verb_without_loading_it() -> None:
    done = run("--help")
    for path in VERBS:
        assert f"\n  {path[0]} " in done.stdout
    bare = run()
    assert bare.exit_code == 2 and "Commands:" in bare.stderr


@pytest.mark.parametrize(
    ("args", "near"),
    [(["pubish"], "publish"), (["topics"], "topic"), (["topic", "lst"], "list"), (["consumer", "acknowledge"], "")],
)
def test_a_typo_in_a_verb_suggests_the_near_one(args: list[str], near: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert f"there is no command {args[-1]!r}" in done.stderr
    assert ("did you mean" in done.stderr and near in done.stderr) if near else "did you mean" not in done.stderr


@pytest.mark.parametrize("verb", [("read",), ("topic", "show"), ("delete", "--before", "3"), ("consumer", "list")])
def test_a_typo_in_a_topic_suggests_the_near_one(ctl: Ctl, verb: tuple[str, ...]) -> None:
    ctl("publish", "orders.eu", "x")
    done = ctl(*verb, "order.eu")
    assert done.exit_code == 4
    assert "there is no topic 'order.eu'; did you mean orders.eu?" in done.stderr


# ---- what is loaded ----


@pytest.mark.parametrize("args", [["publish", "orders", "hello"], ["--help"], ["read", "orders"]])
def test_quick_verbs_load_little(server: FakeServer, args: list[str]) -> None:
    server.open("orders", create=True)
    script = (
        "import sys\n"
        "from topicd.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print([m for m in sys.modules if m.split('.')[0] in"
        " ('rich', 'asyncio', 'psutil', 'uvloop') or 'shards' in m or 'supervisor' in m], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *args, *([] if args == ["--help"] else ["-s", str(server.path)])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"


# ---- completion, config ----


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0 and "_TOPICCTL_COMPLETE" in done.stdout
    assert json.loads(run("completion", shell, "--json").stdout)["shell"] == shell


def test_completion_of_an_unknown_shell() -> None:
    assert run("completion", "csh").exit_code == 2


@pytest.mark.parametrize(("words", "expected"), [("read or", "orders"), ("topic sh", "show"), ("sta", "status")])
def test_the_shell_completes_verbs_and_topics(ctl: Ctl, words: str, expected: str) -> None:
    ctl("publish", "orders", "x")
    count = str(len(words.split()))
    env = {"_TOPICCTL_COMPLETE": "bash_complete", "COMP_WORDS": f"topicctl {words}", "COMP_CWORD": count}
    assert expected in ctl(env=env).stdout


def test_completion_without_a_daemon_is_silent() -> None:
    env = {"_TOPICCTL_COMPLETE": "bash_complete", "COMP_WORDS": "topicctl read o", "COMP_CWORD": "2"}
    done = run(env={**env, "TOPICD_SOCKET": "/nonexistent"})
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_config_show_and_check(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("config") / "topicd.toml"
    file.write_text("wal_shards = 3\n")
    found = json.loads(run("config", "show", "--config", str(file), "--json").stdout)
    assert found["wal_shards"] == {"value": 3, "source": str(file)}
    assert "test_clock" not in found
    assert list(json.loads(run("config", "show", "-c", str(file), "--changed", "--json").stdout)) == ["wal_shards"]
    assert json.loads(run("config", "check", "-c", str(file), "--json").stdout) == {"ok": True, "file": str(file)}
    file.write_text("wal_shard = 3\n")
    done = run("config", "check", "-c", str(file))
    assert done.exit_code == 2 and "did you mean wal_shards?" in done.stderr


# ---- documentation ----


def test_the_page_names_every_verb_and_every_exit_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    for path in VERBS:
        assert path[0] in page and path[-1] in page, path
    for code in Exit:
        assert f"\n| {int(code)} |" in page


@pytest.mark.parametrize("verb", [("topic", "create"), ("topic", "config"), ("queue", "create"), ("channel", "config")])
def test_a_field_given_as_an_option_is_told_how_it_is_given(ctl: Ctl, verb: tuple[str, ...]) -> None:
    done = ctl(*verb, "orders", "--cap-bytes", "1GiB")
    assert done.exit_code == 2
    assert "there is no option --cap-bytes; fields are given as cap_bytes=VALUE" in done.stderr
