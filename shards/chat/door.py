"""Where a chat process listens: on the socket that the supervisor made, and on chat_listen."""

from __future__ import annotations

import asyncio
import ssl

from topicd.errors import FormatError
from topicd.ipc.protocol import unixsock
from topicd.shards.chat.guests import Guests
from topicd.shards.chat.session import PATIENCE_S, Session

_BACKLOG = 512


class Door:
    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._servers: list[asyncio.Server] = []

    async def listen(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        sock = unixsock.inherited(fd)
        self._servers.append(await loop.create_unix_server(self._session, sock=sock, backlog=_BACKLOG))
        settings = self._guests.settings
        if not settings.chat_listen:
            return
        self._guests.load_tokens()
        host, port = settings.chat_host_port
        context = _context(settings.tls_cert, settings.tls_key)
        patience = PATIENCE_S if context is not None else None
        try:
            server = await loop.create_server(
                self._session,
                host or None,
                port,
                ssl=context,
                ssl_handshake_timeout=patience,
                backlog=_BACKLOG,
                reuse_address=True,
            )
        except OSError as exc:
            raise FormatError(f"chat_listen: cannot listen on {settings.chat_listen}: {exc.strerror or exc}") from None
        self._servers.append(server)

    def _session(self) -> Session:
        return Session(self._guests)

    def close(self) -> None:
        for server in self._servers:
            server.close()


def _context(cert: str, key: str) -> ssl.SSLContext | None:
    if not cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key or None)
    except (OSError, ssl.SSLError) as exc:
        raise FormatError(f"tls_cert {cert} and tls_key cannot be used: {exc}") from None
    return context
