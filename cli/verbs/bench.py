"""`topicctl bench`: what this daemon on this machine does. The loops are those of `make bench`. Promise: whatever
happens, our topics are deleted and a daemon that was started for it is gone with its files.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click
from click.core import ParameterSource

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit
from topicd.cli.show.human import count, duration, size
from topicd.cli.show.progress import Bar
from topicd.cli.show.render import Column
from topicd.errors import Forbidden, TopicdError, Unauthorized
from topicd.limits import MAX_BATCH_RECORDS, MAX_DATA_AND_META
from topicd.model import Durability

if TYPE_CHECKING:
    from topicd.bench.load import Where
    from topicd.bench.plan import Line, Plan, Wanted
    from topicd.cli.private import PrivateDaemon
    from topicd.client.blocking.client import Client

EXAMPLES = """
topicctl bench
topicctl bench --only A,C --durability fsync --seconds 5
topicctl bench --only fanout --watchers 100,5000
topicctl bench --only recovery --records 10000000 --dir /var/tmp
topicctl bench --json | jq '.results[] | {test, name, records_per_s, p99_us}'
"""

TICK_S = 0.1
PIPELINE_MAX = 512
PUSHES_PER_S = 300
SYNC_S = 0.3
WATCHERS = "1,10,100,1000"
WATCHERS_MAX = 100_000
RECORDS = 1_000_000
SEGMENT_AND_LOG = 2  # a record of a scratch daemon lies in both for a while
FRAMED = 64  # bytes around a record's data, at most
# Options that mean nothing to the other tests.
ONLY_FOR = {
    "--batch": ("batch", {"C", "D", "eviction", "recovery"}),
    "--in-flight": ("in_flight", {"B"}),
    "--watchers": ("watchers", {"fanout"}),
    "--records": ("records", {"recovery"}),
    "--dir": ("directory", {"recovery", "throttling", "bytes"}),
}


@dataclass(frozen=True, slots=True)
class Failure:
    test: str
    error: str
    code: str


def _tests(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    from topicd.bench.plan import TESTS

    by_name = {name.upper(): name for name in TESTS}
    wanted = [name.strip().upper() for name in (value or ",".join(TESTS)).split(",") if name.strip()]
    unknown = sorted(set(wanted) - by_name.keys())
    if unknown or not wanted:
        raise click.BadParameter(f"tests are {', '.join(TESTS)}, not {', '.join(unknown) or 'nothing'}")
    return [name for upper, name in by_name.items() if upper in wanted]


def _watchers(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    found = [part.strip() for part in value.split(",") if part.strip()]
    if not found or not all(part.isdecimal() and 1 <= int(part) <= WATCHERS_MAX for part in found):
        raise click.BadParameter(f"numbers from 1 to {WATCHERS_MAX:,} with commas between, not {value!r}")
    return sorted({int(part) for part in found})


@verb("bench", examples=EXAMPLES, apart=("--topic --keep",))
@click.option(
    "--only",
    metavar="A,B,…",
    callback=_tests,
    help="Tests to run: A one append at a time, in each class of durability; B many in flight; C batches; D reading "
    "what C wrote; E from publish to a subscriber; fanout to each of many subscribers; router the same through a "
    "router; eviction at a topic's cap; recovery after a crash; throttling, writes that are refused; bytes for each "
    "record.  [default: all]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 3600),
    default=1.0,
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
    "--watchers",
    callback=_watchers,
    default=WATCHERS,
    show_default=True,
    metavar="N,N,…",
    help="Subscribers of test fanout.",
)
@click.option(
    "--records",
    type=click.IntRange(1, 100_000_000),
    default=RECORDS,
    show_default=True,
    metavar="N",
    help="Records that are stored when the crash of test recovery comes.",
)
@click.option(
    "--durability",
    type=click.Choice([d.value for d in Durability]),
    help="Of the topics.  [default: each in turn for A, disk for the others]",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Where the daemons that are crashed and throttled keep their data, on the disk that is meant.  [default: the "
    "folder for temporary files]",
)
@click.option("--topic", metavar="NAME", help="Use this topic instead of a new one that is deleted afterwards.")
@click.option("--keep", is_flag=True, help="Keep the topics.")
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
    watchers: list[int],
    records: int,
    durability: str | None,
    directory: Path | None,
    topic: str | None,
    keep: bool,
) -> None:
    """Measure what the running daemon does: writes, reads, pushes, routers and caps through clients of this process, in
    topics of its own. Recovery, throttling and bytes per record are measured on a daemon that is started for it."""
    from topicd.bench.load import Load
    from topicd.bench.plan import Wanted

    for option, (name, tests) in ONLY_FOR.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and not tests & set(only):
            raise click.UsageError(f"{option} is for {' and '.join(sorted(tests))}, and --only leaves that out")
    load = Load(
        size=record_size,
        seconds=seconds,
        batch=batch,
        in_flight=in_flight,
        records=max(20, int(seconds * PUSHES_PER_S)),
    )
    wanted = Wanted(load, only, watchers, records, None if durability is None else Durability(durability))
    name = topic or f"bench-{secrets.token_hex(4)}"
    with _ending_well(), _folders(directory) as folders:
        _check_room(wanted, folders.data)
        run = _Run(app, wanted, folders, name, keep=keep, given=topic is not None)
        run.measure()
        run.show()
    if run.failures:
        raise SystemExit(int(Exit.FAILED))


class _Run:
    def __init__(self, app: App, wanted: Wanted, folders: _Folders, topic: str, *, keep: bool, given: bool) -> None:
        from topicd.bench import disk, machine

        self._app = app
        self._wanted = wanted
        self._folders = folders
        self._topic = topic
        self._keep = keep
        self._given = given
        self._scratches = 0
        self._daemon: dict[str, str] = {}
        self._facts = machine.facts(folders.data)
        self._sync = disk.sync_time(folders.data, min(SYNC_S, wanted.load.seconds))
        self.lines: list[Line] = []
        self.failures: list[Failure] = []

    def measure(self) -> None:
        from topicd.bench.load import Where
        from topicd.bench.plan import ON_SCRATCH, Plan

        where = Where(**self._app.where())
        with ExitStack() as stack:
            client = None
            if not ON_SCRATCH.issuperset(self._wanted.tests):
                client = stack.enter_context(self._app.connect())
                self._daemon = _about(client, where)
            plan = Plan(self._wanted, self._topic, where, client, self._shown, self._scratch)
            if client is not None:
                stack.callback(self._clean, plan)
                try:
                    plan.check_rights()
                except (Forbidden, Unauthorized) as error:
                    what = f"bench makes topics of its own, {self._topic}.…, writes, reads and deletes them"
                    raise CliError(f"{error}; {what}", Exit.REFUSED) from None
                plan.main_topic()
                if not (self._keep or self._given):
                    plan.made.append(self._topic)
            for test in self._wanted.tests:
                self._measure(plan, test)

    def _measure(self, plan: Plan, test: str) -> None:
        """What one test cannot do is said, and the others go on."""
        try:
            for line in plan.measure(test):
                self.lines.append(line)
        except (TopicdError, RuntimeError, OSError, TimeoutError) as error:
            self.failures.append(Failure(test, str(error), getattr(error, "code", type(error).__name__)))
        if not self._keep:
            self._clean(plan, but=self._topic)

    def _clean(self, plan: Plan, but: str = "") -> None:
        if self._keep:
            return
        for name, error in plan.clean(but).items():
            click.echo(f"topicctl: topic {name} is left behind: {error}", err=True)

    # ---- what the plan asks for ----

    @contextmanager
    def _shown(self, test: str, name: str) -> Iterator[Callable[[int], None]]:
        with Bar(f"{test}  {name}", None) as bar:
            yield _Ticker(bar)

    @contextmanager
    def _scratch(self, settings: dict[str, str]) -> Iterator[_Scratch]:
        from topicd.cli.private import PrivateDaemon

        self._scratches += 1
        data = self._folders.data / f"data-{self._scratches}"
        daemon = PrivateDaemon(data, settings, within=self._folders.run)
        with daemon as client:
            client.close()
            yield _Scratch(daemon, data)

    # ---- the report ----

    def show(self) -> None:
        from topicd.bench import judge

        notes = judge.notes(self._folders.data, self._sync, self.lines)
        load, out = self._wanted.load, self._app.out
        if self._app.json:
            out.document(
                {
                    "topic": self._topic,
                    "durability": self._wanted.durability or "",
                    "size": load.size,
                    "batch": load.batch,
                    "in_flight": load.in_flight,
                    "seconds": load.seconds,
                    "machine": self._facts,
                    "sync_us": self._sync,
                    "daemon": self._daemon,
                    "results": [asdict(line) for line in self.lines],
                    "failed": [asdict(failure) for failure in self.failures],
                    "notes": notes,
                }
            )
            return
        synced = f"{self._sync['p50']:,.0f} µs p50, {self._sync['p99']:,.0f} p99 for 4 KiB and a sync"
        for name, value in {**self._facts, "disk": synced, **self._daemon}.items():
            out.text(f"{name + ':':14}{value}")
        out.text("")
        out.text(f"records of {size(load.size)}, {self._wanted.usual.value} unless it says otherwise")
        out.table(COLUMNS, [row(line) for line in self.lines])
        for note in notes:
            out.text(f"note: {note}")
        for failure in self.failures:
            click.echo(f"topicctl: {failure.test} was not measured: {failure.error}", err=True)


class _Scratch:
    """A daemon of nobody's, as the plan wants it."""

    def __init__(self, daemon: PrivateDaemon, data: Path) -> None:
        self._daemon = daemon
        self.data = data

    @property
    def where(self) -> Where:
        from topicd.bench.load import Where

        return Where(self._daemon.target)

    def kill9(self) -> None:
        from topicd.bench import crash

        crash.kill9(self._daemon.process)

    def launch(self) -> object:
        return self._daemon.launch()


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


class _Folders(NamedTuple):
    run: Path  # sockets of scratch daemons
    data: Path


# When nobody holds its input any more, whatever became of us: what the daemon still writes is removed as well.
_GUARD = """read -r _; tries=0
while [ -d "$1" ] || [ -d "$2" ]; do
  rm -rf -- "$1" "$2"; tries=$((tries + 1)); [ $tries -lt 60 ] || exit; sleep 0.5
done"""


@contextmanager
def _folders(directory: Path | None) -> Iterator[_Folders]:
    """For this run alone."""
    run = Path(tempfile.mkdtemp(prefix="topicd-bench-"))
    data = run if directory is None else Path(tempfile.mkdtemp(prefix="topicd-bench-", dir=directory))
    command, none = ["/bin/sh", "-c", _GUARD, "topicd-bench", str(run), str(data)], subprocess.DEVNULL
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=none, stderr=none, start_new_session=True):
        try:
            yield _Folders(run, data)
        finally:
            for folder in (run, data):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ending_well() -> Iterator[None]:
    """A termination unwinds like an interrupt: topics, daemon and files go on the way out."""

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signum)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_room(wanted: Wanted, data: Path) -> None:
    if "recovery" not in wanted.tests:
        return
    needed = wanted.records * (wanted.load.size + FRAMED) * SEGMENT_AND_LOG
    free = shutil.disk_usage(data).free
    if needed > free:
        raise click.UsageError(
            f"--records {wanted.records} takes up to {size(needed)} at {data.parent}, {size(free)} are free: "
            "give fewer --records, or another --dir"
        )


def _about(client: Client, where: Where) -> dict[str, str]:
    """The daemon that is measured. Its settings are for those who may see its status."""
    found = {"daemon": where.target or "the one of this machine"}
    try:
        status = client.status()
        rows = status["processes"]
        kinds = ", ".join(
            f"{sum(row['name'].startswith(kind) for row in rows)} {word}"
            for kind, word in (("wal", "WAL shards"), ("dlv", "delivery shards"))
        )
        found["daemon"] += f", up {duration(status['uptime_s'])}, {kinds}, pressure {status['pressure']['value']:.2f}"
    except TopicdError as error:
        found["daemon"] += f" ({error})"
    return found


COLUMNS = [
    Column("test"),
    Column("what"),
    Column("records/s", right=True),
    Column("MB/s", right=True, rank=1),
    Column("p50 µs", right=True),
    Column("p99 µs", right=True),
    Column("p99.9 µs", right=True),
    Column("and"),
]


def row(found: Line) -> list[str]:
    rate = "-" if found.records_per_s is None else count(found.records_per_s)
    numbers = (found.mb_per_s, found.p50_us, found.p99_us, found.p999_us)
    shown = ["-" if value is None else _figure(value) for value in numbers]
    return [found.test, found.name, rate, *shown, "; ".join(_more(found))]


def _figure(value: float) -> str:
    return f"{value:,.4g}" if value < 1_000 else count(round(value))


def _more(found: Line) -> Iterator[str]:
    if found.last_p50_us is not None and found.last_p99_us is not None:
        yield f"the last one {_figure(found.last_p50_us)} / {_figure(found.last_p99_us)}"
    if found.publish_p50_us is not None:
        yield f"the writer {_figure(found.publish_p50_us)}"
    if found.seconds is not None:
        yield f"{found.seconds:.3g} s"
    if found.bytes_per_record is not None:
        yield f"{found.bytes_per_record:,.0f} bytes a record"
    if found.ratio is not None:
        yield f"{found.ratio:.2f} of the data" if found.test == "bytes" else f"{found.ratio:.2f} of that without"
