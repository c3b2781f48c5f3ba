"""OpenTelemetry for topics: spans for what a client publishes and for what is made of it, and the trace's context in
the records' meta (`traceparent`, `tracestate`, baggage), so that a trace goes on where the record is processed. Needs
`pip install topicd[otel]`, which is the API alone: without an SDK nothing is recorded.

    client = traced(topicd.connect())                    # publish, publish_many, producers and queues of this client
    for record in client.consumer("orders", "billing"):
        with processing(record):                         # goes on with the trace that published it
            bill(record)
    worker = topicd.Worker("jobs", client=client, middleware=[TracedJobs()])

A client that was not given to `traced` is as it was: nothing of this is loaded or asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from topicd.client.blocking.job import Job
from topicd.client.core.held import HeldJob
from topicd.client.core.jobs import Put
from topicd.client.core.records import Published, Record
from topicd.client.worker.tasks import Middleware

C = TypeVar("C")
_NAME = "topicd"


def traced(client: C, *, tracer_provider: Any = None) -> C:
    """Spans and contexts for what this client publishes from now on, a blocking one or one for asyncio; the client
    itself. The provider is the global one unless given."""
    tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
    for name in ("publish", "publish_soon", "publish_many"):
        if hasattr(client, name):
            _wrap(client, name, tracer, "publish")
    _wrap_maker(client, "producer", ("send", "send_many"), tracer, "create")
    _wrap_maker(client, "queue", ("put", "put_many"), tracer, "publish")
    return client


@contextmanager
def processing(record: Record, *, tracer_provider: Any = None, **attributes: Any) -> Iterator[Span]:
    """A span around the work on a record or job, a child of the span that published it. What is raised is recorded."""
    tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
    about = {**_about(_topic_of(record), "process"), "messaging.message.id": str(record.seq), **attributes}
    with tracer.start_as_current_span(
        f"process {_topic_of(record)}", context=context_of(record), kind=SpanKind.CONSUMER, attributes=about
    ) as span:
        yield span


def context_of(record: Record) -> contexts.Context:
    """What the record's meta says of the trace that published it, over the present context."""
    meta = record.meta if record.raw[3] is not None else {}
    return propagate.extract({key: value for key, value in meta.items() if isinstance(value, str)})


class TracedJobs(Middleware):
    """For `topicd.Worker(middleware=[…])`: each task runs in a span, as in `processing`."""

    def __init__(self, *, tracer_provider: Any = None) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._open: dict[int, tuple[Span, Any]] = {}  # of the jobs that are under way

    def before(self, job: Job, task: str) -> None:
        about = {**_about(job.queue, "process"), "messaging.message.id": str(job.seq), "topicd.task": task}
        span = self._tracer.start_span(
            f"process {job.queue}", context=context_of(job), kind=SpanKind.CONSUMER, attributes=about
        )
        self._open[id(job)] = span, contexts.attach(trace.set_span_in_context(span))

    def after(self, job: Job, task: str, result: Any) -> None:
        self._end(job, None)

    def error(self, job: Job, task: str, error: BaseException) -> None:
        self._end(job, error)

    def _end(self, job: Job, error: BaseException | None) -> None:
        found = self._open.pop(id(job), None)
        if found is None:
            return  # it failed before it began
        span, token = found
        if trace.get_current_span() is span:  # a coroutine's failure is told elsewhere: its context ends with it
            contexts.detach(token)
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        span.end()


def _topic_of(record: Record) -> str:
    return record.queue if isinstance(record, HeldJob) else record.topic


def _about(topic: str, what: str) -> dict[str, Any]:
    """By the semantic conventions for messaging."""
    kind = "send" if what == "publish" else what
    return {
        "messaging.system": _NAME,
        "messaging.destination.name": topic,
        "messaging.operation.name": what,
        "messaging.operation.type": kind,
    }


def _wrap_maker(client: Any, name: str, methods: tuple[str, ...], tracer: trace.Tracer, what: str) -> None:
    """What the client makes, a producer or a queue, is wrapped when it is made; a queue's methods name no topic."""
    make = getattr(client, name)

    @wraps(make)
    def made(*args: Any, **given: Any) -> Any:
        found = make(*args, **given)
        for method in methods:
            _wrap(found, method, tracer, what, topic=getattr(found, "name", None))
        return found

    setattr(client, name, made)


def _wrap(owner: Any, name: str, tracer: trace.Tracer, what: str, topic: str | None = None) -> None:
    """Of this object alone. The data comes first, or behind the topic where none is given here."""
    call, many = getattr(owner, name), name.endswith("_many")

    def span_for(args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        about = _about(_topic_in(topic, args, given), what)
        return tracer.start_as_current_span(
            f"{what} {about['messaging.destination.name']}", kind=SpanKind.PRODUCER, attributes=about
        )

    def carrying(args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        if not carrier:
            return args, given
        if not many:
            return args, {**given, "meta": {**carrier, **(given.get("meta") or {})}}
        at = 0 if topic is not None else 1
        if len(args) > at:
            return (*args[:at], _all_carrying(args[at], carrier), *args[at + 1 :]), given
        key = "jobs" if topic is not None else "records"
        return args, {**given, key: _all_carrying(given.get(key), carrier)}

    @wraps(call)
    async def later(*args: Any, **given: Any) -> Any:
        with span_for(args, given) as span:
            sent, named = carrying(args, given)
            return _told(span, await call(*sent, **named))

    @wraps(call)
    def now(*args: Any, **given: Any) -> Any:
        with span_for(args, given) as span:
            sent, named = carrying(args, given)
            return _told(span, call(*sent, **named))

    setattr(owner, name, later if iscoroutinefunction(call) else now)


def _topic_in(known: str | None, args: tuple[Any, ...], given: dict[str, Any]) -> str:
    return known if known is not None else str(args[0] if args else given.get("topic", ""))


def _all_carrying(records: Any, carrier: dict[str, str]) -> Any:
    """Each with the context; what is no list is left to who refuses it."""
    if not isinstance(records, Sequence) or isinstance(records, str | bytes | bytearray | memoryview):
        return records
    return [_one_carrying(record, carrier) for record in records]


def _one_carrying(record: Any, carrier: dict[str, str]) -> Any:
    if isinstance(record, Record):
        data, tag, node, _ = record.raw
        return data, tag, node, {**carrier, **record.meta}
    if isinstance(record, tuple):
        if not 1 <= len(record) <= 4:
            return record  # which is refused
        data, tag, node, meta = (*record, None, None, None)[:4]
        return data, tag, node, {**carrier, **(meta or {})}
    return record, None, None, carrier


def _told(span: Span, answer: Any) -> Any:
    """What the answer says of where it is stored, if it is stored by now."""
    if isinstance(answer, int):
        span.set_attribute("messaging.message.id", str(answer))
    elif isinstance(answer, Put):
        span.set_attribute("messaging.message.id", str(answer.seq))
    elif isinstance(answer, Published):
        span.set_attribute("messaging.batch.message_count", answer.count)
    return answer
