from __future__ import annotations

from pathlib import Path

import pytest

import topicd
from tests.support.fakeserver import FakeServer, Request
from topicd.client.core.daemon import candidates, socket_path
from topicd.errors import ConnectionLost, FormatError, InvalidRequest, NotReady, Unauthorized
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.retry import Tempo


def test_what_was_said_outright_excludes_guesses(tmp_path: Path) -> None:
    everything = {"TOPICD_SOCKET": "/a/b.sock", "XDG_RUNTIME_DIR": "/xdg"}
    assert candidates("/x/y.sock", everything) == [("the target given", Path("/x/y.sock"))]
    assert candidates(None, everything) == [("TOPICD_SOCKET", Path("/a/b.sock"))]
    assert [path for _, path in candidates(None, {"XDG_RUNTIME_DIR": "/xdg"})] == [
        Path("/xdg/topicd/topicd.sock"),
        Path("/run/topicd/topicd.sock"),
        Path.cwd() / "var/run/topicd.sock",
    ]


def test_a_target_is_a_socket_a_url_or_a_run_directory(tmp_path: Path) -> None:
    assert socket_path("unix:///a/b.sock") == Path("/a/b.sock")
    assert socket_path("/a/b.sock") == Path("/a/b.sock")
    assert socket_path(tmp_path) == tmp_path / "topicd.sock"
    assert socket_path(f"unix://{tmp_path}") == tmp_path / "topicd.sock"
    with pytest.raises(InvalidRequest, match="scheme"):
        socket_path("http://localhost")
    with pytest.raises(InvalidRequest):
        socket_path("")


def test_the_error_says_everything_that_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOPICD_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "xdg"))
    monkeypatch.setattr("topicd.client.core.daemon.SYSTEM_RUN_DIR", tmp_path / "system")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConnectionLost) as refused:
        topicd.connect()
    assert str(refused.value).splitlines() == [
        "no topicd daemon found; tried",
        f"  {tmp_path}/xdg/topicd/topicd.sock (XDG_RUNTIME_DIR): No such file or directory",
        f"  {tmp_path}/system/topicd.sock (the system's): No such file or directory",
        f"  {tmp_path}/var/run/topicd.sock (the working directory): No such file or directory",
    ]


def test_the_first_daemon_that_answers_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: FakeServer
) -> None:
    monkeypatch.delenv("TOPICD_SOCKET", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("topicd.client.core.daemon.SYSTEM_RUN_DIR", server.run_dir)
    with topicd.connect() as client:
        assert client.publish("t", b"x") == 1
    monkeypatch.setenv("TOPICD_SOCKET", str(tmp_path / "other.sock"))
    with pytest.raises(ConnectionLost, match=r"other\.sock"):
        topicd.connect()


def test_a_daemon_that_appears_in_time_is_waited_for(tmp_path: Path) -> None:
    appearing = FakeServer(run_dir=tmp_path)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            appearing.start()

    with topicd.connect(tmp_path / "topicd.sock", wait=5, tempo=Tempo(sleep=sleep)) as client:
        assert client.publish("t", b"x") == 1
    appearing.stop()
    assert len(pauses) == 3


def test_a_daemon_that_is_not_ready_is_waited_for(server: FakeServer) -> None:
    answers = [NotReady("recovering"), NotReady("recovering")]
    server.fault = lambda r: answers.pop() if r.op == Op.HELLO and answers else None
    with topicd.connect(server.path, timeout=5) as client:
        assert client.ping() >= 0


def test_a_refusal_at_the_door_is_told_at_once(server: FakeServer) -> None:
    server.fault = lambda r: Unauthorized("unknown token")
    with pytest.raises(Unauthorized, match="unknown token"):
        topicd.connect(server.path, token="wrong")


def test_the_token_is_shown_at_the_door(server: FakeServer) -> None:
    seen: list[Request] = []
    server.fault = seen.append
    topicd.connect(server.path, token="s3cret").close()
    assert b"s3cret" in seen[0].body


def test_something_else_behind_the_socket_is_a_clear_error(server: FakeServer) -> None:
    server.fault = lambda r: b"220 mail.example.org ESMTP ready\r\n"
    with pytest.raises(FormatError, match="topicd protocol"):
        topicd.connect(server.path)


def test_paths_longer_than_a_socket_address_work(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 60)
    deep.mkdir(parents=True)
    with FakeServer() as near:
        (deep / "topicd.sock").symlink_to(near.path)
        with topicd.connect(deep / "topicd.sock") as client:
            assert client.publish("t", b"x") == 1


def test_importing_topicd_loads_neither_client_nor_asyncio() -> None:
    import subprocess
    import sys

    code = "import sys, topicd; print([m for m in ('asyncio', 'topicd.client', 'msgpack') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
