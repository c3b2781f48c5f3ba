"""Hostile requests, made by chance from a seed: what is sent on one connection, and what may come back."""

from __future__ import annotations

import functools
import gzip
import json
import random
import struct
from collections.abc import Callable
from typing import NamedTuple

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TOPICS = [f"fuzz.{n}" for n in range(8)]
JSON_TYPE = b"Content-Type: application/json\r\n"
METHODS = [b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"HEAD", b"TRACE", b"CONNECT", b"BREW", b"get"]
NASTY = [
    b"\x00",
    b"\xff\xfe",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"%",
    b"%zz",
    b"%00",
    b"%ff",
    b"..",
    b"\r",
    b"\n",
    b"\x7f",
    b" ",
]
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)


class Case(NamedTuple):
    data: bytes
    version: int = 1
    answers: int | None = None  # at most so many; None: who knows
    pieces: int = 1  # sent in so many
    stays: bool = False  # the peer neither goes on nor leaves: it is left lying for a while


Make = Callable[[random.Random], Case]
STRATEGIES: dict[str, tuple[Make, float]] = {}


def strategy(weight: float = 1.0) -> Callable[[Make], Make]:
    def declare(make: Make) -> Make:
        STRATEGIES[make.__name__] = (make, weight)
        return make

    return declare


def head(method: bytes, path: bytes, *lines: bytes) -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + b"".join(lines) + b"\r\n"


def post(path: bytes, body: bytes, *lines: bytes) -> bytes:
    return head(b"POST", path, JSON_TYPE, b"Content-Length: %d\r\n" % len(body), *lines) + body


def topic(chance: random.Random) -> bytes:
    return b"/v0/topics/" + chance.choice(TOPICS).encode()


def junk(chance: random.Random, most: int = 200) -> bytes:
    return chance.randbytes(chance.randint(0, most))


# ---- HTTP/1.1 ----


@strategy(3)
def valid(chance: random.Random) -> Case:
    asked = [
        post(topic(chance), b'{"records":[{"data":1}]}'),
        post(topic(chance) + b"/diff", b'{"limit":5}'),
        head(b"GET", topic(chance)),
        head(b"GET", b"/healthz"),
    ]
    count = chance.randint(1, 8)
    return Case(b"".join(chance.choices(asked, k=count)), answers=count)


@strategy()
def noise(chance: random.Random) -> Case:
    return Case(junk(chance, 5_000) or b"\0")


@strategy(3)
def smuggling(chance: random.Random) -> Case:
    """A second request inside the body of one whose length two readers would see differently. It must not be served."""
    inside = head(b"DELETE", b"/v0/topics/victim")
    chunked = b"0\r\n\r\n" + inside
    shapes = [
        (b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", chunked),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", chunked),
        (b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(inside), inside),
        (b"Content-Length: 0, %d\r\n" % len(inside), inside),
        (b"Content-Length: +0\r\n", inside),
        (b"Content-Length: 0x0\r\n", inside),
        (b"Content-Length : 0\r\n", inside),
        (b"Content-Length: -1\r\n", inside),
        (b"Content-Length: 99999999999999999999999\r\n", inside),
        (b"Transfer-Encoding: xchunked\r\n", chunked),
        (b"Transfer-Encoding: chunked, identity\r\n", chunked),
        (b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", chunked),
        (b"Transfer-Encoding : chunked\r\n", chunked),
        (b"Transfer-Encoding:\x0bchunked\r\n", chunked),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n", chunked),
        (b"X: y\r\n Transfer-Encoding: chunked\r\n", chunked),
        (b"X: y\nTransfer-Encoding: chunked\r\n", chunked),
        (b"X: y\rTransfer-Encoding: chunked\r\n", chunked),
        (b"Transfer-Encoding: chunked\r\n", b"0\r\nX: y\r\n" + b"5\r\n" + inside),
    ]
    lines, body = chance.choice(shapes)
    return Case(head(b"POST", topic(chance), JSON_TYPE, lines) + body, answers=1, pieces=chance.choice((1, 1, 7)))


@strategy(2)
def chunks(chance: random.Random) -> Case:
    """Sizes that lie, extensions without end, line ends that are none."""
    sizes = [
        b"5",
        b"-5",
        b"0x5",
        b"fffffffffffffffff",
        b"ffffffff",
        b"5 ",
        b" 5",
        b"5;" + b"e" * 9_000,
        b"",
        b"g",
        b"00000005",
    ]
    body = b""
    for _ in range(chance.randint(1, 6)):
        end = chance.choice((b"\r\n", b"\r\n", b"\n", b"\r", b""))
        body += chance.choice(sizes) + chance.choice((b"\r\n", b"\n")) + b"hello" + end
    lines = [JSON_TYPE, b"Transfer-Encoding: chunked\r\n"]
    trailer = chance.choice((b"0\r\n\r\n", b"0\r\nHost: evil\r\n\r\n", b"0\r\n" + b"T: x\r\n" * 500 + b"\r\n", b""))
    return Case(head(b"POST", topic(chance), *lines) + body + trailer, pieces=chance.choice((1, 3)))


@strategy()
def header_flood(chance: random.Random) -> Case:
    kinds = [
        b"X-%d: y\r\n" * 1,
        b"X: " + b"y" * 70_000 + b"\r\n",
        b"y" * 70_000 + b": x\r\n",
        b"X: y\r\n" * 5_000,
        b"Cookie: a=b\r\n" * 200,
        b": empty\r\n",
        b"no colon\r\n",
        b"X\x00Y: z\r\n",
        b"X: \x00\x01\r\n",
    ]
    return Case(head(b"GET", b"/healthz", chance.choice(kinds)), answers=1, pieces=chance.choice((1, 5)))


@strategy()
def targets(chance: random.Random) -> Case:
    """Paths, methods and versions that are none."""
    path = b"/" + b"/".join(
        chance.choice([b"v0", b"topics", b"watch", b"ws", b"x" * 300, *NASTY, junk(chance, 8)])
        for _ in range(chance.randint(0, 6))
    )
    query = b"?" + b"&".join(
        chance.choice([b"a=b", b"=", b"&", b"page_size=-1", b"cursor=" + junk(chance, 20), *NASTY]) for _ in range(3)
    )
    version = chance.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP/2.0", b"", b"ICY"))
    target = chance.choice((path, path + query, b"*", b"http://evil/" + path, b"a:443", b"//", b""))
    return Case(chance.choice(METHODS) + b" " + target + b" " + version + b"\r\nHost: localhost\r\n\r\n")


@strategy(2)
def bodies(chance: random.Random) -> Case:
    """JSON that is deep, wide, ill-typed, not UTF-8, or none."""
    deep = chance.choice((100, 2_000, 100_000))
    texts = [
        b'{"records":[{"data":' + b"[" * deep + b"]" * deep + b"}]}",
        b'{"records":[{"data":' + b'{"a":' * deep + b"1" + b"}" * deep + b"}]}",
        b"[" * deep,
        b'{"records":[{"data":NaN}]}',
        b'{"records":[{"data":"' + b"\xff\xfe" + b'"}]}',
        b'{"records":[{"data":"\\ud800"}]}',
        b'{"records":[{"data":1,"meta":'
        + json.dumps({str(n): n for n in range(chance.randint(60, 70))}).encode()
        + b"}]}",
        b'{"records":[{"data":1,"tag":"' + b"t" * chance.randint(250, 260) + b'"}]}',
        b'{"records":[{"data":' + b"9" * 5_000 + b"}]}",
        b'{"records":[{"data":1e' + b"9" * 50 + b"}]}",
        b'{"records":' + json.dumps([{"data": 0}] * 10_001).encode() + b"}",
        b'{"records":[{}],"records":[{"data":1}]}',
        b'{"from_seq":-1}',
        b'{"from_seq":1e400}',
        b'{"from_seq":18446744073709551616}',
        b'{"topics":{"\\u0000":{}}}',
        b'\xef\xbb\xbf{"records":[]}',
        b"\x00",
        junk(chance),
    ]
    ends = [b"", b"/diff", b"/delete", b"/claim", b"/ack", b"/nack", b"/extend"]
    path = chance.choice([topic(chance) + chance.choice(ends), b"/v0/watch", b"/v0/routers/r"])
    made = post(path, chance.choice(texts))
    return Case(made.replace(b"POST", b"PUT", 1) if chance.random() < 0.2 else made, answers=1)


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(bytes(80 << 20), 9)


@strategy(0.3)
def bombs(chance: random.Random) -> Case:
    """gzip that grows without end, is cut off, or is none."""
    packed = chance.choice((_bomb(), gzip.compress(b"{}")[:-5], b"no gzip", gzip.compress(gzip.compress(b"{}"))))
    coding = chance.choice((b"gzip", b"gzip", b"GZIP", b"br", b"gzip, gzip", b"deflate"))
    return Case(post(topic(chance) + b"/diff", packed, b"Content-Encoding: %b\r\n" % coding), answers=1)


@strategy()
def unfinished(chance: random.Random) -> Case:
    """A head or a body that does not go on."""
    whole = post(topic(chance), b'{"records":[{"data":"' + b"x" * 5_000 + b'"}]}')
    return Case(whole[: chance.randint(1, len(whole) - 1)], stays=True)


@strategy(0.3)
def promised(chance: random.Random) -> Case:
    """A body that is announced as huge; some of it comes."""
    size = chance.choice((1 << 20, 60 << 20, 65 << 20, 1 << 40, 1 << 63))
    expect = chance.choice((b"", b"Expect: 100-continue\r\n", b"Expect: nothing\r\n"))
    made = head(b"POST", topic(chance), JSON_TYPE, b"Content-Length: %d\r\n" % size, expect)
    return Case(made + b"x" * chance.choice((0, 100, 100_000)), answers=2, stays=chance.random() < 0.5)


@strategy()
def ahead(chance: random.Random) -> Case:
    """Far more requests than are answered at once, and then no reading."""
    return Case(head(b"GET", topic(chance)) * chance.randint(50, 300), stays=chance.random() < 0.5)


@strategy()
def upgrades(chance: random.Random) -> Case:
    """WebSockets whose handshake or frames are broken."""
    lines = [b"Upgrade: websocket\r\n", b"Connection: Upgrade\r\n", b"Sec-WebSocket-Version: 13\r\n"]
    lines.append(b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
    if chance.random() < 0.3:
        lines.pop(chance.randrange(4))
    mask = chance.randbytes(4)

    def frame(first: int, payload: bytes, masked: bool = True) -> bytes:
        body = bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload)) if masked else payload
        return bytes([first, (0x80 if masked else 0) | min(len(body), 125)]) + (mask if masked else b"") + body[:125]

    frames = [
        frame(0x81, b'{"op":"ping"}'),
        frame(0x81, b'{"op":"publish","topic":"fuzz.0","records":[{"data":1}]}'),
        frame(0x81, b"\xff\xff"),
        frame(0x81, b"{", masked=False),
        frame(0x82, b"binary"),
        frame(0x80, b"continuation of nothing"),
        frame(0x89, b"p" * 126),
        frame(0x88, b"\x00"),
        frame(0xF1, b"reserved"),
        bytes([0x81, 0xFF]) + struct.pack(">Q", 1 << 62) + mask,
        frame(0x01, b"begun") + frame(0x01, b"begun again"),
        junk(chance, 300),
    ]
    return Case(head(b"GET", b"/v0/ws", *lines) + b"".join(chance.choices(frames, k=chance.randint(0, 6))))


@strategy(0.5)
def streams(chance: random.Random) -> Case:
    """Streams that are opened and left, or asked for wrongly."""
    paths = [
        b"/v0/stats",
        b"/v0/watch/wid_none",
        topic(chance) + b"/work?node=w",
        b"/v0/topics/queue/work?node=w&max=9",
        b"/v0/topics/queue/work",
    ]
    lines = chance.choice((b"", b"Accept: nothing\r\n", b"Last-Event-ID: " + b"A" * 5_000 + b"\r\n"))
    return Case(head(b"GET", chance.choice(paths), lines), stays=True)


# ---- HTTP/2 ----


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind & 0xFF, flags & 0xFF]) + struct.pack(">I", stream) + payload


def request(stream: int, method: str, path: str, *more: tuple[str, str], ends: bool = True) -> bytes:
    fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost"), *more]
    return frame(HEADERS, 0x4 | (0x1 if ends else 0), stream, hpack.Encoder().encode(fields, huffman=False))


OPEN = PREFACE + frame(SETTINGS, 0, 0)


@strategy(2)
def h2_garbage(chance: random.Random) -> Case:
    made = OPEN if chance.random() < 0.9 else PREFACE[: chance.randint(1, 23)]
    for _ in range(chance.randint(1, 10)):
        payload = junk(chance, 100)
        length = None if chance.random() < 0.8 else chance.choice((0, 1 << 23, len(payload) + 1))
        stream = chance.choice((0, 1, 2, 3, 5, (1 << 31) - 1, 1 << 31))
        made += frame(chance.randint(0, 12), chance.randrange(256), stream, payload, length)
    return Case(made, version=2)


@strategy(2)
def h2_requests(chance: random.Random) -> Case:
    """Whole requests whose fields are not those of a request."""
    fields = [
        [("content-length", "5")],
        [("transfer-encoding", "chunked")],
        [("connection", "keep-alive")],
        [("Upper", "case")],
        [(":path", "/twice")],
        [(":unknown", "x")],
        [("te", "gzip")],
        [("x", "y" * 70_000)],
        [(f"x-{n}", "y") for n in range(2_000)],
        [("x", "\r\nSmuggled: yes")],
        [("host", "evil.example")],
    ]
    made, number = OPEN, 1
    for _ in range(chance.randint(1, 20)):
        more = chance.choice(fields) if chance.random() < 0.5 else []
        path = chance.choice(("/healthz", "/v0/topics/fuzz.1", "", "*", "/\x00", "/v0/watch/x"))
        block = request(number, chance.choice(("GET", "POST", "CONNECT", "")), path, *more, ends=chance.random() < 0.8)
        made += block if len(block) < 16_384 + 9 else block[:9]
        number += chance.choice((2, 2, 2, 0, 1, -2)) if number > 2 else 2
    return Case(made, version=2)


@strategy(0.6)
def h2_rapid_resets(chance: random.Random) -> Case:
    made = OPEN
    for number in range(1, 2 * chance.randint(20, 600), 2):
        made += request(number, "GET", "/v0/topics/fuzz.1") + frame(RST, 0, number, struct.pack(">I", 8))
    return Case(made, version=2)


@strategy(0.6)
def h2_floods(chance: random.Random) -> Case:
    """Cheap to send, dear to answer."""
    many = chance.randint(100, 3_000)
    kinds = [
        frame(PING, 0, 0, bytes(8)) * many,
        frame(SETTINGS, 0, 0) * many,
        frame(PRIORITY, 0, 1, bytes(5)) * many,
        frame(WINDOW, 0, 0, struct.pack(">I", 0x7FFFFFFF)) * 3,
        frame(WINDOW, 0, 0, struct.pack(">I", 1)) * many,
        frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, b"\x84" * 100) * many,
        request(1, "POST", "/v0/topics/fuzz.1", ends=False) + frame(DATA, 0, 1) * many,
        request(1, "POST", "/v0/topics/fuzz.1", ends=False) + frame(DATA, 0, 1, bytes(16_384)) * min(many, 100),
    ]
    return Case(OPEN + chance.choice(kinds), version=2)


@strategy(0.6)
def h2_no_window(chance: random.Random) -> Case:
    """Answers are asked for and never taken."""
    settings = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, chance.choice((0, 1, 0x7FFFFFFF))))
    asked = b"".join(request(n, "GET", "/openapi.json") for n in range(1, 2 * chance.randint(2, 100), 2))
    return Case(PREFACE + settings + asked, version=2, stays=True)


def chosen(chance: random.Random) -> str:
    names = list(STRATEGIES)
    return chance.choices(names, weights=[STRATEGIES[one][1] for one in names])[0]
