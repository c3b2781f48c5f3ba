"""What a hostile peer sends: valid requests of every op, and what becomes of them. Everything follows from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from tests.process.wire import append_body, batch
from topicd.ipc.protocol import wire as protocol
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import APPEND, BULK_OPS, CREDIT, FETCH, HEADER, LENGTH_FIELD, MIN_LENGTH, MessageFlag
from topicd.limits import KIB, MAX_CONTROL_MESSAGE, MAX_MESSAGE, MIB

DELIVERY = "delivery"
SUPERVISOR = "supervisor"
HISTORY = "history"
SUPERVISOR_MAX = 64 * KIB
HISTORY_MAX = 4 * KIB

# Where parsers stumble.
NASTY: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "é" * 200, "a" * 255, "a" * 256, "../../etc/passwd", "*", "[" * 300, "*a" * 120, "%s%n"),
    *(b"", b"x", b"\xff" * 300),
    *([], [[]], [None], ["tag", "Eq"], ["tag", "Glob", "**"], ["tag", "Glob", "a*"], [{}] * 300, ["n"] * 300),
    *({}, {"": ""}, {"topic": "x"}, {"at": "latest"}, {"seq": -1}, {"a": {"b": {"c": {}}}}),
    *(msgpack.ExtType(1, b"x"), msgpack.Timestamp(1, 2)),
]


class Stream(NamedTuple):
    """Bytes for one connection."""

    data: bytes
    greet: bool = True  # say a proper hello first
    pieces: int = 1  # sent in so many parts
    linger: bool = False  # then neither read nor closed for a while
    hang_up: bool = False  # closed at once, nothing is read


@dataclass
class World:
    """What there is to be named in requests."""

    kind: str
    topics: list[tuple[str, int]] = field(default_factory=list)  # (name, id) of the shard
    foreign: list[str] = field(default_factory=list)  # names that belong to another shard


class Forecast(NamedTuple):
    """What must come back for a stream."""

    ids: frozenset[int]  # requests that must be answered
    broken: bool  # the stream cannot be cut into messages: the connection is closed
    rest: int  # bytes of a message that never ends


def foresee(data: bytes, kind: str) -> Forecast:
    ids, at = set(), 0
    while len(data) - at >= HEADER.size:
        length, op, flags, request_id = HEADER.unpack_from(data, at)
        most = MAX_MESSAGE if op in BULK_OPS else MAX_CONTROL_MESSAGE
        if not MIN_LENGTH <= length <= (SUPERVISOR_MAX if kind == SUPERVISOR else most):
            return Forecast(frozenset(), True, 0)
        if len(data) - at - LENGTH_FIELD < length:
            break
        body = data[at + HEADER.size : at + LENGTH_FIELD + length]
        if kind == SUPERVISOR or not _may_be_silent(op, flags, body):
            ids.add(request_id)
        at += LENGTH_FIELD + length
    return Forecast(frozenset(ids), False, len(data) - at)


def _may_be_silent(op: int, flags: int, body: bytes) -> bool:
    """CREDIT has no answer; a long poll has one when something comes."""
    if op == Op.CREDIT:
        return len(body) == CREDIT.size
    return op == Op.FETCH and len(body) >= FETCH.size and FETCH.unpack_from(body)[4] > 0


# ---- valid requests ----


class Requests:
    def __init__(self, chance: random.Random, world: World) -> None:
        self.chance = chance
        self.world = world
        self._next = 1_000_000

    def next_id(self) -> int:
        self._next += 1
        return self._next

    def any(self) -> bytes:
        """A whole message that a well-meaning client might send."""
        op = self.chance.choice(_OPS[self.world.kind])
        flags, body = self.body(op)
        return protocol.header(op, flags, self.next_id(), len(body)) + body

    def message(self, op: int, body: dict[str, Any] | bytes, flags: int = 0) -> bytes:
        raw = body if isinstance(body, bytes) else msgpack.packb(body)
        return protocol.header(op, flags, self.next_id(), len(raw)) + raw

    def body(self, op: int) -> tuple[int, bytes]:
        if op == Op.APPEND:
            return self._append()
        if op == Op.FETCH:
            return self._fetch()
        if op == Op.CREDIT:
            return 0, CREDIT.pack(1_000_000 + self.chance.randrange(100), self.chance.choice([0, 1, 2**20, 2**32 - 1]))
        return 0, msgpack.packb(self.fields(op))

    def name(self) -> str:
        roll = self.chance.random()
        if roll < 0.9 and self.world.topics:
            return self.chance.choice(self.world.topics)[0]
        if roll < 0.97 and self.world.foreign:
            return self.chance.choice(self.world.foreign)
        return f"fuzz-{self.chance.randrange(50)}"

    def topic_id(self) -> int:
        if self.world.topics and self.chance.random() < 0.95:
            return self.chance.choice(self.world.topics)[1]
        return self.chance.choice([0, 1, 2**32, 2**64 - 1])

    def fields(self, op: int) -> dict[str, Any]:
        chance, name = self.chance, self.name()
        match op:
            case Op.HELLO:
                return {"version": protocol.PROTOCOL_VERSION, "client": "fuzz"}
            case Op.OPEN | Op.CONFIGURE:
                return {"topic": name, "config": {"cap_records": chance.choice([10, 100, 1000])}, "create": True}
            case Op.STATE:
                return {"topic": name, "touch": chance.random() < 0.5}
            case Op.LIST:
                return {"prefix": chance.choice(["", "f", "fuzz-"]), "after": "", "limit": chance.randint(1, 50)}
            case Op.DELETE_TOPIC:
                return {"topic": f"doomed-{chance.randrange(20)}", "if_empty": chance.random() < 0.5}
            case Op.DELETE_RECORDS:
                return {"topic": name, "before_seq": chance.randrange(1000), "match": ["tag", "Glob", "t*"]}
            case Op.PRODUCER | Op.RELEASE_PRODUCER:
                return {"topic": name, "producer_id": chance.choice([1, 2, 2**64 - 1])}
            case Op.SUBSCRIBE:
                entry = {"topic": name, "from_seq": chance.randrange(100)}
                return {"topics": [entry], "pattern": chance.choice(["", "f*"]), "credit": 1024, "nodes": ["n"]}
            case Op.UNSUBSCRIBE:
                return {"subscription": 1_000_000 + chance.randrange(100)}
            case Op.CONSUMER_LIST:
                return {"topic": name}
            case Op.CONSUMER_ACK:
                return {"topic": name, "name": f"c{chance.randrange(5)}", "seq": chance.randrange(50)}
            case Op.CONSUMER_OPEN | Op.CONSUMER_RESET:
                return {"topic": name, "name": f"c{chance.randrange(5)}", "start": {"seq": chance.randrange(50)}}
            case Op.CONSUMER_REMOVE | Op.CONSUMER_STATE:
                return {"topic": name, "name": f"c{chance.randrange(5)}"}
            case Op.STATUS:
                return {"stats": chance.random() < 0.5}
            case Op.DEBUG:
                return {"advance_ms": 1000, "checkpoint": True}
            case _:
                return {}

    def frames(self) -> tuple[bytearray, int]:
        chance = self.chance
        count = chance.choice([1, 1, 2, 5, 20])
        datas = [chance.randbytes(chance.choice([0, 1, 50, 500])) for _ in range(count)]
        tags = [chance.choice([None, b"t1", b"t2", b"x" * 256]) for _ in range(count)]
        metas = [chance.choice([None, None, msgpack.packb({"k": [1, "v"]})]) for _ in range(count)]
        return batch(datas, tags, chance.choice([None, b"node"]), metas), count

    def _append(self) -> tuple[int, bytes]:
        chance = self.chance
        frames, count = self.frames()
        producer = chance.choice([0, 0, 1, 2])
        key = chance.choice([b"", b"", b"key-%d" % chance.randrange(20)])
        flags = chance.choice([0, MessageFlag.PERFORMANCE]) | (MessageFlag.KEY if key else 0)
        number = chance.choice([0, 1, 2, 3])
        return flags, append_body(self.topic_id(), frames, count, producer=producer, batch_no=number, key=key)

    def _fetch(self) -> tuple[int, bytes]:
        chance = self.chance
        wait = chance.choice([0, 0, 0, 1, 20])
        body = FETCH.pack(self.topic_id(), chance.randrange(200), chance.choice([0, 1, 50]), 64 * KIB, wait)
        flags = chance.choice([0, MessageFlag.PERFORMANCE, MessageFlag.METADATA_ONLY])
        if chance.random() < 0.5:
            chosen = {"match": chance.choice(["t1", ["tag", "Glob", "t*"]]), "nodes": ["n"], "epoch": 1}
            return flags | MessageFlag.FILTER, body + msgpack.packb(chosen)
        return flags, body


_OPS: dict[str, list[int]] = {
    DELIVERY: [op for op in Op if op < protocol.ANSWER],
    SUPERVISOR: [Op.HELLO, Op.PING, Op.STATUS, Op.OPEN],
}


# ---- what becomes of them ----

Strategy = Callable[[Requests], Stream]


def random_bytes(r: Requests) -> Stream:
    return Stream(r.chance.randbytes(r.chance.choice([1, 9, 10, 11, 64, 1000])), greet=r.chance.random() < 0.5)


def plain(r: Requests) -> Stream:
    return Stream(b"".join(r.any() for _ in range(r.chance.choice([1, 3, 30]))), pieces=r.chance.choice([1, 5]))


def truncated(r: Requests) -> Stream:
    """The length says more than comes."""
    whole = r.any()
    return Stream(whole[: r.chance.randrange(1, len(whole))], linger=r.chance.random() < 0.3)


def shortened(r: Requests) -> Stream:
    """The length is honest about what is left."""
    whole = r.any()
    cut = r.chance.randrange(HEADER.size, len(whole) + 1)
    return Stream(struct.pack("<I", cut - LENGTH_FIELD) + whole[LENGTH_FIELD:cut])


def flipped(r: Requests) -> Stream:
    raw = bytearray(b"".join(r.any() for _ in range(r.chance.choice([1, 2]))))
    for _ in range(r.chance.choice([1, 1, 2, 8])):
        raw[r.chance.randrange(len(raw))] ^= 1 << r.chance.randrange(8)
    return Stream(bytes(raw), linger=r.chance.random() < 0.02)


def flipped_body(r: Requests) -> Stream:
    raw = bytearray(r.any())
    for _ in range(r.chance.choice([1, 2, 8])):
        if len(raw) > HEADER.size:
            raw[r.chance.randrange(HEADER.size, len(raw))] = r.chance.choice([0, 0xFF, 0x7F, 0x80, 0xC1, 0xDD, 0xDF])
    return Stream(bytes(raw))


def absurd_length(r: Requests) -> Stream:
    lengths = [0, 1, 5, 2**16, SUPERVISOR_MAX + 1, MAX_CONTROL_MESSAGE, MAX_CONTROL_MESSAGE + 1]
    length = r.chance.choice([*lengths, MAX_MESSAGE, MAX_MESSAGE + 1, 2**31 - 1, 2**31, 2**32 - 1])
    op = r.chance.choice([Op.APPEND, Op.PING, Op.FETCH, Op.OPEN, 0, 0xFF])
    rest = r.chance.randbytes(r.chance.choice([0, 10, 5000]))
    return Stream(HEADER.pack(length, op, 0, r.next_id()) + rest, linger=r.chance.random() < 0.3)


def slow_loris(r: Requests) -> Stream:
    whole = r.any()
    return Stream(whole[: max(1, len(whole) // 2)], greet=r.chance.random() < 0.7, linger=True)


def nested(r: Requests) -> Stream:
    """Maps and arrays that promise much more than comes, or go very deep."""
    chance = r.chance
    depth = chance.choice([10, 100, 1024, 20_000])
    unit = chance.choice([b"\x91", b"\x81\xa1k", b"\xdd\x00\x00\xff\xff", b"\xdf\x00\x00\xff\xff", b"\xdc\xff\xff"])
    body = chance.choice([b"", b"\x81\xa5topic"]) + unit * depth + chance.choice([b"", b"\xc0"])
    if chance.random() < 0.01:
        body = body.ljust(MAX_CONTROL_MESSAGE - 100, b"\xdd")
    most = SUPERVISOR_MAX if r.world.kind == SUPERVISOR else MAX_CONTROL_MESSAGE
    body = body[: most - MIN_LENGTH]
    return Stream(r.message(chance.choice(_OPS[r.world.kind]), body))


def nasty_fields(r: Requests) -> Stream:
    """The right fields with values of every kind."""
    chance = r.chance
    maps = [op for op in _OPS[r.world.kind] if op not in (Op.APPEND, Op.FETCH, Op.CREDIT)]
    op = chance.choice(maps)
    fields = r.fields(op)
    for name in list(fields):
        if chance.random() < 0.5:
            fields[name] = chance.choice(NASTY)
    for extra in ("config", "topics", "match", "nodes", "start", "pattern", "token", "from_ts", "credit", "epoch"):
        if chance.random() < 0.2:
            fields[extra] = chance.choice(NASTY)
    if isinstance(fields.get("topics"), list) and chance.random() < 0.5:
        entry = {"topic": r.name(), chance.choice(["from_seq", "from_ts", "epoch", "tail"]): chance.choice(NASTY)}
        fields["topics"] = [entry, *fields["topics"][: chance.randrange(2)]]
    if chance.random() < 0.3 and isinstance(fields.get("config"), dict):
        names = ["ttl_ms", "cap_bytes", "discard", "durable", "priority", "dead_letter", "type", "lease_ms", "nonsense"]
        fields["config"] = {**fields["config"], chance.choice(names): chance.choice(NASTY)}
    return Stream(r.message(op, fields))


def nasty_filter(r: Requests) -> Stream:
    chance = r.chance
    numbers = [0, 1, 255, 2**31, 2**32 - 1]
    wide = [0, 1, 50, 2**63 - 1, 2**63, 2**64 - 1]
    wait = chance.choice([0, 0, 0, 5, 30_001, 2**32 - 1])
    body = FETCH.pack(r.topic_id(), chance.choice(wide), chance.choice(numbers), chance.choice(numbers), wait)
    chosen = {name: chance.choice(NASTY) for name in ("match", "nodes", "from_ts", "epoch") if chance.random() < 0.6}
    return Stream(r.message(Op.FETCH, body + msgpack.packb(chosen), MessageFlag.FILTER | chance.randrange(256)))


def corrupt_frames(r: Requests) -> Stream:
    """A good APPEND whose frames lie about themselves."""
    chance = r.chance
    frames, count = r.frames()
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(frames))
        what = chance.randrange(4)
        if what == 0:
            frames[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            frames[0:4] = struct.pack("<I", chance.choice([0, 1, 41, 42, len(frames), 2**31, 2**32 - 1]))
        elif what == 2:
            del frames[at:]
        else:
            frames[at:at] = chance.randbytes(chance.choice([1, 8, 46]))
        if not frames:
            break
    body = append_body(r.topic_id(), frames, count, producer=chance.choice([0, 1]), batch_no=chance.randrange(3))
    return Stream(r.message(Op.APPEND, body))


def wrong_count(r: Requests) -> Stream:
    frames, count = r.frames()
    claimed = r.chance.choice([0, count - 1, count + 1, 10_000, 10_001, 2**31, 2**32 - 1])
    key = r.chance.choice([b"", b"\xff\xff", b"\x00\x00", b"\x01\x01"])
    flags = MessageFlag.KEY if key else 0
    return Stream(r.message(Op.APPEND, APPEND.pack(r.topic_id(), 1, 1, claimed & 0xFFFFFFFF) + key + frames, flags))


def hostile_meta(r: Requests) -> Stream:
    chance = r.chance
    deep = chance.choice([b"\x91", b"\x81\xa1k", b"\xde\xff\xff"]) * chance.choice([1, 100, 5000])
    wide = b"\xdf" + struct.pack(">I", chance.choice([0, 1, 64, 65, 2**16, 2**32 - 1])) + chance.randbytes(64)
    meta = chance.choice([deep, wide, b"\x81\xa1k" + deep, chance.randbytes(chance.randrange(1, 300)), b""])[: 16 * KIB]
    claimed = chance.choice([len(meta), len(meta) + 1, 0, 0xFFFF])
    content = struct.pack("<H", claimed) + meta + b"data"
    head = struct.pack("<IBBQQQHHI", 42 + len(content), 1, 16, 0, 0, 0, 0, 0, len(content))
    return Stream(r.message(Op.APPEND, append_body(r.topic_id(), head + content + bytes(8), 1)))


def flood(r: Requests) -> Stream:
    """Many questions at once from somebody who leaves before the first answer."""
    return Stream(b"".join(r.any() for _ in range(r.chance.choice([50, 300]))), hang_up=True)


def huge(r: Requests) -> Stream:
    """Megabytes that are no batch."""
    body = APPEND.pack(r.topic_id(), 0, 0, 10) + r.chance.randbytes(r.chance.choice([MIB, 3 * MIB]))
    return Stream(r.message(Op.APPEND, body), hang_up=r.chance.random() < 0.3)


def history(r: Requests) -> Stream:
    """The socket that hands out descriptors: u32 length | map."""
    chance = r.chance
    topic_id = chance.choice([r.topic_id(), r.topic_id(), chance.choice(NASTY)])
    body = msgpack.packb({"topic_id": topic_id, "from_seq": chance.choice(NASTY), "segments": chance.choice(NASTY)})
    if chance.random() < 0.5:
        body = chance.randbytes(chance.randrange(1, 100))
    length = chance.choice([len(body), len(body), len(body) + 5, 0, HISTORY_MAX + 1, 2**32 - 1])
    return Stream(struct.pack("<I", length) + body, greet=False, linger=chance.random() < 0.2)


EVERYWHERE: dict[str, tuple[Strategy, float]] = {
    "random bytes": (random_bytes, 2),
    "valid": (plain, 1),
    "truncated": (truncated, 2),
    "shortened": (shortened, 2),
    "bits flipped": (flipped, 3),
    "body flipped": (flipped_body, 2),
    "absurd length": (absurd_length, 1.5),
    "slow loris": (slow_loris, 0.5),
    "nested": (nested, 1),
    "nasty fields": (nasty_fields, 3),
    "flood": (flood, 0.05),
}
DELIVERY_ONLY: dict[str, tuple[Strategy, float]] = {
    "nasty filter": (nasty_filter, 2),
    "corrupt frames": (corrupt_frames, 3),
    "wrong count": (wrong_count, 1),
    "hostile meta": (hostile_meta, 2),
    "huge": (huge, 0.02),
}
STRATEGIES: dict[str, dict[str, tuple[Strategy, float]]] = {
    DELIVERY: {**EVERYWHERE, **DELIVERY_ONLY},
    SUPERVISOR: EVERYWHERE,
    HISTORY: {"history": (history, 1)},
}
