"""Every request of the client, built once for both faces: the user's arguments checked, the message that travels, and
what its answer means. A face sends it and hands the answer to `parse`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from topicd.client.core.answers import ConnectionInfo, ConsumerInfo, Deleted, TopicInfo, TopicState, config_of, info
from topicd.client.core.arguments import (
    Match,
    Nodes,
    Start,
    cursor,
    milliseconds,
    node_names,
    start_place,
    tag_match,
    whole,
)
from topicd.client.core.batch import Batch
from topicd.errors import InvalidRequest, NotAQueue
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import Hello, append_body, number, packed, parse_hello
from topicd.ipc.protocol.once import new_producer_id
from topicd.ipc.protocol.retry import Tempo
from topicd.ipc.protocol.wire import FETCH, PROTOCOL_VERSION, MessageFlag
from topicd.limits import LIST_PAGE_MAX, LONG_POLL_MS_MAX, MAX_SEQ
from topicd.model import TopicConfig, check_topic_name

T = TypeVar("T")
U32_MAX = 0xFFFF_FFFF
CLIENT_NAME = "topicd-python"


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """`topic` says whose shard it goes to; without one it goes to the daemon's front door, or to the shard that is
    named with it."""

    op: int
    body: bytes
    parse: Callable[[dict[str, Any]], T]
    topic: str | None = None


def _as_it_is(answer: dict[str, Any]) -> Any:
    return answer


def of_topic(message: messages.Request, topic: str, parse: Callable[[dict[str, Any]], T] = _as_it_is) -> Request[T]:
    """A declared message to the shard of a topic; its answer as a map, if nothing else is said."""
    return Request(int(message.OP), packed(message.to_wire()), parse, check_topic_name(topic))


def of_daemon(message: messages.Request, parse: Callable[[dict[str, Any]], T] = _as_it_is) -> Request[T]:
    return Request(int(message.OP), packed(message.to_wire()), parse)


def _nothing(answer: dict[str, Any]) -> None:
    return None


def _topic_id(answer: dict[str, Any]) -> int:
    return number(answer, "topic_id")


def _acked_seq(answer: dict[str, Any]) -> int:
    return number(answer, "acked_seq")


# ---- topics ----


def open_topic(topic: str, *, create: bool) -> Request[int]:
    """The topic's id."""
    return of_topic(messages.OpenTopic(topic=topic, create=create, config=None), topic, _topic_id)


class Opened(NamedTuple):
    """A topic by its id; `type` is log or queue."""

    topic_id: int
    type: str


def open_any(topic: str, *, create: bool, queue: bool) -> Request[Opened]:
    """`queue`: one that is created is a queue."""
    message = messages.OpenTopic(topic=topic, create=create, config={"type": "queue"} if queue else None)
    return of_topic(message, topic, lambda answer: Opened(_topic_id(answer), str(answer.get("type", ""))))


def check_queue(topic: str, kind: str) -> None:
    if kind != "queue":
        raise NotAQueue(f"topic {topic!r} is a log: there are no jobs in it")


def state(topic: str, touch: bool) -> Request[TopicState]:
    message = messages.TopicState(topic=topic, touch=touch)
    return of_topic(message, topic, lambda answer: info(TopicState, answer))


def configure(
    topic: str, config: dict[str, Any], *, create: bool = True, internal: bool = False
) -> Request[TopicConfig]:
    TopicConfig.from_fields(config)
    message = messages.Configure(topic=topic, config=config, create=create, internal=internal)
    return of_topic(message, topic, lambda answer: config_of(answer.get("config")))


def delete(topic: str, before_seq: int | None, match: Match) -> Request[Deleted]:
    if before_seq is None and match is None:
        raise InvalidRequest("delete needs before_seq, match or both; delete_topic removes everything")
    before = None if before_seq is None else cursor(before_seq)
    message = messages.DeleteRecords(topic=topic, before_seq=before, match=tag_match(match))
    return of_topic(message, topic, lambda answer: info(Deleted, answer))


def cut(topic: str, after_seq: int | None, after_ts: int | None) -> Request[int]:
    """How many records."""
    message = messages.CutTopic(topic=topic, after_seq=after_seq, after_ts=after_ts)
    return of_topic(message, topic, lambda answer: number(answer, "deleted"))


def delete_topic(topic: str, if_empty: bool) -> Request[int]:
    """The id it had."""
    return of_topic(messages.DeleteTopic(topic=topic, if_empty=if_empty), topic, _topic_id)


def forgive(topic: str, first_seq: int, last_seq: int) -> Request[list[tuple[int, int]]]:
    """What was forgiven."""
    message = messages.ForgiveGap(
        topic=topic, first_seq=whole("first_seq", first_seq, MAX_SEQ), last_seq=whole("last_seq", last_seq, MAX_SEQ)
    )
    return of_topic(message, topic, lambda answer: [(int(a), int(b)) for a, b in answer.get("forgiven") or []])


def tier_state(topic: str) -> Request[dict[str, Any]]:
    return of_topic(messages.TierState(topic=topic), topic, dict)


def tier_now(topic: str) -> Request[dict[str, Any]]:
    return of_topic(messages.TierNow(topic=topic), topic, dict)


class Page(NamedTuple):
    """Topics of one shard; `next` is the name behind which the next page begins, None at the end."""

    topics: list[TopicInfo]
    next: str | None


def topics_page(prefix: str, after: str, internal: bool) -> Request[Page]:
    """Of the shard that it is sent to."""

    def parse(answer: dict[str, Any]) -> Page:
        return Page([info(TopicInfo, entry) for entry in answer.get("topics") or []], answer.get("next"))

    return of_daemon(
        messages.ListTopics(prefix=prefix, after=after, limit=LIST_PAGE_MAX, internal=internal),
        parse,
    )


# ---- consumers ----


class ConsumerPlace(NamedTuple):
    """Where a named consumer goes on."""

    topic_id: int
    acked_seq: int


def consumers(topic: str) -> Request[list[ConsumerInfo]]:
    def parse(answer: dict[str, Any]) -> list[ConsumerInfo]:
        return [info(ConsumerInfo, entry) for entry in answer.get("consumers") or []]

    return of_topic(messages.ListConsumers(topic=topic), topic, parse)


def open_consumer(topic: str, name: str, start: Start) -> Request[ConsumerPlace]:
    message = messages.OpenConsumer(topic=topic, name=name, start=start_place(start))
    return of_topic(message, topic, lambda answer: ConsumerPlace(_topic_id(answer), _acked_seq(answer)))


def ack_consumer(topic: str, name: str, seq: int, holder: int = 0) -> Request[int]:
    wanted = messages.AckConsumer(topic=topic, name=name, seq=cursor(seq), holder=holder)
    return of_topic(wanted, topic, _acked_seq)


def reset_consumer(topic: str, name: str, start: Start) -> Request[int]:
    return of_topic(messages.ResetConsumer(topic=topic, name=name, start=start_place(start)), topic, _acked_seq)


def consumer_lag(topic: str, name: str) -> Request[int]:
    return of_topic(messages.ConsumerState(topic=topic, name=name), topic, lambda answer: number(answer, "lag"))


def remove_consumer(topic: str, name: str) -> Request[None]:
    return of_topic(messages.RemoveConsumer(topic=topic, name=name), topic, _nothing)


# ---- producers ----


class ProducerPlace(NamedTuple):
    """Where a producer goes on: the number of the first batch that is not stored."""

    topic_id: int
    expected: int


def producer_place(topic: str, producer_id: int) -> Request[ProducerPlace]:
    message = messages.ProducerState(topic=topic, producer_id=producer_id)
    return of_topic(message, topic, lambda answer: ProducerPlace(_topic_id(answer), number(answer, "expected")))


def release_producer(topic: str, producer_id: int) -> Request[None]:
    return of_topic(messages.ReleaseProducer(topic=topic, producer_id=producer_id), topic, _nothing)


# ---- commits ----


class CommitPlace(NamedTuple):
    """Where a commit's batches go, and what one of them should not exceed."""

    topic_id: int
    expected: int
    first_no: int
    max_records: int
    max_bytes: int
    max_inflight_bytes: int
    schema: str  # a digest of the topic's; empty: it has none


class AbandonedPart(NamedTuple):
    """What of an abandoned commit one topic had."""

    topic_id: int
    records: int
    seqs: list[tuple[int, int]]
    deleted: int


def open_commit(
    topic: str, producer_id: int, records: int, content: int, *, hold_ms: int, first_no: int = 0
) -> Request[CommitPlace]:
    message = messages.OpenCommit(
        topic=topic,
        producer_id=producer_id,
        first_no=first_no,
        records=records,
        bytes=content,
        hold_ms=hold_ms,
        judged=True,
    )

    def parse(answer: dict[str, Any]) -> CommitPlace:
        return CommitPlace(
            _topic_id(answer),
            number(answer, "expected"),
            number(answer, "first_no"),
            number(answer, "max_records"),
            number(answer, "max_bytes"),
            number(answer, "max_inflight_bytes"),
            str(answer.get("schema") or ""),
        )

    return of_topic(message, topic, parse)


def close_commit(topic: str, producer_id: int, first_no: int) -> Request[None]:
    message = messages.CloseCommit(topic=topic, producer_id=producer_id, first_no=first_no)
    return of_topic(message, topic, _nothing)


def abandon_commit(topic: str, producer_id: int, first_no: int, *, take_back: bool) -> Request[AbandonedPart]:
    def parse(answer: dict[str, Any]) -> AbandonedPart:
        seqs = [(int(first), int(last)) for first, last in answer.get("seqs") or []]
        return AbandonedPart(_topic_id(answer), number(answer, "records"), seqs, number(answer, "deleted"))

    message = messages.AbandonCommit(topic=topic, producer_id=producer_id, first_no=first_no, take_back=take_back)
    return of_topic(message, topic, parse)


# ---- the daemon ----


def hello(token: str | None, client: str = CLIENT_NAME) -> Request[Hello]:
    message = messages.Hello(version=PROTOCOL_VERSION, client=client, token=token)
    return of_daemon(message, parse_hello)


def status() -> Request[dict[str, Any]]:
    return of_daemon(messages.Status(), _as_it_is)


def queue_topics() -> Request[int]:
    """How many topics of the shard that it is sent to are queues."""
    return of_daemon(messages.Totals(), lambda answer: number(answer, "queue_topics"))


def force_pressure(value: float | None) -> Request[dict[str, Any]]:
    """For tests, of a daemon with the test clock; None: the pressure is what it is again."""
    if value is None:
        return of_daemon(messages.Debug(pressure_off=True), _as_it_is)
    return of_daemon(messages.Debug(pressure_ppm=round(value * 1_000_000)), _as_it_is)


def settings() -> Request[dict[str, Any]]:
    return of_daemon(messages.Status(settings=True), lambda answer: dict(answer.get("settings") or {}))


def connections(shard: int) -> Request[list[ConnectionInfo]]:
    """Of the shard that it is sent to."""

    def parse(answer: dict[str, Any]) -> list[ConnectionInfo]:
        return [info(ConnectionInfo, {**entry, "shard": shard}) for entry in answer.get("connections") or []]

    return of_daemon(messages.ListConnections(), parse)


def ping() -> Request[None]:
    return of_daemon(messages.Ping(), _nothing)


# ---- requests about a topic by its id ----


class Append(NamedTuple):
    """A batch that is sent by itself, under a producer id of its own: it may be repeated freely and needs no order.
    Keys are forgotten when the daemon restarts, numbers are not, so one with a key has a number as well."""

    frames: bytes | bytearray
    records: int
    key: bytes
    flags: int
    producer_id: int
    options: bytes = b""  # of jobs

    def body(self, topic_id: int) -> bytes:
        return append_body(topic_id, self.producer_id, 1, self.records, self.key, self.options) + self.frames


def append(
    frames: bytes | bytearray, records: int, *, key: bytes = b"", performance: bool = False, options: bytes = b""
) -> Append:
    flags = (MessageFlag.KEY if key else 0) | (MessageFlag.PERFORMANCE if performance else 0)
    flags |= MessageFlag.OPTIONS if options else 0
    return Append(frames, records, key, int(flags), new_producer_id(), options)


class Fetch(NamedTuple):
    """A read; `body(topic_id, wait_ms)` for one attempt of at most the daemon's longest wait."""

    from_seq: int
    limit: int
    max_bytes: int
    filters: bytes
    flags: int

    def body(self, topic_id: int, wait_ms: int) -> bytes:
        return FETCH.pack(topic_id, self.from_seq, self.limit, self.max_bytes, wait_ms) + self.filters


def fetch(
    from_seq: int,
    *,
    limit: int,
    max_bytes: int,
    match: Match,
    nodes: Nodes,
    from_time: datetime | None,
    metadata_only: bool,
    performance: bool,
    epoch: int | None,
    committed: bool = False,
) -> Fetch:
    filters = messages.FetchFilter(
        match=tag_match(match),
        nodes=node_names(nodes),
        from_ts=None if from_time is None else milliseconds(from_time),
        epoch=epoch,
        committed=committed,
    ).to_wire()
    flags = MessageFlag.METADATA_ONLY if metadata_only else MessageFlag(0)
    flags |= MessageFlag.PERFORMANCE if performance else MessageFlag(0)
    flags |= MessageFlag.FILTER if filters else MessageFlag(0)
    return Fetch(
        cursor(from_seq),
        whole("limit", limit, U32_MAX),
        whole("max_bytes", max_bytes, U32_MAX),
        packed(filters) if filters else b"",
        int(flags),
    )


class LongPoll:
    """How long a read goes on waiting for a first record, attempt by attempt."""

    def __init__(self, tempo: Tempo, wait: float) -> None:
        self._tempo = tempo
        self._ends = tempo.monotonic() + wait if wait else 0.0
        self._left = 0.0

    def next_ms(self) -> int:
        """How long the next attempt waits."""
        self._left = self._ends - self._tempo.monotonic() if self._ends else 0.0
        return min(max(0, int(self._left * 1000)), LONG_POLL_MS_MAX)

    def over(self, found: Batch) -> bool:
        """There is something, or the attempt was the last."""
        return len(found) > 0 or found.tombstone is not None or self._left * 1000 <= LONG_POLL_MS_MAX
