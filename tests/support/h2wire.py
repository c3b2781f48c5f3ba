"""HTTP/2 on one socket, frame by frame, as no ordinary client would speak it: many streams, windows by hand, resets."""

from __future__ import annotations

import json
import socket
import ssl
import time
from typing import Any

import h2.config
import h2.connection
import h2.events

WAIT_S = 30.0


class H2Wire:
    """One connection. What is received is acknowledged at once, for all streams alike."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.bodies: dict[int, bytes] = {}
        self.statuses: dict[int, int] = {}
        self.ended: set[int] = set()
        self.goodbye: int | None = None  # error code of GOAWAY
        self.closed = False
        self.patient = False  # what is asked goes out with the next flush
        self.flush()

    def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.sock.sendall(data)

    def ask(self, method: str, path: str, body: Any = None, headers: tuple[tuple[str, str], ...] = ()) -> int:
        """The number of the stream that was begun."""
        number = self.h2.get_next_available_stream_id()
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost")]
        if raw is not None:
            head.append(("content-type", "application/json"))
        self.bodies[number] = b""
        self.h2.send_headers(number, [*head, *headers], end_stream=raw is None)
        if raw is not None:
            self.h2.send_data(number, raw, end_stream=True)
        if not self.patient:
            self.flush()
        return number

    def receive(self) -> None:
        """What is there, or comes next."""
        data = self.sock.recv(1 << 18)
        if not data:
            self.closed = True
            return
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.statuses[event.stream_id] = int(dict(event.headers)[":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goodbye = int(event.error_code)
        self.flush()

    def until(self, condition: Any, what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert not self.closed, f"the connection ended before {what}"
            assert time.monotonic() < end, f"waited in vain for {what}"
            self.receive()

    def answer(self, number: int) -> tuple[int, bytes]:
        self.until(lambda: number in self.ended, "the answer")
        return self.statuses[number], self.bodies[number]

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> H2Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
