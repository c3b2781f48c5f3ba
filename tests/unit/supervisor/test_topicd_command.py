"""The command line of the daemon."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from topicd import __version__, config
from topicd.supervisor import daemon
from topicd.supervisor.command import command
from topicd.supervisor.main import main, plain_flags


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config.FIELDS:
        monkeypatch.delenv(config.env_name(name), raising=False)
    monkeypatch.delenv(config.CONFIG_ENV, raising=False)
    monkeypatch.setattr(gc, "disable", lambda: None)  # main() stops it for the daemon's start, not for other tests


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(command, list(arguments), env=environ, prog_name="topicd")


def test_version() -> None:
    assert run("--version").output == f"topicd {__version__}\n"


def test_help_has_a_flag_for_every_setting_but_the_hidden() -> None:
    text = run("--help").output
    for name, f in config.FIELDS.items():
        assert (f"--{name.replace('_', '-')} " in text) == (not f.metadata.get("hidden"))


def test_show_says_where_values_come_from(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("max_topics = 5\n")
    found = run("config", "show", "--json", "--config", str(file), "--wal-shards", "3", TOPICD_LOG_LEVEL="debug")
    rows: dict[str, Any] = json.loads(found.output)
    assert rows["max_topics"] == {"value": 5, "source": str(file)}
    assert rows["wal_shards"] == {"value": 3, "source": "flag"}
    assert rows["log_level"] == {"value": "debug", "source": "environment"}
    assert "test_clock" not in rows
    text = run("--wal-shards", "3", "config", "show").output
    assert any(line.split() == ["wal_shards", "3", "flag"] for line in text.splitlines())


def test_flags_may_stand_on_both_sides_of_the_command() -> None:
    found = run("--wal-shards", "3", "--max-topics", "9", "config", "show", "--wal-shards", "4", "--json")
    rows = json.loads(found.output)
    assert (rows["wal_shards"]["value"], rows["max_topics"]["value"]) == (4, 9)


def test_check_says_yes_or_why_not() -> None:
    good = run("config", "check")
    assert good.exit_code == 0
    assert "settings are fine" in good.output
    bad = run("config", "check", "--ring-bytes", "1")
    assert bad.exit_code == 2
    assert "ring_bytes (flag): must be 1536KiB to 64MiB" in bad.output
    assert json.loads(run("config", "check", "--json", "--ring-bytes", "1").output)["ok"] is False


def test_wrong_settings_end_the_daemon_with_two() -> None:
    assert run("--ring-bytes", "1").exit_code == 2
    assert run("--no-such-flag").exit_code == 2


PLAIN = [
    [],
    ["--data-dir", "/d", "--wal-shards", "3"],
    ["--data-dir=/d=e", "--config=/f"],
    ["--wal-shards", "3", "--wal-shards=4"],
    ["--allowed-uids="],
]


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_plain_flags_mean_the_same_with_and_without_the_command_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to the daemon, stopped at its door."""
    given: list[dict[str, Any]] = []

    def load(flags: dict[str, Any]) -> Any:
        given.append({name: value for name, value in flags.items() if value is not None})

    monkeypatch.setattr(daemon, "load", load)
    monkeypatch.setattr(daemon, "run", lambda loaded, flags: 7)
    monkeypatch.setattr("sys.argv", ["topicd", *arguments])
    with pytest.raises(SystemExit, match="7"):
        main()
    assert run(*arguments).exit_code == 7
    assert given[0] == given[1] == plain_flags(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["config", "show"],
        ["--wal-shards"],
        ["--wal-shards", "--data-dir"],
        ["--wal_shards", "3"],
        ["--data-dir", "/d", "more"],
        ["--", "--data-dir", "/d"],
        ["-h"],
        ["--test-clock"],
    ],
    ids=" ".join,
)
def test_whatever_is_no_plain_flag_is_for_the_command_line(arguments: list[str]) -> None:
    assert plain_flags(arguments) is None


def test_wrong_value_of_a_plain_flag_is_told_with_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["topicd", "--ring-bytes", "1"])
    with pytest.raises(SystemExit, match="2"):
        main(prog_name="topicd")
    told = capsys.readouterr().err
    assert "Usage: topicd" in told
    assert "ring_bytes (flag): must be 1536KiB to 64MiB" in told
