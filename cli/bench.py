"""`topicctl bench`: what this daemon on this machine does for one client. Three measurements, one topic."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.human import count, duration, size
from topicd.cli.progress import Bar
from topicd.cli.render import Column
from topicd.errors import TopicdError
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX, MAX_BATCH_RECORDS, MAX_DATA_AND_META
from topicd.model import Durability

if TYPE_CHECKING:
    from topicd.client.client import Client

EXAMPLES = """
topicctl bench
topicctl bench --records 1000000 --size 100 --batch 1000
topicctl bench --durability fsync --singles 2000
topicctl bench --json | jq '.results[] | {name, records_per_s}'
"""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    records: int
    bytes: int
    seconds: float
    records_per_s: float
    bytes_per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


@verb("bench", examples=EXAMPLES)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    metavar="N",
    help="Records published in batches.",
)
@click.option(
    "--singles",
    type=click.IntRange(min=0),
    default=2_000,
    show_default=True,
    metavar="N",
    help="Records published one by one.",
)
@click.option(
    "--size",
    "record_size",
    type=click.IntRange(0, MAX_DATA_AND_META),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="Data of each record.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, MAX_BATCH_RECORDS),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Records per batch.",
)
@click.option(
    "--durability",
    type=click.Choice([d.value for d in Durability]),
    default="disk",
    show_default=True,
    help="Of the topic.",
)
@click.option("--topic", metavar="NAME", help="Use this topic instead of a new one that is deleted afterwards.")
@click.option("--keep", is_flag=True, help="Keep the topic.")
@pass_app
def bench(
    app: App,
    records: int,
    singles: int,
    record_size: int,
    batch: int,
    durability: str,
    topic: str | None,
    keep: bool,
) -> None:
    """Measure single appends, batches and reading, through one client, against the running daemon."""
    name = topic or f"bench-{secrets.token_hex(4)}"
    with app.connect() as client:
        client.configure(name, durability=durability)
        begin = client.state(name, touch=False).head_seq
        try:
            results = list(_measure(client, name, begin, records, singles, record_size, batch))
        finally:
            if topic is None and not keep:
                with suppress(TopicdError):
                    client.delete_topic(name)
    if app.json:
        given = {"topic": name, "durability": durability, "size": record_size, "batch": batch}
        app.out.document({**given, "results": [asdict(result) for result in results]})
        return
    app.out.text(f"{size(record_size)} records, durability {durability}, one client")
    app.out.table(COLUMNS, [_row(result) for result in results])


def _measure(
    client: Client, topic: str, begin: int, records: int, singles: int, record_size: int, batch: int
) -> Iterator[Result]:
    data = bytes(32 + i % 95 for i in range(record_size))
    if singles:
        yield single_appends(client, topic, data, singles)
    yield batches(client, topic, data, records, batch)
    yield reading(client, topic, begin, singles + records)


def single_appends(client: Client, topic: str, data: bytes, records: int) -> Result:
    took = []
    with Bar("single appends", records) as bar:
        for _ in range(records):
            began = time.perf_counter()
            client.publish(topic, data)
            took.append(time.perf_counter() - began)
            bar.advance(1)
    return result("single appends", records, records * len(data), sum(took), took)


def batches(client: Client, topic: str, data: bytes, records: int, batch: int) -> Result:
    took = []
    with Bar(f"batches of {batch}", records) as bar:
        for at in range(0, records, batch):
            piece = [data] * min(batch, records - at)
            began = time.perf_counter()
            client.publish_many(topic, piece)
            took.append(time.perf_counter() - began)
            bar.advance(len(piece))
    return result(f"batches of {batch}", records, records * len(data), sum(took), took)


def reading(client: Client, topic: str, begin: int, records: int) -> Result:
    found = read_bytes = 0
    at = begin
    began = time.perf_counter()
    with Bar("reading", records) as bar:
        while found < records:
            batch = client.read(topic, at, limit=FETCH_RECORDS_MAX, max_bytes=FETCH_BYTES_MAX)
            payloads = batch.payloads()
            found += len(payloads)
            read_bytes += sum(map(len, payloads))
            at = batch.next_from_seq
            bar.advance(len(payloads))
            if batch.caught_up:
                break
    return result("reading", found, read_bytes, time.perf_counter() - began, [])


def result(name: str, records: int, nbytes: int, seconds: float, took: list[float]) -> Result:
    seconds = max(seconds, 1e-9)
    took = sorted(took)
    spread = (
        {
            "p50_ms": took[len(took) // 2] * 1000,
            "p99_ms": took[min(len(took) - 1, int(len(took) * 0.99))] * 1000,
            "max_ms": took[-1] * 1000,
        }
        if took
        else {}
    )
    return Result(name, records, nbytes, seconds, records / seconds, nbytes / seconds, **spread)


COLUMNS = [
    Column("what"),
    Column("records", right=True, rank=1),
    Column("time", right=True),
    Column("records/s", right=True),
    Column("data/s", right=True),
    Column("p50", right=True),
    Column("p99", right=True),
    Column("max", right=True, rank=2),
]


def _row(found: Result) -> list[str]:
    times = [found.p50_ms, found.p99_ms, found.max_ms]
    return [
        found.name,
        count(found.records),
        duration(found.seconds),
        count(found.records_per_s),
        f"{size(found.bytes_per_s)}/s",
        *("-" if ms is None else f"{ms:.2f} ms" for ms in times),
    ]
