"""Somebody else's daemon: who is not let in hears so, with who may and what to do, never that there is no daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, wait_until
from topicd.supervisor.status import greeting

STRANGER = 54321
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    place = tmp_path_factory.mktemp("d")
    for folder in (place, *place.parents):
        if folder != Path("/tmp") and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    with Daemon(place, wal_shards=1, delivery_shards=1, socket_mode="0666") as made:
        made.run.root.chmod(0o755)
        yield made


def as_stranger(code: str) -> str:
    """What a program of another user prints."""
    preface = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); import topicd.cli.main, topicd.aio, topicd.errors; "
    preface += "import topicd.client.blocking.client, topicd.client.core.sockets, pwd, click, rich.table, asyncio\n"
    preface += "import topicd.cli.verbs.daemon\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{preface}os.setgid({STRANGER}); os.setuid({STRANGER})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return f"{done.returncode}|{done.stdout}|{done.stderr}"


CONNECT = """
import topicd
found = set()
for _ in range(30):
    try:
        topicd.connect({target!r})
    except topicd.errors.TopicdError as exc:
        found.add((exc.code, exc.message))
print(found)
"""


def test_a_foreign_user_is_refused_always_in_the_same_way(daemon: Daemon) -> None:
    said = as_stranger(CONNECT.format(target=str(daemon.run.socket)))
    assert said.count("forbidden") == 1 and "uid 54321 may not connect" in said and "allowed_uids" in said, said
    assert "pipe" not in said and "connection_lost" not in said
    wait_until(lambda: "uid=54321" in daemon.log, "a line in the log that says who it was")


def test_a_shard_refuses_it_in_the_same_way(daemon: Daemon) -> None:
    said = as_stranger(CONNECT.format(target=str(daemon.run.delivery_socket(0))))
    assert said.count("forbidden") == 1 and "pipe" not in said, said
    wait_until(lambda: 'reason="uid 54321 may not connect"' in daemon.log, "a line in the log that says who it was")


def test_sockets_that_files_keep_away_are_not_called_missing(daemon: Daemon) -> None:
    daemon.run.root.chmod(0o700)
    try:
        code = f"from topicd.cli.main import main; main(['ping', '-s', {str(daemon.run.socket)!r}])"
        said = as_stranger(code)
    finally:
        daemon.run.root.chmod(0o755)
    assert said.startswith("5|"), said
    assert "may not connect" in said and "belongs to uid 0" in said and "start it with" not in said


def test_the_commands_of_the_banner_work_when_they_are_pasted(daemon: Daemon, tmp_path: Path) -> None:
    banner = greeting(daemon.run).partition("another terminal:\n")[2]
    commands = [line.strip() for line in banner.splitlines() if "watch" not in line]
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-euc", "\n".join(commands)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "orders#1" in done.stdout and "hello" in done.stdout


def test_client_and_daemon_agree_on_where_the_sockets_are(daemon: Daemon, tmp_path: Path) -> None:
    """A settings file or TOPICD_RUN_DIR that tells the daemon where to listen tells the client where to look."""
    file = tmp_path / "topicd.toml"
    file.write_text(f'run_dir = "{daemon.run.root}"\n')
    for environ in ({"TOPICD_CONFIG": str(file)}, {"TOPICD_RUN_DIR": str(daemon.run.root)}):
        env = {"PATH": os.environ["PATH"], **environ}
        ping = [str(Path(sys.executable).parent / "topicctl"), "ping"]
        done = subprocess.run(ping, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
