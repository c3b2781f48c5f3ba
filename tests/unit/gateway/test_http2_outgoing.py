"""In which order an HTTP/2 connection sends what its streams have, between two connections of the library itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h2.config
import h2.connection
import h2.events

from topicd.gateway.web.http2_outgoing import WRITE_HIGH, Outgoing
from topicd.gateway.web.http2_stream import Http2Stream

STREAMS = 40
BYTES = 100_000
REQUEST = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "here")]


class Peers:
    """A server that has begun to answer, and its client; the server's connection as `Outgoing` needs it."""

    paused = closing = False

    def __init__(self) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.sent = b""
        self.client.initiate_connection()
        self.server.initiate_connection()
        self.client.increment_flow_control_window(2 * STREAMS * BYTES)
        for number in range(1, 2 * STREAMS, 2):
            self.client.send_headers(number, REQUEST, end_stream=True)
            self.client.increment_flow_control_window(BYTES, number)
        self.server.receive_data(self.client.data_to_send())
        for number in range(1, 2 * STREAMS, 2):
            self.server.send_headers(number, [(":status", "200")])

    def send(self) -> None:
        self.sent += self.server.data_to_send()

    def drop(self, stream: Http2Stream) -> None:
        raise AssertionError(stream.number)

    forget = drop

    def frames(self) -> list[int]:
        """The streams whose data came, frame by frame."""
        events = self.client.receive_data(self.sent)
        return [one.stream_id for one in events if isinstance(one, h2.events.DataReceived)]


def test_streams_take_turns_frame_by_frame_also_across_writes() -> None:
    async def work() -> list[int]:
        peers = Peers()
        carrier: Any = peers
        outgoing = Outgoing(peers.server, peers)
        for number in range(1, 2 * STREAMS, 2):
            stream = Http2Stream(carrier, number)
            outgoing.hold(stream, b"x" * BYTES)
            outgoing.pending[number] = stream
        outgoing.pump()
        return peers.frames()

    frames = asyncio.run(work())
    assert len(frames) * 16_384 > 4 * WRITE_HIGH, "a write is not enough for one turn of all"
    served = Counter(dict.fromkeys(range(1, 2 * STREAMS, 2), 0))
    for number in frames:
        assert served[number] == min(served.values()), f"stream {number} had the turn of another"
        served[number] += 1
    assert len(set(served.values())) == 1
