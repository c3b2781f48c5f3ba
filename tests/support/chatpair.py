"""Two daemons whose chat stores reach each other over TCP with a token of scope `sync`."""

from __future__ import annotations

import select
import socket
import threading
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon
from tests.support.ports import free_ports
from topicd.client.blocking.chat import Chat
from topicd.tokens import new_token

CHAT = {"TOPICD_CHAT": "true"}


class Pair:
    """Two daemons whose chat stores reach each other."""

    def __init__(self, root: Path, *skews_ms: int, **env: str) -> None:
        self.secret, digest = new_token()
        tokens = root / "tokens.toml"
        root.mkdir(parents=True, exist_ok=True)
        tokens.write_text(f'[[token]]\nname = "peer"\nsha256 = "{digest}"\nscopes = ["sync"]\n')
        first = free_ports(2)
        self.ports = (first, first + 1)
        self.daemons = [
            Daemon(
                root / f"d{number}",
                wal_shards=1,
                delivery_shards=1,
                env={
                    **CHAT,
                    "TOPICD_CHAT_LISTEN": f"127.0.0.1:{port}",
                    "TOPICD_TOKENS_FILE": str(tokens),
                    "TOPICD_CHAT_SKEW_MS": str(skews_ms[number] if skews_ms else 0),
                    **env,
                },
            )
            for number, port in enumerate(self.ports)
        ]

    def __enter__(self) -> Pair:
        try:
            for daemon in self.daemons:
                daemon.start()
            for daemon in self.daemons:
                daemon.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for daemon in self.daemons:
            daemon.close()

    def chats(self) -> list[Chat]:
        return [daemon.client().chat for daemon in self.daemons]

    def sync(self, chat: Chat, to: int, method: str) -> dict[str, Any]:
        return chat.sync(f"tcp://127.0.0.1:{self.ports[to]}", token=self.secret, method=method)


class Wire:
    """Two ports that lead to the two stores until they do not."""

    def __init__(self, ports: tuple[int, int]) -> None:
        self._left = 0
        self._listeners = []
        for port in ports:
            listener = socket.create_server(("127.0.0.1", 0))
            self._listeners.append(listener)
            threading.Thread(target=self._serve, args=(listener, port), daemon=True).start()

    def cut_after(self, size: int) -> None:
        """Bytes that still come through, of all connections together; then they break."""
        self._left = size

    def sync(self, pair: Pair, chat: Chat, to: int, method: str) -> dict[str, Any]:
        port = self._listeners[to].getsockname()[1]
        return chat.sync(f"tcp://127.0.0.1:{port}", token=pair.secret, method=method)

    def _serve(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                self._carry(near, far)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        while True:
            for one in select.select((near, far), (), ())[0]:
                data = one.recv(65_536)[: max(0, self._left)]
                self._left -= len(data)
                if not data:
                    return
                (far if one is near else near).sendall(data)

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
