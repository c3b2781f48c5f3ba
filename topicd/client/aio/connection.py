"""A connection of the asyncio face: any number of requests under way, answers in any order, writes joined per turn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from topicd.client.aio.shared import AioShared
from topicd.client.core import requests
from topicd.client.core.address import explained
from topicd.client.core.options import DIAL_S
from topicd.client.core.requests import Request
from topicd.client.core.sockets import open_socket
from topicd.errors import ConnectionLost, FormatError, TopicdError, WrongShard
from topicd.ipc.protocol.codec import ERROR_OP, OTHERS, answer_map, error_of
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, message

T = TypeVar("T")
FETCH_ANSWER = int(Op.FETCH) | ANSWER


class AioConnection(asyncio.BufferedProtocol):
    """`on_input` takes the complete messages out of the cutter and gives those that answer a `call` to `answered`."""

    def __init__(self, on_lost: Callable[[AioConnection, TopicdError], None], on_writable: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.on_input: Callable[[Cutter], None] = self.take_answers
        self._on_lost = on_lost
        self._on_writable = on_writable
        self.cutter = Cutter()
        self.writable = True
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._request_id = OTHERS - 1
        self._out: list[bytes] = []
        self._why: TopicdError | None = None

    @property
    def last_id(self) -> int:
        """The id of the last request."""
        return self._request_id

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    # ---- requests ----

    def call(self, op: int, body: bytes, flags: int = 0) -> asyncio.Future[Any]:
        """A future of the answer: Fetched for FETCH, (flags, body) for all others."""
        request_id = self._request_id = OTHERS if self._request_id == 0xFFFFFFFF else self._request_id + 1
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:
            future.set_exception(ConnectionLost("the connection to the daemon is closed"))
            return future
        self._calls[request_id] = future
        self.send(message(op, request_id, body, flags))
        return future

    async def ask(self, request: Request[T]) -> T:
        _flags, raw = await self.call(request.op, request.body)
        return request.parse(answer_map(raw))

    def send(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self.write(out)

    def write(self, pieces: list[Any]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif pieces:
            self._transport.writelines(pieces)

    def answered(self, arrived: Arrived) -> None:
        future = self._calls.pop(arrived.request_id, None)
        if future is None:
            raise FormatError(f"the daemon answered request {arrived.request_id}, which is not under way")
        if arrived.op == ERROR_OP:
            error = error_of(arrived.body())
            if not future.done():
                future.set_exception(error)
            return
        answer = self.cutter.fetched(arrived) if arrived.op == FETCH_ANSWER else (arrived.flags, arrived.body())
        if not future.done():
            future.set_result(answer)

    def take_answers(self, cutter: Cutter) -> None:
        while (arrived := cutter.take()) is not None:
            self.answered(arrived)

    def expects(self, request_id: int) -> bool:
        return request_id in self._calls

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.cutter.window()

    def buffer_updated(self, nbytes: int) -> None:
        self.cutter.received(nbytes)
        try:
            self.on_input(self.cutter)
        except TopicdError as exc:
            self.abort(exc)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        broke = f"the connection to the daemon broke: {exc}"
        self._end(ConnectionLost(broke if exc else "the daemon closed the connection"))

    def abort(self, why: TopicdError) -> None:
        """Ends it now; what is under way fails with `why`."""
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    def _end(self, why: TopicdError) -> None:
        if self._why is not None:
            return
        self._why = why
        self._transport = None
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(why)
        self._on_lost(self, why)


async def open_connection(shared: AioShared, shard: int, connection: AioConnection, timeout: float) -> None:
    """Connects and greets. Raises ConnectionLost, WrongShard if the daemon has other shards, or what refuses us."""
    loop = shared.loop
    target = shared.shard_map.path_of(shard)
    try:
        async with asyncio.timeout(min(timeout, DIAL_S)):
            sock = await shared.in_thread(lambda: open_socket(target, DIAL_S))
            sock.setblocking(False)
            make = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
            await make(lambda: connection, sock=sock)
            hello = await connection.ask(requests.hello(shared.token, shared.client_name))
    except TimeoutError:
        error = ConnectionLost(f"the daemon at {target} did not answer in time")
        shared.events.lost(shard, error)
        connection.abort(error)
        raise error from None
    except TopicdError as exc:
        shared.events.lost(shard, exc)
        connection.abort(exc)
        raise explained(target, exc) from None
    except OSError as exc:
        lost = ConnectionLost(f"cannot connect to {target}: {exc.strerror or exc}")
        shared.events.lost(shard, lost)
        raise lost from exc
    if connection.closed:
        raise ConnectionLost("the daemon closed the connection")
    if shared.shard_map.learn(hello):
        moved = WrongShard("the daemon was started anew with other shards")
        connection.abort(moved)
        raise moved
    shared.events.connected(shard)
