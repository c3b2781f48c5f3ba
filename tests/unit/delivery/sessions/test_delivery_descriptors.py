"""The places at the history socket are few: a reader that asks for nothing gives its own back. So are descriptors:
where none is left nothing leaks, and the socket goes on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from topicd.ipc.protocol import unixsock
from topicd.shards.delivery.sessions import descriptors
from topicd.shards.delivery.topic.contents import Contents
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve


@pytest.mark.parametrize("sent", [b"", b"\x05\x00"], ids=["nothing", "half a length"])
def test_a_reader_that_asks_for_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(descriptors, "_IDLE_S", 0.05)

    async def scene() -> bytes:
        loop = asyncio.get_running_loop()
        nothing: Any = None
        desk = descriptors.DescriptorServer(nothing, loop, nothing, nothing, nothing)
        desk.open(unixsock.listen(tmp_path / "history.sock", 0o600, 8))
        with socket.socket(socket.AF_UNIX) as conn:
            conn.setblocking(False)
            await loop.sock_connect(conn, str(tmp_path / "history.sock"))
            await loop.sock_sendall(conn, sent)
            found = await asyncio.wait_for(loop.sock_recv(conn, 1), 30)
        while desk._readers:
            await asyncio.sleep(0)
        desk.close()
        return found

    assert asyncio.run(scene()) == b""


@pytest.mark.fault("RES-01")
def test_a_socket_without_descriptors_left_takes_connections_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "_RETRY_S", 0.001)
    caplog.set_level(logging.ERROR)

    async def scene() -> int:
        loop = asyncio.get_running_loop()
        nothing: Any = None
        refused = 3
        accept = loop.sock_accept

        async def refusing(listener: socket.socket) -> Any:
            nonlocal refused
            if refused:
                refused -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", refusing)
        desk = descriptors.DescriptorServer(nothing, loop, nothing, nothing, nothing)
        desk.open(unixsock.listen(tmp_path / "history.sock", 0o600, 8))
        with socket.socket(socket.AF_UNIX) as conn:
            conn.setblocking(False)
            await loop.sock_connect(conn, str(tmp_path / "history.sock"))
            while not desk._readers:
                await asyncio.sleep(0.001)
        desk.close()
        return refused

    assert asyncio.run(asyncio.wait_for(scene(), 30)) == 0
    assert [record.message for record in caplog.records] == ["connection not taken"]  # once for all three


@pytest.mark.fault("RES-02")
@pytest.mark.parametrize("opened", [0, 2])
def test_segments_that_cannot_be_opened_are_left_out_and_nothing_leaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: int
) -> None:
    contents = Contents()
    for first in range(1, 50, 10):
        resolve(tmp_path, first).file(DATA).write_bytes(b"x")
        contents.segments.append(SegmentInfo(first, 10, 1, 0, 0, 0, sealed=True))
    floors = SimpleNamespace(earliest=1, evict_floor=1)
    topic = SimpleNamespace(contents=contents, floors=floors, seqs=SimpleNamespace(visible=50, stored=50))
    place: Any = SimpleNamespace(data=SimpleNamespace(topic=lambda topic_id: tmp_path))
    catalog: Any = SimpleNamespace(by_id={7: SimpleNamespace(id=7, **vars(topic))})
    idle: Any = SimpleNamespace(note_read=lambda topic: None, expire=lambda topic: None)
    loop = asyncio.new_event_loop()
    desk = descriptors.DescriptorServer(place, loop, catalog, idle, idle)
    left = opened
    really_open = os.open

    def scarce(path: Any, flags: int) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        left -= 1
        return really_open(path, flags)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(descriptors.os, "open", scarce)
        desk._answer(ours, msgpack.packb({"topic_id": 7, "from_seq": 0, "segments": 32}))
        monkeypatch.undo()
        assert len(os.listdir("/proc/self/fd")) == before
        data, fds, _, _ = socket.recv_fds(theirs, 1 << 16, 32)
        for fd in fds:
            os.close(fd)
    answer = msgpack.unpackb(data[struct.calcsize("<I") :])
    assert [row["first_seq"] for row in answer["segments"]] == [1, 11][:opened]
    assert len(fds) == opened
    loop.close()
