"""The bars as data, judged on the medians of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.model import CHANNEL, DISK, HTTP, OURS, Results


class Verdict(StrEnum):
    MET = "met"
    STRETCH = "met (stretch)"
    MISSED = "missed"
    UNKNOWN = "not measured"
    UNFAIR = "not comparable"


@dataclass(frozen=True, slots=True)
class Source:
    """A figure of a run: the best of the peer, among the named variants if any are named."""

    peer: str
    case: str
    figure: str
    variants: tuple[str, ...] = ()
    # Which of the variants named by numbers: the one with the smallest or the largest.
    step: str | None = None  # "least" or "most"


@dataclass(frozen=True, slots=True)
class Bar:
    """Ours shall be at most (or at least) `factor` times the reference."""

    test: str
    text: str
    ours: Source
    against: Source | float
    factor: float
    at_least: bool  # False: at most
    durable: bool = False
    stretch: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    bar: Bar
    verdict: Verdict
    ours: float | None
    reference: float | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.reference:
            return None
        return self.ours / self.reference


def judge(bar: Bar, results: Results, syncs: Mapping[str, bool | None]) -> Judgement:
    """`syncs`: was a peer seen to sync? One that does not is no reference for a durable bar."""
    ours = _value(bar.ours, results, bar.at_least)
    if isinstance(bar.against, Source):
        peer = bar.against.peer
        reference, who = _value(bar.against, results, bar.at_least), peer
    else:
        peer, reference, who = "", bar.against, "the limit"
    if ours is None or reference is None:
        absent = bar.ours.peer if ours is None else who
        return Judgement(bar, Verdict.UNKNOWN, ours, reference, f"no figure of {absent}")
    if bar.durable and syncs.get(OURS) is False:
        return Judgement(bar, Verdict.MISSED, ours, reference, f"{OURS} does not sync")
    if bar.durable and syncs.get(peer) is False:
        return Judgement(bar, Verdict.UNFAIR, ours, reference, f"{peer} does not sync")
    if bar.stretch is not None and _holds(ours, reference * bar.stretch, bar.at_least):
        return Judgement(bar, Verdict.STRETCH, ours, reference)
    held = _holds(ours, reference * bar.factor, bar.at_least)
    return Judgement(bar, Verdict.MET if held else Verdict.MISSED, ours, reference)


def judge_all(results: Results, syncs: Mapping[str, bool | None], tests: set[str]) -> list[Judgement]:
    return [judge(bar, results, syncs) for bar in BARS if bar.test in tests]


def _holds(ours: float, limit: float, at_least: bool) -> bool:
    return ours >= limit if at_least else ours <= limit


def _value(source: Source, results: Results, higher: bool) -> float | None:
    if source.step is not None:
        keys = sorted(results.keys(source.case, source.peer), key=lambda k: _number(k.variant))
        if len(keys) < 2:
            return None
        found = results.spread(keys[0 if source.step == "least" else -1], source.figure)
        return found.median if found else None
    best = results.best(source.case, source.peer, source.figure, higher=higher, among=source.variants)
    return best[1].median if best else None


def _number(variant: str) -> int:
    return int("".join(c for c in variant if c.isdigit()) or 0)


def _rate(
    case: str,
    text: str,
    peer: str,
    factor: float,
    *,
    durable: bool = False,
    stretch: float | None = None,
    ours: tuple[str, ...] = (),
    theirs: tuple[str, ...] = (),
) -> Bar:
    """At least `factor` times the best rate of a peer."""
    return Bar(
        case.split(".", maxsplit=1)[0],
        text,
        Source(OURS, case, "rate", ours),
        Source(peer, case, "rate", theirs),
        factor,
        at_least=True,
        durable=durable,
        stretch=stretch,
    )


def _p50(case: str, text: str, peer: str, factor: float, *, durable: bool = False, ours: tuple[str, ...] = ()) -> Bar:
    """At most `factor` times the best p50 of a peer."""
    return _latency("p50", case, text, peer, factor, durable, ours)


def _p99(case: str, text: str, peer: str, *, durable: bool = False, ours: tuple[str, ...] = ()) -> Bar:
    """At most the p99 of a peer."""
    return _latency("p99", case, text, peer, 1.0, durable, ours)


def _latency(figure: str, case: str, text: str, peer: str, factor: float, durable: bool, ours: tuple[str, ...]) -> Bar:
    return Bar(
        case.split(".", maxsplit=1)[0],
        text,
        Source(OURS, case, figure, ours),
        Source(peer, case, figure),
        factor,
        at_least=False,
        durable=durable,
    )


def _steady(case: str, what: str, figure: str, *, at_least: bool) -> Bar:
    """Within 15 % from the least stored to the most."""
    return Bar(
        case,
        f"{what}, most against least stored",
        Source(OURS, case, figure, step="most"),
        Source(OURS, case, figure, step="least"),
        0.85 if at_least else 1.15,
        at_least=at_least,
    )


def _times(peer: str, work: str, size: int, factor: float) -> Bar:
    """The file channel one at a time, without syncs, against a library."""
    case = f"filechannel.{work}.os.{size}"
    return Bar(
        "filechannel",
        f"file channel: {work} {size} B one at a time, against {peer}",
        Source(CHANNEL, case, "rate"),
        Source(peer, case, "rate"),
        factor,
        at_least=True,
    )


def _http_rate(kind: str, what: str, least: float, variants: tuple[str, ...] = (), stretch: float | None = None) -> Bar:
    ours = Source(HTTP, f"http.{kind}", "rate", variants)
    return Bar("http", f"HTTP: {what}", ours, least, 1.0, at_least=True, stretch=stretch)


PERSIST = ("persist-file", "persist-default", "persist-sqlite")
QUEUES = ("litequeue", "diskcache", "sqlite-queue")
ASYNCIO = "asyncio"
CLAIMED = "claim and ack"
CHAINED = "ack with the next claim"
PUSHED = "push, 100 ahead"
JOB_QUEUES = ("redis", "beanstalkd", "sqlite", "postgres")
FUTURES = "asyncio, futures"
PRODUCER = "producer"
PIPELINE = "pipeline"
READ = "read"
WRITE = "write"
DESCRIPTORS = "descriptors"
REWRITTEN = "after rewrite"
CHECKPOINTED = "after checkpoints"
LOG_ALONE = "WAL alone"
WATCH = "watch"
IN_MEMORY = "watch, class memory"
HTTP_ONE = "1 connection"
HTTP_64 = "64 connections"
NATIVE = "native"
SSE = "SSE"
SSE_NATIVE_WRITER = "SSE, native writer"
# Ours where every record is an append of its own, not part of a batch.
SINGLES = (PIPELINE, PRODUCER, ASYNCIO, FUTURES)

BARS: tuple[Bar, ...] = (
    Bar(
        "A",
        "durable append p50, against pwrite + fdatasync over existing blocks",
        Source(OURS, "A.durable.100", "p50"),
        Source(DISK, "A.durable.100", "p50", ("overwrite 4 KiB",)),
        1.5,
        at_least=False,
        durable=True,
    ),
    _p50("A.durable.100", "durable append p50, against beanstalkd", "beanstalkd", 1.0, durable=True),
    _p50("A.durable.100", "durable append p50, against Redis always", "redis", 1.0, durable=True),
    _p99("A.durable.100", "durable append p99, against Redis always", "redis", durable=True),
    _p50("A.durable.100", "durable append p50, against NATS", "nats", 1.0, durable=True),
    _p50("A.relaxed.100", "`disk` class p50, against Redis everysec", "redis", 0.6),
    _p99("A.relaxed.100", "`disk` class p99, against Redis everysec", "redis"),
    _rate(
        "B.durable.100",
        "64 in flight, against the best of Redis",
        "redis",
        1.5,
        durable=True,
        ours=SINGLES,
        stretch=2.0,
    ),
    _rate(
        "B.durable.100",
        "64 awaits, against redis.asyncio",
        "redis",
        3.0,
        durable=True,
        ours=(ASYNCIO,),
        theirs=(ASYNCIO,),
    ),
    _rate("C.durable.100", "batches of 1,000 of 100 B, against SQLite", "sqlite", 4.0, durable=True),
    _rate("C.durable.100", "batches of 1,000 of 100 B, against the best of Redis", "redis", 6.0, durable=True),
    _rate("C.durable.1024", "batches of 1,000 of 1 KiB, against SQLite", "sqlite", 4.0, durable=True),
    Bar(
        "C",
        "batches of 1,000 of 1 KiB, against the disk's overwrite bandwidth",
        Source(OURS, "C.durable.1024", "mb_s"),
        Source(DISK, "C.durable.1024", "mb_s"),
        0.4,
        at_least=True,
        durable=True,
    ),
    _rate("D.100", "consume, against SQLite", "sqlite", 1.5, ours=(READ,)),
    _rate("D.100", "consume, against XREAD", "redis", 5.0, ours=(READ,), theirs=("XREAD",)),
    _rate("D.100", "consume by passed descriptors, against SQLite", "sqlite", 3.0, ours=(DESCRIPTORS,)),
    _p50("E.relaxed.100", "push p50 of class `disk`, against Redis", "redis", 0.9, ours=(WATCH,)),
    _p99("E.relaxed.100", "push p99 of class `disk`, against Redis", "redis", ours=(WATCH,)),
    _p50("E.relaxed.100", "push p50 of class `memory`, against Redis", "redis", 0.7, ours=(IN_MEMORY,)),
    _p99("E.relaxed.100", "push p99 of class `memory`, against Redis", "redis", ours=(IN_MEMORY,)),
    _p50("E.durable.100", "push p50 durable, against Redis", "redis", 1.0, durable=True),
    _p99("E.durable.100", "push p99 durable, against Redis", "redis", durable=True),
    _p50("E.durable.100", "push p50 durable, against beanstalkd (stretch)", "beanstalkd", 1.0, durable=True),
    *(
        _rate(
            f"F.{case}.{word}",
            f"queue, {what}, {word}, against {peer}",
            peer,
            factor,
            durable=word == "durable",
            ours=ours,
        )
        for peer in JOB_QUEUES
        for case, what, ours, durable_factor, relaxed_factor in (
            ("one", "claim and ack one by one", (CLAIMED, CHAINED), 2.0, 1.0),
            ("one", "push with prefetch against one by one", (PUSHED,), 2.0, 2.0),
            ("many", "claims of 100", (CLAIMED, CHAINED), 2.0, 2.0),
        )
        for word, factor in (("durable", durable_factor), ("relaxed", relaxed_factor))
    ),
    *(
        _p50(
            f"F.start.{word}", f"queue, put to start p50, {word}, against {peer}", peer, 1.0, durable=word == "durable"
        )
        for peer in ("redis",)
        for word in ("durable", "relaxed")
    ),
    Bar(
        "G",
        "SIGKILL to serving, against Redis after a rewrite",
        Source(OURS, "G", "seconds", (CHECKPOINTED,)),
        Source("redis", "G", "seconds", (REWRITTEN,)),
        1.0,
        at_least=False,
    ),
    Bar("G", "SIGKILL to serving, seconds", Source(OURS, "G", "seconds", (CHECKPOINTED,)), 1.0, 1.0, at_least=False),
    Bar(
        "G",
        "SIGKILL to serving from the WAL alone, seconds",
        Source(OURS, "G", "seconds", (LOG_ALONE,)),
        1.0,
        1.0,
        at_least=False,
    ),
    Bar("H", "PSS of all processes, empty, MiB", Source(OURS, "H", "empty"), 160.0, 1.0, at_least=False),
    Bar(
        "H",
        "PSS, second step against first",
        Source(OURS, "H", "step2"),
        Source(OURS, "H", "step1"),
        1.05,
        at_least=False,
    ),
    _rate("spark", "Spark reads rows, against spark.read.parquet", "parquet", 0.6, ours=(READ,), theirs=(READ,)),
    _rate("spark", "Spark writes rows, against df.write.parquet", "parquet", 0.5, ours=(WRITE,), theirs=(WRITE,)),
    *(_times(peer, "send", size, 20.0) for peer in PERSIST for size in (16, 512, 16384)),
    *(_times(peer, "receive", size, 20.0) for peer in PERSIST for size in (16, 512, 16384)),
    *(_times(peer, "send", size, 5.0) for peer in QUEUES for size in (16, 512, 16384)),
    *(_times(peer, "receive", size, 5.0) for peer in QUEUES for size in (16, 512, 16384)),
    *(
        Bar(
            "filechannel",
            f"file channel: 1,000 of {size} B at a time, MB/s against a bare write loop",
            Source(CHANNEL, f"filechannel.send_many.os.{size}", "mb_s"),
            Source(DISK, f"filechannel.send_many.os.{size}", "mb_s"),
            1 / 3,
            at_least=True,
        )
        for size in (512, 16384)
    ),
    Bar(
        "filechannel",
        "file channel: send to recv in another process, p50 µs",
        Source(CHANNEL, "filechannel.wake", "p50"),
        200.0,
        1.0,
        at_least=False,
    ),
    Bar(
        "http",
        "HTTP: one durable write p50, against the native client",
        Source(HTTP, "http.write.durable", "p50", (HTTP_ONE,)),
        Source(HTTP, "http.write.durable", "p50", (NATIVE,)),
        2.0,
        at_least=False,
    ),
    _http_rate("write.durable", "single durable writes/s at 64 connections", 8_000, (HTTP_64,), stretch=2.5),
    _http_rate("batch.durable", "batches of 1,000, records/s", 300_000),
    _http_rate("diff", "diffs of 1,000, records/s", 200_000),
    *(
        Bar(
            "http",
            f"HTTP: write to event p50, {word}, against the native watch",
            Source(HTTP, f"http.push.{word}", "p50", (SSE,)),
            Source(HTTP, f"http.push.{word}", "p50", (NATIVE,)),
            2.0,
            at_least=False,
        )
        for word in ("durable", "relaxed")
    ),
    Bar(
        "http",
        "HTTP: a pulse to 1,000 streams, p99 µs",
        Source(HTTP, "http.fanout", "p99", ("1,000 watchers",)),
        60_000.0,
        1.0,
        at_least=False,
    ),
    *(
        _steady(case, f"{case}: {what}", figure, at_least=at_least)
        for case in ("growth", "topics")
        for what, figure, at_least in (
            ("appends/s", "appends", True),
            ("fetches/s", "fetches", True),
            ("append p99", "append_p99", False),
            ("fetch p99", "fetch_p99", False),
        )
    ),
)
