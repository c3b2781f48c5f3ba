"""One connection to a chat process. Promise: whatever bytes arrive, this connection gets answers or is closed, and
nobody else notices; what it may have under way is bounded, and one that does not read is not read from.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

import topicd
from topicd.errors import Internal, InvalidRequest, Throttled, TopicdError, Unauthorized
from topicd.ipc.protocol.chat import ChatOp
from topicd.ipc.protocol.messages import Hello
from topicd.ipc.protocol.unixsock import not_welcome, peer_credentials
from topicd.ipc.protocol.wire import (
    ANSWER,
    OP_HELLO,
    OP_PING,
    PROTOCOL_VERSION,
    MessageReader,
    check_version,
    error_message,
    map_message,
    unpack_map,
)
from topicd.limits import MAX_CONTROL_MESSAGE
from topicd.shards.chat.call import Answer, Call, dispatch
from topicd.shards.chat.guests import Guests
from topicd.tokens import EVERYTHING, Rights

if TYPE_CHECKING:
    from topicd.shards.chat.live import Subscription

log = logging.getLogger(__name__)

PATIENCE_S = 10.0  # until the hello
WRONG_TOKEN_S = 1.0  # how long whoever shows a wrong token waits for the answer


class Session(asyncio.Protocol):
    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._reader = MessageReader(max_bulk=MAX_CONTROL_MESSAGE)
        self._transport: asyncio.Transport | None = None
        self._rights: Rights | None = None  # None: it has not said hello
        self._local = True
        self._paused = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._subscriptions: dict[int, Subscription] = {}
        self._patience: asyncio.TimerHandle | None = None

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._local = sock.family == socket.AF_UNIX
        self._transport.set_write_buffer_limits(high=self._guests.settings.outbox_bytes)
        refusal = self._guests.admit(self, local=self._local)
        if refusal is None and self._local:
            _, uid, _ = peer_credentials(sock)
            if uid not in self._guests.settings.uids:
                refusal = not_welcome(uid, self._guests.settings.uids)
        if refusal is not None:
            self._send(error_message(0, refusal))
            self.close()
            return
        self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._no_hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._patience is not None:
            self._patience.cancel()
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()
        self._guests.left(self)

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        for subscription in list(self._subscriptions.values()):
            subscription.moved()

    def _no_hello(self) -> None:
        if self._rights is None and self._transport is not None:
            self._send(error_message(0, InvalidRequest(f"no hello within {PATIENCE_S:g} s")))
            self._transport.close()

    @property
    def greeted(self) -> bool:
        return self._rights is not None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ---- requests ----

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._take(message.op, message.request_id, message.body)
                if self._transport is None:
                    return
        except TopicdError as exc:
            self._send(error_message(0, exc))
            self.close()

    def _take(self, op: int, request_id: int, body: memoryview) -> None:
        try:
            if op == OP_HELLO:
                self._hello(request_id, Hello.from_wire(unpack_map(body)))
                return
            if self._rights is None:
                raise InvalidRequest("the first message must be HELLO")
            if op == OP_PING:
                self._send(map_message(op | ANSWER, request_id, {}))
                return
            self._check_room()
            answer = self._asked(self._rights, op, request_id, body)
        except TopicdError as exc:
            self._send(error_message(request_id, exc))
            return
        except Exception:
            log.exception("request failed")
            self._send(error_message(request_id, Internal("the request failed inside the daemon; its log says why")))
            return
        if answer is None or isinstance(answer, dict):
            self._answer(op, request_id, answer)
        else:
            task = asyncio.get_running_loop().create_task(self._later(op, request_id, answer))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def _asked(self, rights: Rights, op: int, request_id: int, body: memoryview) -> Answer | Awaitable[Answer]:
        service = self._guests.service
        if service is None:
            return self._guests.while_closed(rights, op, body)
        return dispatch(Call(service, rights, request_id, self, self._subscriptions), op, body)

    def _check_room(self) -> None:
        limit = self._guests.settings.max_inflight_per_connection
        if len(self._under_way) >= limit:
            message = f"{limit} requests of this connection are under way"
            raise Throttled(message, limit="max_inflight_per_connection", retry_after_ms=20)

    async def _later(self, op: int, request_id: int, answer: Awaitable[Answer]) -> None:
        try:
            self._answer(op, request_id, await answer)
        except TopicdError as exc:
            self._send(error_message(request_id, exc))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("request failed")
            self._send(error_message(request_id, Internal("the request failed inside the daemon; its log says why")))

    def _answer(self, op: int, request_id: int, answer: Answer) -> None:
        if answer is not None:
            self._send(map_message(op | ANSWER, request_id, answer))
        if op == ChatOp.SUBSCRIBE:
            self._subscriptions[request_id].moved()

    def _hello(self, request_id: int, want: Hello) -> None:
        check_version(want.version)
        if self._local:
            self._rights = EVERYTHING
        elif self._rights is None:
            try:
                self._rights = self._guests.authorize(want.token)
            except Unauthorized as exc:
                self._turn_away(request_id, exc)
                return
        if self._patience is not None:
            self._patience.cancel()
        self._send(map_message(OP_HELLO | ANSWER, request_id, {**self._guests.hello, "server": topicd.__version__}))

    def _turn_away(self, request_id: int, error: TopicdError) -> None:
        """Who guesses tokens gets slow answers."""
        if self._transport is not None:
            self._transport.pause_reading()

        def close() -> None:
            self._send(error_message(request_id, error))
            self.close()

        asyncio.get_running_loop().call_later(WRONG_TOKEN_S, close)

    # ---- answers ----

    @property
    def write_blocked(self) -> bool:
        return self._paused or self._transport is None

    def events(self, subscription: int, body: dict[str, Any]) -> None:
        self._send(map_message(ChatOp.EVENTS, subscription, body))

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def base_hello(shards: list[str], instance: str, wal_shards: int, index: int) -> dict[str, Any]:
    return {
        "version": PROTOCOL_VERSION,
        "instance": instance,
        "role": "chat",
        "shard": -1,
        "chat_shard": index,
        "wal_shards": wal_shards,
        "delivery_shards": len(shards),
        "shards": shards,
        "limits": {},
    }
