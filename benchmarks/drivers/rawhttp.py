"""A client of HTTP/1.1 that costs little: raw sockets, requests made once, answers looked at and no more. It runs in a
process of its own, so that what is measured is the daemon."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

from topicd.bench.stats import latency
from topicd.bench.work import clock_ns
from topicd.bench.worker import READY

WAIT_S = 60.0
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STAMP = re.compile(rb'"data":"(\d{20})')


def request(method: str, path: str, body: Any = None) -> bytes:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
    return head.encode() + b"\r\n" + raw


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def exchange(sock: socket.socket, sent: bytes) -> bytes:
    """The body of the answer, which must be a 2xx."""
    sock.sendall(sent)
    data = bytearray()
    while (end := answer_end(data)) is None or len(data) < end:
        piece = sock.recv(1 << 20)
        if not piece:
            raise ConnectionError("the gateway closed the connection")
        data += piece
    if data[9:10] != b"2":
        raise RuntimeError(f"refused: {bytes(data[:500])!r}")
    return bytes(data[data.index(b"\r\n\r\n") + 4 :])


def answer_end(data: bytes | bytearray) -> int | None:
    """Where the answer ends; None while its head is not here."""
    at = data.find(b"\r\n\r\n")
    if at < 0:
        return None
    found = _LENGTH.search(data, 0, at)
    if found is None:
        raise RuntimeError(f"an answer without a length: {bytes(data[:300])!r}")
    return at + 4 + int(found[1])


def one_by_one(link: Connection, port: int, sent: bytes, seconds: float, least: int) -> dict[str, float]:
    """On one connection, each behind the answer to the one before."""
    samples: list[int] = []
    with connected(port) as sock:
        exchange(sock, sent)
        link.send(READY)
        link.recv()
        start = now = clock_ns()
        end = start + int(seconds * 1e9)
        while now < end or len(samples) < least:
            before = now
            exchange(sock, sent)
            now = clock_ns()
            samples.append(now - before)
    return {**latency(samples), "rate": len(samples) * 1e9 / (now - start), "requests": len(samples)}


def side_by_side(link: Connection, port: int, sent: list[bytes], seconds: float) -> dict[str, float]:
    """One connection for each request, which is sent again and again."""
    samples: list[int] = []
    socks = [connected(port) for _ in sent]
    began: dict[socket.socket, int] = {}
    requests, buffers = dict(zip(socks, sent, strict=True)), {sock: bytearray() for sock in socks}
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
        link.send(READY)
        link.recv()
        start = now = clock_ns()
        end = start + int(seconds * 1e9)
        for sock in socks:
            began[sock] = clock_ns()
            sock.sendall(requests[sock])
        while began:
            ready = selector.select(WAIT_S)
            if not ready:
                raise TimeoutError("the gateway does not answer")
            for key, _ in ready:
                sock = key.fileobj  # type: ignore[assignment]
                data = buffers[sock]
                data += sock.recv(1 << 20)
                size = answer_end(data)
                if size is None or len(data) < size:
                    continue
                if data[9:10] != b"2":
                    raise RuntimeError(f"refused: {bytes(data[:500])!r}")
                data.clear()
                now = clock_ns()
                samples.append(now - began.pop(sock))
                if now < end:
                    began[sock] = now
                    sock.sendall(requests[sock])
    for sock in socks:
        sock.close()
    return {**latency(samples), "rate": len(samples) * 1e9 / (now - start), "requests": len(samples)}


def watchers(link: Connection, port: int, urls: list[str], pulses: int) -> list[list[int]]:
    """Ages of each pulse at every one of the streams; says "next" when all have it."""
    ages: list[list[int]] = [[] for _ in range(pulses)]
    socks = [connected(port) for _ in urls]
    seen = dict.fromkeys(socks, 0)
    rests = dict.fromkeys(socks, b"")
    with selectors.DefaultSelector() as selector:
        for sock, url in zip(socks, urls, strict=True):
            sock.sendall(request("GET", url))
            _until(sock, b"event: caught-up")
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
        link.send(READY)
        while len(ages[-1]) < len(socks):
            ready = selector.select(WAIT_S)
            if not ready:
                raise TimeoutError(f"nothing comes; {min(seen.values())} pulses have reached everybody")
            for key, _ in ready:
                sock = key.fileobj  # type: ignore[assignment]
                piece = sock.recv(1 << 16)
                now = clock_ns()
                if not piece:
                    raise ConnectionError("the gateway closed a stream")
                text = rests[sock] + piece
                rests[sock] = b""
                for found in _STAMP.finditer(text):
                    mine = ages[seen[sock]]
                    mine.append(now - int(found[1]))
                    seen[sock] += 1
                    if len(mine) == len(socks):
                        link.send("next")
                if not text.endswith(b"\n\n\r\n"):
                    rests[sock] = text[text.rfind(b"\n\n") :] if b"\n\n" in text else text
    for sock in socks:
        sock.close()
    return ages


def _until(sock: socket.socket, mark: bytes) -> None:
    data, end = b"", time.monotonic() + WAIT_S
    while mark not in data or not data.endswith(b"\n\n\r\n"):
        piece = sock.recv(1 << 16)
        if not piece or time.monotonic() > end:
            raise ConnectionError(f"no {mark!r} came but {data[-300:]!r}")
        data += piece
