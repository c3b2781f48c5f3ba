"""The process of the gateway: listens on the sockets that the supervisor made, serves, and on stop drains. Promise: it
answers from its first moment on (that it is not ready, until all shards serve) and leaves within DRAIN_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl

import uvloop

from topicd import child
from topicd.child import Process
from topicd.config import Settings, loops_back
from topicd.errors import FormatError, TopicdError
from topicd.gateway import api
from topicd.gateway.app import App
from topicd.gateway.endpoints import ENDPOINTS, Routes, Service
from topicd.gateway.keys import Keys
from topicd.gateway.shards import Shards
from topicd.gateway.web.door import Door
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol.messages import Status

log = logging.getLogger(__name__)

DRAIN_S = 10.0
TRIM_S = 5.0
CONNECTIONS = 20_000

api.load()  # here and not when it serves, so that the template has done it


def serve(process: Process) -> None:
    uvloop.run(Gateway(process).run())


class Gateway:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._stop = asyncio.Event()
        self._trim_at = 0.0
        self._trimmed_requests = 0

    async def run(self) -> None:
        process, settings = self._process, self._process.settings
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        clock = process.clock
        keys = Keys.load(settings.tokens_file, clock.now_ms, clock.monotonic)
        shards = Shards(process.run, int(process.info.extras["delivery_shards"]))
        self._service = Service(settings, shards, keys, clock, process.info.run)
        listeners = [unixsock.inherited(fd) for fd in process.info.extras["listen_fds"]]
        app = App(self._service, Routes(ENDPOINTS), loopback=all(map(_is_local, listeners)))
        self._door = Door(app, self._service.room, CONNECTIONS)
        loop.add_reader(process.channel.fileno(), self._take_messages)
        self._take_messages()
        servers = [await self._listen(loop, sock) for sock in listeners]
        if settings.http_listen and not keys.needed:
            log.warning("HTTP is open to everybody on this machine: no tokens_file")
        process.serving()
        heart = loop.create_task(self._heartbeat())
        await self._stop.wait()
        await self._drain(servers)
        heart.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await heart

    async def _listen(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> asyncio.Server:
        if sock.family == socket.AF_UNIX:
            return await loop.create_unix_server(self._door.welcome, sock=sock, backlog=512)
        return await loop.create_server(self._door.welcome, sock=sock, backlog=512, ssl=_tls(self._process.settings))

    def _take_messages(self) -> None:
        for message in child.messages(self._process.channel):
            event = message.get("event")
            if event == "stop":
                self._stop.set()
                asyncio.get_running_loop().remove_reader(self._process.channel.fileno())
            elif event == "start":
                self._service.ready = True
            elif event == "reload":
                self._reload(Settings.from_wire(message["settings"]))

    def _reload(self, settings: Settings) -> None:
        service = self._service
        service.settings = service.usage.settings = settings
        clock = self._process.clock
        try:
            service.keys.reload(Keys.load(settings.tokens_file, clock.now_ms, clock.monotonic).tokens)
        except FormatError as exc:
            log.error("tokens not reloaded, the old ones stay", extra={"error": str(exc)})
        logging.getLogger().setLevel(settings.log_level.upper())

    async def _heartbeat(self) -> None:
        service = self._service
        while True:
            if not service.ready:
                await self._look_at_progress()
            self._process.stats.publish(
                {
                    **service.counts,
                    "connections": len(self._door.open),
                    "tails": len(service.tails),
                    "streams": service.usage.streams,
                    "watch_sessions": len(service.sessions),
                    "body_bytes": self._door.room.used,
                }
            )
            await asyncio.sleep(child.HEARTBEAT_S)
            service.tails.tick()
            self._trim()

    def _trim(self) -> None:
        """Large bodies are rare here: what they leave behind is given back."""
        now, requests = asyncio.get_running_loop().time(), self._service.counts["requests"]
        if now >= self._trim_at and requests != self._trimmed_requests:
            self._trim_at, self._trimmed_requests = now + TRIM_S, requests
            child.malloc_trim()

    async def _look_at_progress(self) -> None:
        with contextlib.suppress(TopicdError, TimeoutError):
            async with asyncio.timeout(0.5):
                status = await self._service.shards.ask_supervisor(Status(stats=False))
                shares = [row["percent"] for row in status["processes"] if row["name"].startswith(("wal", "dlv"))]
                self._service.progress = round(sum(shares) / len(shares) / 100, 3) if shares else 0.0

    async def _drain(self, servers: list[asyncio.Server]) -> None:
        """Take nobody new, tell streams, let what is under way end."""
        service = self._service
        self._process.stats.state = "draining"
        service.draining = True
        for server in servers:
            server.close()
        service.stopping.set_result(None)
        self._door.shutdown()
        deadline = asyncio.get_running_loop().time() + min(DRAIN_S, self._process.settings.stop_timeout_s * 0.25)
        while self._door.open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        service.tails.close()
        service.workers.close()
        await service.shards.close()


def _is_local(listener: socket.socket) -> bool:
    return listener.family == socket.AF_UNIX or loops_back(listener.getsockname()[0])


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.http_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as exc:
        raise FormatError(f"tls_cert {settings.tls_cert} and tls_key cannot be used: {exc}") from None
    return context
