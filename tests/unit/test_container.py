"""The Dockerfile, which nobody builds where the tests run: each of its lines against what an installation needs."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import click

from topicd.cli.main import root_command
from topicd.config import FIELDS, load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [line for line in TEXT.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
STAGES = [[line.split(" ", 1) for line in part.splitlines() if line] for part in "\n".join(LINES).split("FROM ")[1:]]
BUILD, FINAL = ([(name, rest[0] if rest else "") for name, *rest in stage[1:]] for stage in STAGES)


def said(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [rest for name, rest in stage if name == instruction]


def at(stage: list[tuple[str, str]], instruction: str, word: str) -> int:
    return next(n for n, (name, rest) in enumerate(stage) if name == instruction and word in rest)


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"(TOPICD_[A-Z_]+)=(\S+)", text))


def test_both_stages_have_the_same_python_and_it_is_new_enough() -> None:
    bases = [stage[0][0] for stage in STAGES]
    assert bases == ["python:3.12-slim"] * 2
    least = tuple(map(int, PROJECT["project"]["requires-python"].removeprefix(">=").split(".")))
    assert tuple(map(int, bases[0].removeprefix("python:").removesuffix("-slim").split("."))) >= least


def test_the_first_stage_has_a_compiler_and_fails_where_nothing_was_compiled() -> None:
    packages = said(BUILD, "RUN")[0]
    assert "apt-get update && apt-get install -y" in packages
    assert {"gcc", "libc6-dev"} <= set(packages.split())  # Python's own headers are in the image
    assert at(BUILD, "RUN", "apt-get") < at(BUILD, "COPY", ". .") < at(BUILD, "RUN", "pip wheel")
    looked_for = re.search(r'grep -q "([^"]+)"', said(BUILD, "RUN")[-1])
    assert looked_for is not None
    printed = "topicctl {version} (Python {python}, native core, compiled modules)"
    assert looked_for[1] in printed
    assert "{core} core, {modules} modules" in (ROOT / "cli/verbs/daemon.py").read_text()


def test_nothing_that_was_built_here_goes_in_and_nothing_that_is_needed_stays_out() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    made = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
    covers = {name: f"**/{name}" if "/" not in name else name for name in made}
    missing = [
        name
        for name, anywhere in covers.items()
        if not {name, anywhere} & set(ignored) and not (name.endswith("_cache") and ".*_cache" in ignored)
    ]
    assert [name for name in missing if not name.startswith("benchmarks/results")] == []
    needed = (
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "topicd",
        "ipc",
        "shards",
        "cli",
        "pyspark_topicd.py",
    )
    assert not set(needed) & set(ignored)
    for link in ("ipc", "shards", "cli"):  # the package is these, by links that COPY keeps
        assert (ROOT / "topicd" / link).is_symlink()


def test_it_runs_as_a_user_of_its_own_that_owns_what_it_writes() -> None:
    directories = json.loads(said(FINAL, "VOLUME")[0])
    made = said(FINAL, "RUN")[at(FINAL, "RUN", "useradd") - at(FINAL, "RUN", "pip")]
    user = said(FINAL, "USER")[0]
    assert f"--uid 10001 --no-create-home {user}" in made and f"chown {user}: {' '.join(directories)}" in made
    assert f"mkdir -p {' '.join(directories)}" in made
    assert at(FINAL, "RUN", "useradd") < at(FINAL, "USER", user) < at(FINAL, "VOLUME", directories[0])
    given = variables(said(FINAL, "ENV")[0])
    assert [given["TOPICD_DATA_DIR"], given["TOPICD_RUN_DIR"]] == directories


def test_what_it_says_about_http_is_taken_by_the_daemon() -> None:
    shown = next(line for line in TEXT.splitlines() if "TOPICD_HTTP=" in line)
    environ = variables(said(FINAL, "ENV")[0]) | variables(shown)
    assert {name.removeprefix("TOPICD_").lower() for name in environ} <= FIELDS.keys()
    loaded = load({}, environ)
    assert loaded.settings.http and loaded.settings.http_listen == "0.0.0.0:4000"
    port = loaded.settings.http_listen.rpartition(":")[2]
    assert said(FINAL, "EXPOSE") == [port] and f"-p 127.0.0.1:{port}:{port}" in shown


def test_its_commands_exist() -> None:
    assert json.loads(said(FINAL, "CMD")[0]) == ["topicd"] and "topicd" in PROJECT["project"]["scripts"]
    health = said(FINAL, "HEALTHCHECK")[0]
    program, verb, *rest = json.loads(health[health.index("CMD ") + 4 :])
    command = root_command().get_command(click.Context(root_command()), verb)
    assert program == "topicctl" and command is not None
    command.make_context(verb, rest)
    assert said(FINAL, "STOPSIGNAL") == ["SIGTERM"]


def test_it_says_how_to_run_it_and_that_nobody_built_it() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert "Nobody has built it" in TEXT and "has not been built by us" in " ".join(page.split())
    for text in (TEXT, page):
        assert "--shm-size=1g" in text and "10001" in text
    run = next(line for line in TEXT.splitlines() if "docker run --shm-size" in line)
    volumes = re.findall(r"-v \S+:(\S+)", run)
    assert volumes == json.loads(said(FINAL, "VOLUME")[0]) and shlex.split(run.strip("# "))[-1] == "topicd"
