"""`topicctl bench`: what this daemon on this machine does for one client. The loops are those of `make bench`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from topicd.cli.app import App, pass_app, verb
from topicd.cli.show.human import count, size
from topicd.cli.show.progress import Bar
from topicd.cli.show.render import Column
from topicd.errors import TopicdError
from topicd.limits import MAX_BATCH_RECORDS, MAX_DATA_AND_META
from topicd.model import Durability

if TYPE_CHECKING:
    from topicd.bench.load import Figures, Load
    from topicd.client.blocking.client import Client

EXAMPLES = """
topicctl bench
topicctl bench --only A,C --durability fsync --seconds 5
topicctl bench --only C --size 1024 --batch 1000
topicctl bench --json | jq '.results[] | {test, name, records_per_s}'
"""

TESTS = {
    "A": "one append at a time",
    "B": "many appends in flight",
    "C": "batches",
    "D": "reading what C wrote",
    "E": "from publish to a subscriber",
}
TICK_S = 0.1
PIPELINE_MAX = 512
PUSHES_PER_S = 300


@dataclass(frozen=True, slots=True)
class Result:
    test: str
    name: str
    records_per_s: float | None
    mb_per_s: float | None
    p50_us: float | None
    p99_us: float | None


def _tests(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    wanted = [letter.strip().upper() for letter in (value or ",".join(TESTS)).split(",") if letter.strip()]
    unknown = sorted(set(wanted) - TESTS.keys())
    if unknown or not wanted:
        raise click.BadParameter(f"tests are {', '.join(TESTS)}, not {', '.join(unknown) or 'nothing'}")
    return [letter for letter in TESTS if letter in wanted]


@verb("bench", examples=EXAMPLES, apart=("--topic --keep",))
@click.option(
    "--only",
    metavar="A,B,…",
    callback=_tests,
    help="Tests to run: " + "; ".join(f"{letter} {what}" for letter, what in TESTS.items()) + ".  [default: all]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each measurement takes.",
)
@click.option(
    "--size",
    "record_size",
    type=click.IntRange(8, MAX_DATA_AND_META),
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
    help="Records per batch in tests C and D.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, PIPELINE_MAX),
    default=64,
    show_default=True,
    metavar="N",
    help="Unacknowledged appends in test B.",
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
@click.pass_context
@pass_app
def bench(
    app: App,
    ctx: click.Context,
    /,
    only: list[str],
    seconds: float,
    record_size: int,
    batch: int,
    in_flight: int,
    durability: str,
    topic: str | None,
    keep: bool,
) -> None:
    """Measure appends, batches, reading and pushes through one client, against the running daemon."""
    from topicd.bench.load import Load

    for option, name, tests in (("--batch", "batch", "CD"), ("--in-flight", "in_flight", "B")):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and not set(tests) & set(only):
            raise click.UsageError(f"{option} is for {' and '.join(tests)}, and --only leaves that out")
    name = topic or f"bench-{secrets.token_hex(4)}"
    load = Load(
        size=record_size,
        seconds=seconds,
        batch=batch,
        in_flight=in_flight,
        records=max(20, int(seconds * PUSHES_PER_S)),
    )
    with app.connect() as client:
        client.configure(name, durability=cast(Any, durability))
        try:
            results = list(_measure(client, app.socket, name, load, only))
        finally:
            if topic is None and not keep:
                with suppress(TopicdError):
                    client.delete_topic(name)
    if app.json:
        given = {"topic": name, "durability": durability, "size": record_size, "batch": batch, "in_flight": in_flight}
        app.out.document({**given, "results": [asdict(result) for result in results]})
        return
    app.out.text(f"records of {size(record_size)}, durability {durability}, one client")
    app.out.table(COLUMNS, [_row(result) for result in results])


def _measure(client: Client, target: str | None, topic: str, load: Load, only: list[str]) -> Iterator[Result]:
    from dataclasses import replace

    from topicd.bench import loops
    from topicd.bench.work import run

    if "A" in only:
        yield _watched("A", "single appends", lambda tick: loops.single(client, topic, load, tick))
    if "B" in only:
        flight = load.in_flight
        yield _watched("B", f"pipeline of {flight}", lambda tick: loops.window(client, topic, load, tick))
        yield _watched("B", f"asyncio, {flight} tasks", lambda tick: run(loops.tasks(target, topic, load, tick)))
    begin = client.state(topic, touch=False).head_seq
    if "C" in only or "D" in only:
        written = _watched("C", f"batches of {load.batch:,}", lambda tick: loops.batched(client, topic, load, tick))
        if "C" in only:
            yield written
    if "D" in only:
        stored = replace(load, records=client.state(topic, touch=False).head_seq - begin)
        yield _watched("D", "reading", lambda tick: loops.read(client, topic, stored, begin, tick))
        yield _watched("D", "history", lambda tick: loops.descriptors(client, topic, stored, begin, tick))
    if "E" in only:
        yield _watched("E", "push", lambda tick: loops.push(client, target, topic, load, tick))


class _Ticker:
    """Records done, shown now and then: a bar that is drawn for each would be what is measured."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._unshown = 0
        self._due = time.monotonic() + TICK_S

    def __call__(self, done: int) -> None:
        self._unshown += done
        now = time.monotonic()
        if now >= self._due:
            self._due = now + TICK_S
            self._bar.advance(self._unshown)
            self._unshown = 0


def _watched(test: str, name: str, loop: Callable[[Any], Figures]) -> Result:
    with Bar(f"{test}  {name}", None) as bar:
        found = loop(_Ticker(bar))
    return Result(test, name, found.get("rate"), found.get("mb_s"), found.get("p50"), found.get("p99"))


COLUMNS = [
    Column("test"),
    Column("what"),
    Column("records/s", right=True),
    Column("MB/s", right=True),
    Column("p50 µs", right=True),
    Column("p99 µs", right=True),
]


def _row(found: Result) -> list[str]:
    rest = (found.mb_per_s, found.p50_us, found.p99_us)
    rate = "-" if found.records_per_s is None else count(found.records_per_s)
    return [found.test, found.name, rate, *("-" if value is None else f"{value:,.1f}" for value in rest)]
