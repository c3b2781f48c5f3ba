"""Unix sockets by path."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from topicd.ipc.protocol import unixsock


def roundtrip(path: Path) -> None:
    with unixsock.listen(path, 0o660, 4) as listener, unixsock.connect(path, 5) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"ping")
            assert server.recv(4) == b"ping"


def test_short_path_works(tmp_path: Path) -> None:
    roundtrip(tmp_path / "a.sock")


@pytest.mark.parametrize("length", [107, 108, 120, 400])
def test_path_of_any_length_works(tmp_path: Path, length: int) -> None:
    folder = tmp_path
    while len(os.fsencode(folder)) < length - 60:
        folder /= "d" * min(50, length - 8 - len(os.fsencode(folder)))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("s" * (length - len(os.fsencode(folder)) - 1))
    assert len(os.fsencode(path)) == length
    roundtrip(path)
    assert stat.S_ISSOCK(path.stat().st_mode)


def test_a_path_with_a_space_works(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    roundtrip(tmp_path / "with space" / "a b.sock")


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_permissions_are_those_asked_for_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        with unixsock.listen(tmp_path / "a.sock", mode, 1):
            assert stat.S_IMODE((tmp_path / "a.sock").stat().st_mode) == mode
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)


def test_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    unixsock.listen(tmp_path / "a.sock", 0o660, 1).close()
    assert (tmp_path / "a.sock").exists()
    roundtrip(tmp_path / "a.sock")


def test_socket_of_a_live_server_is_left_alone(tmp_path: Path) -> None:
    with unixsock.listen(tmp_path / "a.sock", 0o660, 4):
        with pytest.raises(OSError) as caught:
            unixsock.listen(tmp_path / "a.sock", 0o660, 4)
        assert caught.value.errno == errno.EADDRINUSE
        unixsock.connect(tmp_path / "a.sock", 5).close()


def test_socket_of_a_server_with_a_full_backlog_is_left_alone(tmp_path: Path) -> None:
    with unixsock.listen(tmp_path / "a.sock", 0o660, 0):
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(str(tmp_path / "a.sock"))
        with pytest.raises(OSError) as caught:
            unixsock.listen(tmp_path / "a.sock", 0o660, 4)
        assert caught.value.errno == errno.EADDRINUSE
        for client in waiting:
            client.close()


def test_connect_waits_for_a_full_backlog_until_its_timeout(tmp_path: Path) -> None:
    with unixsock.listen(tmp_path / "a.sock", 0o660, 0) as listener, ExitStack() as held:
        held.enter_context(unixsock.connect(tmp_path / "a.sock", 5))
        with pytest.raises(TimeoutError):
            unixsock.connect(tmp_path / "a.sock", 0.05)

        def accept_one() -> None:
            listener.accept()[0].close()

        late = threading.Timer(0.05, accept_one)
        late.start()
        client = held.enter_context(unixsock.connect(tmp_path / "a.sock", 30))
        assert client.gettimeout() == 30
        late.join()


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "a.sock").write_text("precious")
    with pytest.raises(OSError, match="not a socket"):
        unixsock.listen(tmp_path / "a.sock", 0o660, 4)
    assert (tmp_path / "a.sock").read_text() == "precious"


def test_connect_to_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        unixsock.connect(tmp_path / "a.sock", 1)


def test_peer_credentials_are_those_of_the_peer(tmp_path: Path) -> None:
    with unixsock.listen(tmp_path / "a.sock", 0o660, 4) as listener:
        with unixsock.connect(tmp_path / "a.sock", 5), listener.accept()[0] as server:
            assert unixsock.peer_credentials(server) == (os.getpid(), os.getuid(), os.getgid())
