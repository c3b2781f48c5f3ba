"""The places at the history socket are few: a reader that asks for nothing gives its own back."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from topicd.ipc.protocol import unixsock
from topicd.shards.delivery.sessions import descriptors


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
