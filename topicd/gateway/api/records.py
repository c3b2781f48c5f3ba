"""Records: written, read from a cursor, deleted. Contract: docs/http.md."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from topicd._native import core
from topicd.client.core.requests import fetch
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.frames import codec_error
from topicd.gateway import errors
from topicd.gateway.api.topics import check_name, config_of, known_name
from topicd.gateway.batches import TopicBatch
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.keys import require
from topicd.gateway.records_json import Shape, packed_meta
from topicd.gateway.schemas import Delete, Diff, Record, Write, nodes_of
from topicd.gateway.tails import Tail
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.codec import Fetched
from topicd.ipc.protocol.messages import DeleteRecords, DeleteTopic, OpenTopic
from topicd.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_RECORDS_DEFAULT,
    IDEMPOTENCY_KEY_MAX,
    LONG_POLL_MS_MAX,
    MAX_BATCH_RECORDS,
    MAX_NODE,
    MAX_TAG,
)
from topicd.model import TagMatch

DIFF_RECORDS_MAX = 1_000
FOUND = {200: "done", 404: "no such topic"}

# ---- writing ----


class Written(NamedTuple):
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    created: bool
    deduped: bool
    performance: dict[str, float]


def frames_of(body: Write) -> bytearray:
    """The records as one batch; what cannot be stored is refused."""
    records = body.records
    if not records:
        raise errors.invalid("records has at least one entry")
    if len(records) > MAX_BATCH_RECORDS:
        raise errors.batch_too_large(f"a write has at most {MAX_BATCH_RECORDS} records", MAX_BATCH_RECORDS)
    node = _label(body.node, "node", MAX_NODE)
    plain = not any(record.tag or record.node or record.meta is not UNSET for record in records)
    try:
        if plain:
            return core.encode_batch([record.data for record in records], None, node, None)
        return core.encode_batch(*_columns(records, node))
    except ValueError as exc:
        raise errors.of(codec_error(exc)) from None


def _columns(records: list[Record], node: bytes | None) -> Any:
    tags = [_label(record.tag, "tag", MAX_TAG) for record in records]
    nodes = [_label(record.node, "node", MAX_NODE) or node for record in records]
    metas = [None if record.meta is UNSET else _meta(bytes(record.meta)) for record in records]
    return [record.data for record in records], tags, nodes, metas if any(metas) else None


def _meta(text: bytes) -> bytes | None:
    return None if text == b"null" else packed_meta(text)


def _label(text: str | None, what: str, most: int) -> bytes | None:
    if not text:
        return None
    raw = text.encode()
    if len(raw) > most:
        raise errors.invalid(f"{what} has at most {most} bytes, this one has {len(raw)}")
    return raw


def key_of(body: Write, header: bytes = b"") -> bytes:
    """What recognises a repeated write; empty: nothing does."""
    text = body.idempotency_key if body.idempotency_key is not None else header.decode("utf-8", "replace")
    if len(text) > IDEMPOTENCY_KEY_MAX:
        raise errors.invalid(f"an idempotency key has at most {IDEMPOTENCY_KEY_MAX} characters")
    raw = text.encode()
    if len(raw) > IDEMPOTENCY_KEY_MAX:
        import hashlib

        return b"sha256:" + hashlib.sha256(raw).hexdigest().encode()
    return raw


async def store(call: Call, topic: str, body: Write, key: bytes) -> Written:
    """Append, creating the topic if it may be created."""
    frames = frames_of(body)
    fields = None if body.config is None else config_of(call.rights, topic, body.config)
    try:
        return await _append(call, topic, body, frames, key, created=False)
    except TopicNotFound:
        pass
    create = body.create if body.create is not None else (body.config is None or body.config.auto_create)
    if not create:
        raise errors.topic_not_found(topic)
    if body.config is not None:
        require(call.rights, ("admin",))
    shards = call.service.shards
    wanted = OpenTopic(topic=topic, config=fields, first_records=len(body.records), first_bytes=len(frames))
    answer = await shards.ask(topic, wanted)
    created = bool(answer["created"])
    shards.learn(topic, int(answer["topic_id"]))
    try:
        return await _append(call, topic, body, frames, key, created=created)
    except Exception:
        if created:  # a write that was refused leaves no topic behind
            await shards.ask(topic, DeleteTopic(topic=topic, if_empty=True))
        raise


async def _append(call: Call, topic: str, body: Write, frames: bytearray, key: bytes, *, created: bool) -> Written:
    shards, count, patient = call.service.shards, len(body.records), body.disable_backpressure
    began = time.perf_counter()
    if key:
        answer = await shards.append_keyed(topic, frames, count, key, patient=patient)
        told = _performance(answer.performance, began)
        return Written(answer.first_seq, answer.stored, created and not answer.deduped, answer.deduped, told)
    batch = shards.append(topic, frames, count, patient=patient)
    first = await batch.future
    return Written(first, count, created, False, _performance(batch.performance, began))


def _performance(found: dict[str, float] | None, began: float) -> dict[str, float]:
    if found is None:
        return {"wal_append_ms": round((time.perf_counter() - began) * 1000, 3), "fsync_ms": 0.0}
    return {name: round(found.get(name, 0.0), 3) for name in ("wal_append_ms", "fsync_ms", "throttle_wait_ms")}


def told(topic: str, written: Written) -> dict[str, Any]:
    last = written.first_seq + written.count - 1
    return {
        "topic": topic,
        "first_seq": written.first_seq,
        "last_seq": last,
        "seqs": list(range(written.first_seq, last + 1)),
        "head_seq": last,
        "count": written.count,
        "created": written.created,
        "deduped": written.deduped,
    }


@endpoint(
    "POST",
    "/v0/topics/{topic}",
    "write",
    body=Write,
    query={"return_seqs": "false: without seqs"},
    answers={200: "appended", 201: "created and appended", 404: "no such topic", 409: "conflict", 422: "full"},
)
async def write(call: Call, topic: str, body: Write) -> Reply:
    """Append records, all or nothing."""
    check_name(topic)
    key = key_of(body, call.head.headers.get(b"idempotency-key", b""))
    written = await store(call, topic, body, key)
    answer = told(topic, written)
    if not call.flag("return_seqs", True):
        del answer["seqs"]
    return call.answer(answer, 201 if written.created else 200, **written.performance)


# ---- reading ----


class _Waiting:
    """A long poll at the end of a topic."""

    def __init__(self) -> None:
        self.moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pushed(self, tail: Tail, batch: TopicBatch) -> None:
        self._look()

    def ended(self, tail: Tail) -> None:
        self._look()

    def failed(self, tail: Tail) -> None:
        self._look()

    def _look(self) -> None:
        if not self.moved.done():
            self.moved.set_result(None)


@endpoint(
    "POST",
    "/v0/topics/{topic}/diff",
    "read",
    body=Diff,
    empty_body=True,
    answers=FOUND,
)
async def diff(call: Call, topic: str, body: Diff) -> Reply:
    """Read the records behind a cursor."""
    known_name(topic)
    size = min(body.max_batch_bytes or FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX)
    await call.room(size)
    found, recreated = await _read(call, topic, body)
    idle = not found.records and found.tombstone is None and found.caught_up and not recreated
    if idle and body.wait_ms:
        await call.room(0)
        await _wait(call, topic, found, min(body.wait_ms, LONG_POLL_MS_MAX) / 1000)
        await call.room(size)
        topic_id = found.topic_id
        found, recreated = await _read(call, topic, body, topic_id)
    return _told(call, topic, body, found, recreated)


async def _read(call: Call, topic: str, body: Diff, topic_id: int = 0) -> tuple[Fetched, bool]:
    """And whether the cursor belongs to an earlier topic of that name."""

    async def read(seq: int) -> Fetched:
        request = fetch(
            seq,
            limit=min(body.limit or FETCH_RECORDS_DEFAULT, DIFF_RECORDS_MAX),
            max_bytes=min(body.max_batch_bytes or FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX),
            match=None,
            nodes=nodes_of(body.node) or None,
            from_time=None,
            metadata_only=False,
            performance=True,
            epoch=None,
        )
        return await call.service.shards.fetch(topic, request, topic_id)

    found = await read(body.from_seq)
    if body.from_seq > found.head_seq:
        return await read(0), True
    return found, False


async def _wait(call: Call, topic: str, found: Fetched, seconds: float) -> None:
    waiting, tails = _Waiting(), call.service.tails
    try:
        tail = await tails.follow(topic, waiting)
    except TopicNotFound:
        return
    try:
        if tail.topic_id == found.topic_id and tail.position <= found.next_from_seq:
            stopping = call.service.stopping
            await asyncio.wait((waiting.moved, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        tails.unfollow(tail, waiting)


def _told(call: Call, topic: str, body: Diff, found: Fetched, recreated: bool) -> Reply:
    batch = TopicBatch(topic, body.from_seq, found)
    tombstone = None
    if recreated:
        gap = {"gap_from": 1, "gap_to": found.head_seq, "reason": "recreated", "missed_estimate": found.head_seq}
        tombstone = {**gap, "earliest_seq": found.earliest_seq, "head_seq": found.head_seq}
    elif found.tombstone is not None:
        tombstone = {**found.tombstone.to_wire(), "earliest_seq": found.earliest_seq, "head_seq": found.head_seq}
        if tombstone["reason"] != "power_loss":
            tombstone["gap_to"] = found.earliest_seq - 1
    rest = {
        "next_from_seq": found.next_from_seq,
        "head_seq": found.head_seq,
        "earliest_seq": found.earliest_seq,
        "caught_up": found.next_from_seq >= found.head_seq,
        "tombstone": tombstone,
        "lag": max(0, found.head_seq - found.next_from_seq),
        "performance": {**_scanned(found.performance or {}), "server_total_ms": call.elapsed_ms()},
    }
    text = batch.text(Shape(tags=body.include_tags, meta=body.include_meta))
    name = msgspec.json.encode(topic)
    return Reply(200, b'{"topic":%b,"records":%b,%b' % (name, text, msgspec.json.encode(rest)[1:]))


def _scanned(found: dict[str, float]) -> dict[str, float]:
    """What a read took, as its shard says it."""
    counts: dict[str, float] = {
        name: int(found[name]) for name in ("records_scanned", "cold_segments_read") if name in found
    }
    return {**counts, "throttle_wait_ms": round(found.get("throttle_wait_ms", 0.0), 3)}


# ---- deleting ----


def match_of(given: Any) -> TagMatch:
    """As the contract writes it: a bare string that ends in a star is a beginning."""
    try:
        if isinstance(given, str) and given.endswith("*"):
            return TagMatch.from_wire(["tag", "Glob", given])
        return TagMatch.from_wire(given)
    except InvalidRequest as exc:
        raise errors.invalid(exc.message) from None


@endpoint("POST", "/v0/topics/{topic}/delete", "delete", body=Delete, answers=FOUND)
async def delete_records(call: Call, topic: str, body: Delete) -> Reply:
    """Delete records by seq, by tag, or by both."""
    if body.before_seq is None and body.match is None:
        raise errors.invalid("a delete needs before_seq or match or both")
    match = None if body.match is None else match_of(body.match)
    known_name(topic)
    answer = await call.service.shards.ask(topic, DeleteRecords(topic=topic, before_seq=body.before_seq, match=match))
    fields = ("deleted", "earliest_seq", "head_seq", "count", "bytes")
    return call.answer({"topic": topic, **{name: answer[name] for name in fields}}, records_scanned=answer["examined"])
