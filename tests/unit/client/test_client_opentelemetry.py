"""Spans and the context of a trace, through records and jobs, on both faces."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry is an optional extra")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import topicd
import topicd.aio
from tests.support.fakeserver import FakeServer
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.integrations.opentelemetry import TracedJobs, context_of, processing, traced


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def __call__(self) -> dict[str, Any]:
        """By name; the names are different in these tests."""
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def client(server: FakeServer, spans: Spans) -> Iterator[topicd.Client]:
    with topicd.connect(server.path) as made:
        yield traced(made, tracer_provider=spans.provider)


def test_a_trace_goes_on_where_the_record_is_processed(client: topicd.Client, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("request"):
        seq = client.publish("orders", {"id": 1}, meta={"mine": 1})
    [record] = client.read("orders")
    assert record.meta["mine"] == 1 and record.meta["traceparent"].startswith("00-")
    with processing(record, tracer_provider=spans.provider):
        pass
    found = spans()
    request, publish, process = found["request"], found["publish orders"], found["process orders"]
    assert len({span.context.trace_id for span in found.values()}) == 1
    assert publish.parent.span_id == request.context.span_id
    assert process.parent.span_id == publish.context.span_id
    assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(publish.attributes) == {
        "messaging.system": "topicd",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": str(seq),
    }


def test_every_record_of_a_list_carries_it(client: topicd.Client, spans: Spans) -> None:
    given = [
        b"a",
        "b",
        {"c": 1},
        ("d", "tag"),
        ("e", None, None, {"mine": 1}),
        topicd.Record(b"f", tag="t", meta={"x": 2}),
    ]
    client.publish_many("orders", given)
    found = list(client.read("orders"))
    assert [record.data for record in found] == [b"a", b"b", b'{"c":1}', b"d", b"e", b"f"]
    assert [record.tag for record in found] == [None, None, None, "tag", None, "t"]
    assert len({record.meta["traceparent"] for record in found}) == 1
    assert (found[4].meta["mine"], found[5].meta["x"]) == (1, 2)
    assert spans()["publish orders"].attributes["messaging.batch.message_count"] == 6
    with pytest.raises(InvalidRequest):
        client.publish_many("orders", "abc")


def test_producers_of_the_client_carry_it(client: topicd.Client, spans: Spans) -> None:
    with client.producer() as producer:
        producer.send("orders", b"a").result(10)
        producer.send_many("orders", [b"b"])
    assert ["traceparent" in record.meta for record in client.read("orders")] == [True, True]
    assert "create orders" in spans()


def test_a_failure_is_recorded(client: topicd.Client, spans: Spans) -> None:
    record = topicd.Record(b"x")
    record.topic, record.seq = "orders", 7
    with pytest.raises(ValueError, match="broken"), processing(record, tracer_provider=spans.provider):
        raise ValueError("broken")
    span = spans()["process orders"]
    assert span.status.status_code is StatusCode.ERROR and span.events[0].name == "exception"
    assert span.parent is None, "there was no trace to go on with"


@pytest.mark.parametrize("meta", [{"traceparent": "nonsense"}, {"traceparent": 7}, {"other": b"\xff"}])
def test_a_strange_meta_is_no_error(meta: dict[str, Any]) -> None:
    assert not context_of(topicd.Record(b"x", meta=meta))


def test_asyncio_carries_it_too(server: FakeServer, spans: Spans) -> None:
    async def run() -> None:
        async with topicd.aio.connect(server.path) as made:
            client = traced(made, tracer_provider=spans.provider)
            with spans.tracer.start_as_current_span("request"):
                await client.publish("orders", b"x")
                await client.publish_many("orders", [b"y"])
            found = [record async for record in client.read("orders")]
            assert ["traceparent" in record.meta for record in found] == [True, True]

    asyncio.run(run())
    assert spans()["publish orders"].parent.span_id == spans()["request"].context.span_id


class Job:
    """As a worker hands it to middleware."""

    queue, seq, raw, meta = "jobs", 3, (b"", None, None, b"\x80"), {}


def test_tasks_run_in_spans_of_their_own(spans: Spans) -> None:
    middleware, job, bad = TracedJobs(tracer_provider=spans.provider), Job(), Job()
    middleware.before(job, "resize")  # type: ignore[arg-type]
    middleware.after(job, "resize", None)  # type: ignore[arg-type]
    assert spans()["process jobs"].attributes["topicd.task"] == "resize"
    middleware.before(bad, "resize")  # type: ignore[arg-type]
    middleware.error(bad, "resize", OSError("no"))  # type: ignore[arg-type]
    middleware.error(bad, "resize", OSError("never began"))  # type: ignore[arg-type]
    states = [span.status.status_code for span in spans.exporter.get_finished_spans()]
    assert states == [StatusCode.UNSET, StatusCode.ERROR]


def test_without_a_recorder_nothing_is_added_and_others_are_untouched(server: FakeServer) -> None:
    with topicd.connect(server.path) as plain, traced(topicd.connect(server.path)) as client:
        client.publish("orders", b"x")
        assert next(client.read("orders")).meta == {}
        assert "publish" not in vars(plain)
        with pytest.raises(TopicNotFound):
            client.state("nothing")


def test_who_does_not_ask_for_it_does_not_load_it() -> None:
    look = "import sys, topicd, topicd.aio; print([name for name in sys.modules if 'opentelemetry' in name])"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
