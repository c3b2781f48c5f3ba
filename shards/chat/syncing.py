"""Two stores made equal, from the side that begins. Promise: when it ends without an error, each store has what the
other had when it was looked at; everything is taken in through the log, in bounded pieces, and can be repeated at any
time.

By digest: roots, then the hashes on the way to the buckets that differ, then the ids of those buckets. By negentropy:
see negentropy.py; cheaper when what differs is new. Both find the same ids; how records travel does not depend on it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from topicd.client.aio.connection import AioConnection
from topicd.client.core import requests
from topicd.client.core.address import explained, is_remote, parse
from topicd.client.core.sockets import open_socket
from topicd.errors import ConnectionLost, FormatError, InvalidRequest, TopicdError
from topicd.ipc.protocol import chat as wire
from topicd.ipc.protocol.chat import ChatRequest
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.shards.chat.digest import BRANCH, HASH, LEVELS
from topicd.shards.chat.domains import BY_NAME, DOMAINS
from topicd.shards.chat.negentropy import Reconciliation
from topicd.shards.chat.ops.sync import FRAME, take_in
from topicd.shards.chat.service import Service

DIAL_S = 10.0
ANSWER_S = 60.0
_ID = 32
_AT_ONCE = 256  # nodes asked for in one request
_ROUNDS_MAX = 10_000


class Peer:
    """The other store."""

    def __init__(self, target: str, token: str | None) -> None:
        if not is_remote(target):
            raise InvalidRequest("another store is reached at tls://host:port or tcp://host:port")
        self._target = parse(target, os.environ)
        self._token = token
        self._connection: AioConnection | None = None
        self.rounds = self.sent = self.received = 0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        target = self._target
        connection = AioConnection(lambda _connection, _why: None, lambda: None)
        try:
            async with asyncio.timeout(DIAL_S):
                sock = await loop.run_in_executor(None, lambda: open_socket(target, DIAL_S))
                sock.setblocking(False)
                # Behind TLS it is one end of a pair of Unix sockets.
                unix = sock.family.name == "AF_UNIX"
                make = loop.create_unix_connection if unix else loop.create_connection
                await make(lambda: connection, sock=sock)
                await connection.ask(requests.hello(self._token))
        except TimeoutError:
            connection.abort(ConnectionLost("too slow"))
            raise ConnectionLost(f"{target} did not answer within {DIAL_S:g} s") from None
        except OSError as exc:
            raise ConnectionLost(f"cannot connect to {target}: {exc.strerror or exc}") from None
        except TopicdError as exc:
            connection.abort(exc)
            raise explained(target, exc) from None
        self._connection = connection

    async def ask(self, message: ChatRequest) -> dict[str, Any]:
        connection = self._connection
        if connection is None:
            raise ConnectionLost("the other store is not connected")
        body = packed(message.to_wire())
        self.rounds += 1
        self.sent += len(body) + 10
        try:
            async with asyncio.timeout(ANSWER_S):
                _flags, raw = await connection.call(int(message.OP), body)
        except TimeoutError:
            raise ConnectionLost(f"{self._target} did not answer within {ANSWER_S:g} s") from None
        except ConnectionLost:
            raise
        except TopicdError as exc:
            # Whoever asked this store must not think that it is the one that refuses.
            told = type(exc)(f"the other store: {exc.message}")
            told.detail = exc.detail
            raise told from None
        self.received += len(raw) + 10
        return answer_map(raw)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort(ConnectionLost("done"))
            self._connection = None


async def sync(service: Service, target: str, token: str | None, method: str) -> dict[str, Any]:
    peer = Peer(target, token)
    began = time.monotonic()
    await peer.open()
    try:
        hello = await peer.ask(
            wire.SyncOpen(version=wire.SYNC_VERSION, store=service.id, cutoff_ms=service.view.cutoff_ms)
        )
        # What one of the two keeps no more is given to neither.
        cutoff_ms = max(service.view.cutoff_ms, int(hello["cutoff_ms"]))
        figures = {domain: await _sync_domain(service, peer, domain, cutoff_ms, method) for domain in DOMAINS}
        equal = await _equal(service, peer, cutoff_ms)
    except (KeyError, TypeError, ValueError) as exc:
        raise FormatError(f"the other store's answer is malformed: {exc!r}") from None
    finally:
        peer.close()
    service.counts["sync_rounds"] += 1
    return {
        "domains": figures,
        "rounds": peer.rounds,
        "bytes_out": peer.sent,
        "bytes_in": peer.received,
        "seconds": round(time.monotonic() - began, 6),
        "equal": equal,
        "method": method,
        "cutoff_ms": cutoff_ms,
    }


async def _sync_domain(service: Service, peer: Peer, domain: str, cutoff_ms: int, method: str) -> dict[str, int]:
    before = peer.sent + peer.received
    find = _by_negentropy if method == "negentropy" else _by_digest
    have, need = await find(service, peer, domain, cutoff_ms)
    finding = peer.sent + peer.received - before
    # Before anything is taken in: a row that merges with theirs is given as it is then, so that both end up with it.
    places = BY_NAME[domain].places(service.store, have)
    received, refused = await _fetch(service, peer, domain, cutoff_ms, need)
    sent, declined = await _push(service, peer, domain, cutoff_ms, places)
    return {"sent": sent, "received": received, "refused": refused + declined, "finding_bytes": finding}


# ---- what differs ----


async def _by_negentropy(service: Service, peer: Peer, domain: str, cutoff_ms: int) -> tuple[list[bytes], list[bytes]]:
    side = Reconciliation(await service.vectors.get(domain, cutoff_ms, fresh=True), FRAME)
    message: bytes | None = side.begin()
    for _ in range(_ROUNDS_MAX):
        if message is None:
            return list(dict.fromkeys(side.have)), list(dict.fromkeys(side.need))
        answer = await peer.ask(wire.SyncReconcile(domain=domain, cutoff_ms=cutoff_ms, message=message))
        message = side.take(answer["message"])
    raise FormatError(f"the reconciliation of {domain} does not come to an end")


async def _by_digest(service: Service, peer: Peer, domain: str, cutoff_ms: int) -> tuple[list[bytes], list[bytes]]:
    digest = await service.digests.get(domain, cutoff_ms)
    nodes = [0]
    for level in range(LEVELS):
        differing: list[int] = []
        for at in range(0, len(nodes), _AT_ONCE):
            some = nodes[at : at + _AT_ONCE]
            answer = await peer.ask(
                wire.SyncNodes(domain=domain, cutoff_ms=cutoff_ms, level=level, nodes=_joined(some))
            )
            if level == 0 and answer["root"] == digest.root:
                return [], []
            differing += _differing(some, answer["hashes"], b"".join(digest.children(level, node) for node in some))
        nodes = differing
    have: list[bytes] = []
    need: list[bytes] = []
    while nodes:
        some = nodes[:_AT_ONCE]
        answer = await peer.ask(wire.SyncBuckets(domain=domain, cutoff_ms=cutoff_ms, buckets=_joined(some)))
        if not 0 < answer["taken"] <= len(some):
            raise FormatError("the other store answers for no bucket")
        for bucket, raw in zip(some, answer["buckets"], strict=False):
            theirs = {raw[at : at + _ID] for at in range(0, len(raw), _ID)}
            ours = set(BY_NAME[domain].bucket(service.store, bucket, cutoff_ms))
            have += sorted(ours - theirs)
            need += sorted(theirs - ours)
        nodes = nodes[answer["taken"] :]
    return have, need


def _differing(nodes: Sequence[int], theirs: bytes, ours: bytes) -> list[int]:
    if len(theirs) != len(ours):
        raise FormatError("the other store's digest has another shape")
    children = [node * BRANCH + child for node in nodes for child in range(BRANCH)]
    return [
        child
        for at, child in enumerate(children)
        if theirs[at * HASH : at * HASH + HASH] != ours[at * HASH : at * HASH + HASH]
    ]


def _joined(numbers: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(2, "big") for number in numbers)


# ---- records ----


async def _fetch(service: Service, peer: Peer, domain: str, cutoff_ms: int, need: list[bytes]) -> tuple[int, int]:
    stored = refused = 0
    while need:
        ids = b"".join(need[: wire.IDS_MAX])
        answer = await peer.ask(wire.SyncFetch(domain=domain, cutoff_ms=cutoff_ms, ids=ids))
        if answer["taken"] < 1:
            raise FormatError("the other store gives no records")
        done = await take_in(service, domain, answer["records"])
        stored, refused = stored + done["stored"], refused + done["refused"]
        need = need[answer["taken"] :]
    return stored, refused


async def _push(
    service: Service, peer: Peer, domain: str, cutoff_ms: int, places: list[bytes | None]
) -> tuple[int, int]:
    stored = refused = 0
    while places:
        batch = BY_NAME[domain].batch_at(service.store, places[: wire.IDS_MAX], wire.BATCH_BYTES, cutoff_ms)
        if batch.records:
            answer = await peer.ask(wire.SyncPush(domain=domain, records=batch.records))
            stored, refused = stored + int(answer["stored"]), refused + int(answer["refused"])
        places = places[batch.taken :]
    return stored, refused


async def _equal(service: Service, peer: Peer, cutoff_ms: int) -> bool:
    """Do the digests agree now? Not if somebody wrote meanwhile."""
    for domain in DOMAINS:
        ours = (await service.digests.get(domain, cutoff_ms)).root
        theirs = await peer.ask(wire.SyncNodes(domain=domain, cutoff_ms=cutoff_ms, level=0, nodes=b""))
        if theirs["root"] != ours:
            return False
    return True
