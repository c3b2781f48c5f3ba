"""Watch sessions and their streams. Contract: docs/http.md."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from topicd.errors import TopicdError, TopicNotFound
from topicd.gateway import errors
from topicd.gateway.api.topics import is_name
from topicd.gateway.batches import TopicBatch
from topicd.gateway.endpoints import Call, Service, endpoint
from topicd.gateway.errors import Refusal
from topicd.gateway.feeds import Feed, Place, Wants
from topicd.gateway.keys import require_name
from topicd.gateway.records_json import Shape
from topicd.gateway.schemas import Nodes, Start, Watch, clamp, nodes_of
from topicd.gateway.sessions import TTL_S, Session
from topicd.gateway.sse import RETRY, EventStream, error_frame, frame
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.messages import TopicState
from topicd.limits import FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX

TOPICS_MAX = 256
RECORDS_MAX = 1_000

_text = msgspec.json.encode


# ---- sessions ----


def wants_of(limit: int, max_batch_bytes: int, node: Nodes, *, strong: bool = False) -> Wants:
    return Wants(
        clamp(limit or RECORDS_MAX, 1, RECORDS_MAX),
        min(max_batch_bytes or FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX),
        nodes_of(node),
        strong,
    )


async def places_of(call: Call, topics: dict[str, Start], *, lenient: bool) -> tuple[dict[str, Place], dict[str, Any]]:
    """Where each topic is followed from, and what is told of it. Unknown ones are refused or, leniently, left out."""
    if not 1 <= len(topics) <= TOPICS_MAX:
        raise errors.invalid(f"topics has 1 to {TOPICS_MAX} entries, not {len(topics)}")
    for name in topics:
        require_name(call.rights, name, in_body=True)
    states = await asyncio.gather(*(_state(call, name) for name in topics))
    places: dict[str, Place] = {}
    told: dict[str, Any] = {}
    for (name, start), state in zip(topics.items(), states, strict=True):
        if state is None:
            if not lenient:
                raise errors.topic_not_found(name)
            continue
        head = int(state["head_seq"])
        seq = head if start.tail else start.from_seq
        places[name] = Place(seq, int(state["topic_id"]), head)
        told[name] = {"from_seq": seq, "head_seq": head, "earliest_seq": state["earliest_seq"]}
    return places, told


async def _state(call: Call, name: str) -> dict[str, Any] | None:
    if not is_name(name):
        return None
    try:
        return await call.service.shards.ask(name, TopicState(topic=name, touch=False))
    except TopicNotFound:
        return None


@endpoint(
    "POST",
    "/v0/watch",
    "read",
    body=Watch,
    query={"lenient": "true: topics that do not exist are left out"},
    answers={200: "a session", 404: "no such topic"},
)
async def create_session(call: Call, body: Watch) -> Reply:
    """Make a session that follows topics; its stream is another request."""
    service = call.service
    places, told = await places_of(call, body.topics, lenient=call.flag("lenient", False))
    session = Session(
        service.keys.fingerprint(call.head),
        call.key,
        places,
        wants_of(body.limit, body.max_batch_bytes, body.node, strong=body.consistency == "strong"),
        Shape(tags=body.include_tags, meta=body.include_meta, data=body.include_data),
    )
    session.heartbeat_s = clamp(body.heartbeat_ms, 1_000, 60_000) / 1000
    service.sessions.add(session, service.settings.max_watch_sessions)
    url = f"/v0/watch/{session.wid}"
    return call.answer({"wid": session.wid, "stream_url": url, "session_ttl_ms": int(TTL_S * 1000), "topics": told})


# ---- streams ----


@endpoint(
    "GET",
    "/v0/watch/{wid}",
    kind="session",
    answers={200: "events", 404: "no such session"},
    query={"token": "a key, instead of the header", "cursor": "id of a frame, instead of Last-Event-ID"},
)
async def open_stream(call: Call, wid: str) -> Reply | None:
    """The stream of a session."""
    service = call.service
    session = service.sessions.get(wid)
    if session is None:
        raise errors.not_found("there is no such watch session; it may have been reclaimed")
    token = call.params.get("token", "")
    if session.key or service.keys.needed:
        service.keys.identify(call.head, token)
        if service.keys.fingerprint(call.head, token) != session.key:
            raise Refusal(401, "unauthorized", "the session belongs to another key")
    with service.usage.stream(session.owner):
        said = call.head.headers.get(b"last-event-id", b"").decode("latin-1") or call.params.get("cursor", "")
        watch = WatchStream(service, session, session.start(said), call.events(session.heartbeat_s))
        service.sessions.opened(session)
        try:
            await watch.run()
        finally:
            service.sessions.closed(session)
    return None


class WatchStream:
    """One connection of a session; what it delivers moves the session on, unless a newer connection does."""

    def __init__(self, service: Service, session: Session, places: dict[str, Place], events: EventStream) -> None:
        self._session = session
        self._events = events
        self._seqs = {name: place.seq for name, place in places.items()}
        self._single = len(places) == 1
        self._shape = session.shape
        self._feeds = {name: Feed(service, self, name, place, session.wants) for name, place in places.items()}
        session.newest = self
        events.on_room = self._resume
        events.topics = lambda: sorted(name for name, feed in self._feeds.items() if not feed.over)

    async def run(self) -> None:
        self._events.write(RETRY)
        for feed in list(self._feeds.values()):
            feed.start()
        try:
            await self._events.until_over()
        finally:
            for feed in self._feeds.values():
                feed.close()

    def _resume(self) -> None:
        for feed in list(self._feeds.values()):
            feed.resume()

    def _moved(self, feed: Feed, seq: int) -> None:
        """The topic stands there behind the frame that goes out now."""
        self._seqs[feed.topic] = seq
        if self._session.newest is self:
            self._session.topics[feed.topic] = Place(seq, feed.topic_id, feed.head_seq)

    def _id(self) -> bytes:
        return self._session.id_at(self._seqs)

    # ---- as Reader ----

    def has_room(self) -> bool:
        return self._events.has_room()

    def blocked(self) -> None:
        self._events.blocked()

    def records(self, feed: Feed, batch: TopicBatch, *, drained: bool) -> None:
        self._moved(feed, batch.to_seq)
        if not self._single:
            self._events.write(self._frames(batch, drained))
            return
        # Whoever follows this topic alone gets the very same bytes.
        key = ("sse", self._shape, drained)
        made = batch.made.get(key)
        if made is None:
            made = batch.made[key] = self._frames(batch, drained)
        self._events.write(made)

    def _frames(self, batch: TopicBatch, drained: bool) -> bytes:
        key = ("data", self._shape)
        data = batch.made.get(key)
        name, id = _text(batch.topic), self._id()
        if data is None:
            places = (batch.from_seq, batch.to_seq, batch.head_seq)
            data = batch.made[key] = b'{"topic":%b,"records":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
                name,
                batch.line(self._shape),
                *places,
            )
        made = frame(b"record", data, id)
        if drained:
            made += frame(b"caught-up", b'{"topic":%b,"head_seq":%d}' % (name, batch.head_seq), id)
        return made

    def gap(self, feed: Feed, gap: dict[str, Any], *, at: int, first: bool) -> None:
        reason = "from_seq_too_old" if first and gap["reason"] != "recreated" else gap["reason"]
        told = {"topic": feed.topic, "reason": reason}
        told |= {name: gap[name] for name in ("gap_from", "gap_to", "earliest_seq", "head_seq")}
        self._moved(feed, at)
        self._events.write(frame(b"tombstone", _text(told), self._id()))

    def caught_up(self, feed: Feed, head_seq: int) -> None:
        told = {"topic": feed.topic, "head_seq": head_seq}
        self._moved(feed, feed.cursor)
        self._events.write(frame(b"caught-up", _text(told), self._id()))

    def deleted(self, feed: Feed) -> None:
        told = {"topic": feed.topic, "head_seq": feed.head_seq, "reason": "deleted"}
        self._moved(feed, feed.cursor)
        self._events.write(frame(b"topic-deleted", _text(told), self._id()))
        if all(one.over for one in self._feeds.values()):
            self._events.end()

    def failed(self, feed: Feed) -> None:
        self._events.end(error_frame(503, "internal", retry_after_ms=1_000, topics=[feed.topic]))

    def troubled(self, feed: Feed, error: TopicdError, retry_s: float) -> None:
        if self._events.has_room():
            code = errors.of(error, feed.topic).code
            after = max(1, int(retry_s * 1000))
            self._events.write(error_frame(429, code, retry_after_ms=after, topics=[feed.topic]))
