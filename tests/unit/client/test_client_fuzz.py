"""Answers with flipped bits, cut, doubled or made up: the outcome is a value or an error of the contract."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from itertools import islice

import pytest

import topicd
import topicd.aio
from tests.support.fakeserver import FakeServer, Request
from topicd.client.blocking.watch import Watch
from topicd.errors import TopicdError
from topicd.ipc.protocol.wire import HEADER


def mangler(chance: random.Random) -> Callable[[bytes], bytes]:
    def flip(answer: bytes) -> bytes:
        made = bytearray(answer)
        for _ in range(chance.randint(1, 4)):
            # Lengths are left alone most of the time, so that what is behind them is looked at.
            first = 0 if chance.random() < 0.1 else 4
            if len(made) > first:
                made[chance.randrange(first, len(made))] ^= 1 << chance.randrange(8)
        return bytes(made)

    def resize(answer: bytes) -> bytes:
        body = answer[HEADER.size :][: chance.randint(0, 40)] + chance.randbytes(chance.choice([0, 0, 7]))
        _, op, flags, request_id = HEADER.unpack_from(answer) if len(answer) >= HEADER.size else (0, 0, 0, 0)
        return HEADER.pack(6 + len(body), op, flags, request_id) + body

    def other(answer: bytes) -> bytes:
        return HEADER.pack(6 + 30, chance.randrange(256), chance.randrange(256), 1) + chance.randbytes(30)

    return chance.choice([flip, flip, flip, resize, other, lambda answer: answer + answer])


def watched(watch: Watch) -> None:
    """An answer may say that all there is has been read: then nothing comes, for ever."""
    enough = threading.Timer(0.2, watch.close)
    enough.start()
    try:
        list(islice(watch, 2))
    finally:
        enough.cancel()
        watch.close()


def unsettle(server: FakeServer, seed: int) -> None:
    chance = random.Random(seed)

    def fault(request: Request) -> Callable[[bytes], bytes] | None:
        return mangler(chance) if chance.random() < 0.4 else None

    server.fault = fault


@pytest.mark.parametrize("seed", range(25))
def test_the_blocking_face_raises_only_what_it_promises(client: topicd.Client, server: FakeServer, seed: int) -> None:
    client.publish_many("t", [(b"data", "tag", "node", {"m": 1})] * 5)
    with topicd.connect(server.path, timeout=5) as client:
        client._caller.timeout = 0.03
        unsettle(server, seed)
        calls: list[Callable[[], object]] = [
            lambda: client.publish("t", b"x"),
            lambda: client.publish("t", b"x", key="k"),
            lambda: client.publish_many("u", [b"x"] * 3),
            lambda: [(r.tag, r.node, r.meta, r.time) for r in client.fetch("t")],
            lambda: client.fetch("t").payloads(),
            lambda: client.state("t"),
            lambda: client.configure("t", cap_records=9),
            lambda: list(client.topics()),
            lambda: client.delete("t", before_seq=1),
            lambda: client.consumers("t"),
            client.status,
            lambda: watched(client.watch("t", start="earliest")),
        ]
        for call in calls:
            with contextlib.suppress(TopicdError, StopIteration):
                call()
        with contextlib.suppress(TopicdError), client.producer(linger=0, timeout=0.03) as producer:
            producer.send("t", b"x")
        with contextlib.suppress(TopicdError), client.pipeline("t") as pipe:
            pipe.append(b"x")


@pytest.mark.parametrize("seed", range(10))
def test_the_asyncio_face_raises_only_what_it_promises(client: topicd.Client, server: FakeServer, seed: int) -> None:
    client.publish_many("t", [b"x"] * 5)

    async def main() -> None:
        async with await topicd.aio.connect(server.path, timeout=5) as client:
            client._caller.timeout = 0.03
            unsettle(server, seed)
            for _ in range(3):
                with contextlib.suppress(TopicdError):
                    await client.publish("t", b"x")
                with contextlib.suppress(TopicdError):
                    (await client.fetch("t")).payloads()
                with contextlib.suppress(TopicdError):
                    await client.state("t")
                with contextlib.suppress(TopicdError, StopAsyncIteration, TimeoutError):
                    async with await client.watch("t", start="earliest") as watch:
                        await asyncio.wait_for(anext(watch), 0.2)

    asyncio.run(main())
