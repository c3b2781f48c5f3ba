"""All cases of a run with their sizes: full in under 25 minutes, quick in under 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from benchmarks.drivers.filechannel import Work
from benchmarks.model import CPU_M, MB_S, P50, P99, P999, WRITTEN, Case, Figure
from topicd.bench.load import Load

K = 1_000
M = 1_000_000
FULL_ROUNDS = 5
SECONDARY_ROUNDS = 3  # of cases that no bar looks at
QUICK_ROUNDS = 3
SIZES = ((100, "100 B"), (1024, "1 KiB"))

RECORDS_S = Figure("rate", "records/s", True)
ACKS_S = Figure("rate", "acks/s", True)
SECONDS = Figure("seconds", "", False)
TESTS = (
    "disk",
    "A",
    "B",
    "C",
    "D",
    "E",
    "F",
    "G",
    "H",
    "fanout",
    "topics",
    "growth",
    "mixed",
    "spark",
    "filechannel",
    "http",
)


def all_cases() -> list[Case]:
    return [
        *_disk(),
        *_appends(),
        *_consume(),
        *_push(),
        *_queues(),
        *_server(),
        *_scale(),
        *_spark(),
        *_filechannel(),
        *_http(),
    ]


def select(only: Sequence[str], quick: bool) -> list[Case]:
    """Cases of the wanted tests, or all; in quick mode those that have a quick load."""
    wanted = {test.lower() for test in only}
    unknown = wanted - {test.lower() for test in TESTS}
    if unknown:
        raise ValueError(f"unknown test {', '.join(sorted(unknown))}; known are {', '.join(TESTS)}")
    chosen = [case for case in all_cases() if not wanted or case.test.lower() in wanted]
    return [case for case in chosen if not quick or case.quick is not None]


def _disk() -> Iterator[Case]:
    yield Case("disk", "disk", "Limits of the disk", (P50, P99, MB_S), Load(seconds=1.0), Load(seconds=0.3), rounds=3)


def _appends() -> Iterator[Case]:
    for durable, word in ((True, "durable"), (False, "relaxed")):
        for size, label in SIZES:
            quick = Load(size, durable, seconds=0.4)
            yield Case(
                f"A.{word}.{size}",
                "A",
                f"A: one append at a time, {word}, {label}",
                (P50, P99, P999, Figure("rate", "appends/s", True), CPU_M, WRITTEN),
                Load(size, durable, seconds=1.5),
                quick if size == 100 else None,
                rounds=None if size == 100 else SECONDARY_ROUNDS,
            )
    for size, label in SIZES:
        yield Case(
            f"B.durable.{size}",
            "B",
            f"B: 64 appends in flight, durable, {label}",
            (ACKS_S, P50, P99, CPU_M, WRITTEN),
            Load(size, True, seconds=2.0),
            Load(size, True, seconds=0.5) if size == 100 else None,
            rounds=None if size == 100 else SECONDARY_ROUNDS,
        )
    for durable, word in ((True, "durable"), (False, "relaxed")):
        for size, label in SIZES:
            yield Case(
                f"C.{word}.{size}",
                "C",
                f"C: batches of 1,000, {word}, {label}",
                (RECORDS_S, MB_S, CPU_M, WRITTEN),
                Load(size, durable, seconds=1.5),
                Load(size, durable, seconds=0.4) if durable or size == 100 else None,
                rounds=None if durable else SECONDARY_ROUNDS,
            )


def _consume() -> Iterator[Case]:
    for size, label in SIZES:
        yield Case(
            f"D.{size}",
            "D",
            f"D: one consumer from the start, every payload touched, {label}",
            (RECORDS_S, MB_S, CPU_M),
            Load(size, seconds=3.0, records=M if size == 100 else 200 * K),
            Load(size, seconds=0.5, records=100 * K) if size == 100 else None,
            rounds=None if size == 100 else SECONDARY_ROUNDS,
        )


def _push() -> Iterator[Case]:
    for durable, word in ((False, "relaxed"), (True, "durable")):
        for size, label in SIZES:
            yield Case(
                f"E.{word}.{size}",
                "E",
                f"E: publish to receive, {word}, {label}",
                (P50, P99, P999, CPU_M),
                Load(size, durable, records=600),
                Load(size, durable, records=150) if size == 100 else None,
                rounds=None if size == 100 else SECONDARY_ROUNDS,
                quick_rounds=2,
            )
    yield Case(
        "fanout",
        "fanout",
        "Fan-out: one producer, publish to receive, relaxed, 100 B",
        (
            P50,
            P99,
            Figure("last_p50", "µs", False),
            Figure("last_p99", "µs", False),
            Figure("publish_p50", "µs", False),
        ),
        Load(records=200, steps=(1, 10, 100, 1000)),
        Load(records=50, steps=(1, 10, 100)),
        rounds=3,
        quick_rounds=1,
    )


JOBS_S = Figure("rate", "jobs/s", True)


def _queues() -> Iterator[Case]:
    for durable, word in ((True, "durable"), (False, "relaxed")):
        one = Load(durable=durable, seconds=1.5, records=20 * K if durable else 80 * K, batch=1)
        yield Case(
            f"F.one.{word}",
            "F",
            f"F: a queue with 4 worker processes, claim and finish one by one, {word}, 100 B",
            (JOBS_S,),
            one,
            dataclasses.replace(one, seconds=0.4, records=one.records // 4),
            rounds=SECONDARY_ROUNDS,
        )
        many = Load(durable=durable, seconds=1.0, records=200 * K, batch=100)
        yield Case(
            f"F.many.{word}",
            "F",
            f"F: the same in claims of 100, {word}, 100 B",
            (JOBS_S,),
            many,
            dataclasses.replace(many, seconds=0.3, records=50 * K),
            rounds=SECONDARY_ROUNDS,
        )
        start = Load(durable=durable, in_flight=400)
        yield Case(
            f"F.start.{word}",
            "F",
            f"F: from put to the start in an idle worker, {word}, 100 B",
            (P50, P99),
            start,
            dataclasses.replace(start, in_flight=100),
            rounds=SECONDARY_ROUNDS,
        )


def _server() -> Iterator[Case]:
    yield Case(
        "G",
        "G",
        "G: SIGKILL to serving, 100 B records",
        (SECONDS,),
        Load(records=M),
        Load(records=100 * K),
        rounds=3,
        quick_rounds=2,
    )
    mib = [Figure(name, "MiB", False) for name in ("empty", "step1", "step2")]
    yield Case(
        "H",
        "H",
        "H: memory of all processes (PSS): empty, after 1 M, after 5 M records (quick: 100 k, 500 k)",
        tuple(mib),
        Load(steps=(M, 5 * M)),
        Load(steps=(100 * K, 500 * K)),
        rounds=1,
    )


def _scale() -> Iterator[Case]:
    figures = (
        Figure("appends", "appends/s", True),
        Figure("fetches", "fetches/s", True),
        Figure("append_p99", "µs", False),
        Figure("fetch_p99", "µs", False),
    )
    yield Case(
        "topics",
        "topics",
        "Many topics of 100 records: single appends and fetches of 100, relaxed, 100 B",
        figures,
        Load(seconds=2.0, records=100, steps=(10, 1 * K, 10 * K)),
        Load(seconds=0.6, records=100, steps=(10, 500)),
        quick_rounds=2,
    )
    yield Case(
        "growth",
        "growth",
        "Growth: single appends and fetches of 100 in a topic of many records, relaxed, 100 B",
        figures,
        Load(seconds=2.0, steps=(100 * K, M, 10 * M)),
        Load(seconds=0.6, steps=(20 * K, 200 * K)),
        quick_rounds=2,
    )
    yield Case(
        "mixed",
        "mixed",
        "Mixed: durable batches of 10, two tails, one reader that catches up, 100 B",
        (Figure("rate", "appended/s", True), P50, P99, Figure("catch_up", "read/s", True)),
        Load(durable=True, seconds=4.0, records=M),
        Load(durable=True, seconds=1.0, records=100 * K),
        rounds=2,
        quick_rounds=1,
    )


def _spark() -> Iterator[Case]:
    yield Case(
        "spark",
        "spark",
        "Spark, local[2]: rows of 100 B, read with every payload touched, and written",
        (Figure("rate", "rows/s", True), MB_S),
        Load(records=5 * M),
        Load(records=M),
        quick_rounds=2,
    )


MESSAGES_S = Figure("rate", "messages/s", True)
FILECHANNEL_SIZES = ((16, "16 B"), (512, "512 B"), (16384, "16 KiB"))


def _filechannel() -> Iterator[Case]:
    titles = {
        Work.SEND: "send one at a time",
        Work.SEND_MANY: "send 1,000 at a time",
        Work.RECEIVE: "receive and acknowledge one at a time",
        Work.RECEIVE_MANY: "receive 1,000 at a time",
    }
    for durable, word in ((False, "os"), (True, "fsync")):
        for work, title in titles.items():
            for size, label in FILECHANNEL_SIZES:
                # Everything is received, so it is the number that bounds the time: fewer where each one is synced.
                records = 200 if durable else 2 * K
                quick = Load(size, durable, seconds=0.2, records=records // 2, steps=(work,))
                yield Case(
                    f"filechannel.{work.name.lower()}.{word}.{size}",
                    "filechannel",
                    f"File channel: {title}, {word}, {label}",
                    (MB_S, MESSAGES_S) if work == Work.SEND_MANY else (MESSAGES_S, MB_S),
                    Load(size, durable, seconds=0.6, records=records, steps=(work,)),
                    quick if size != 16384 or work == Work.SEND_MANY else None,
                    rounds=SECONDARY_ROUNDS,
                )
    yield Case(
        "filechannel.wake",
        "filechannel",
        "File channel: from send in one process to recv in another, 100 B",
        (P50, P99),
        Load(records=1000, steps=(Work.WAKE,)),
        Load(records=300, steps=(Work.WAKE,)),
    )


CPU = Figure("cpu", "µs of the gateway each", False)
CPU_ALL = Figure("cpu_all", "µs of all processes each", False)


def _http() -> Iterator[Case]:
    def case(kind: str, title: str, figures: tuple[Figure, ...], load: Load, quick: Load) -> Case:
        named, small = (dataclasses.replace(one, kind=kind.split(".", maxsplit=1)[0]) for one in (load, quick))
        return Case(f"http.{kind}", "http", f"HTTP: {title}", figures, named, small, rounds=SECONDARY_ROUNDS)

    for durable, word in ((True, "durable"), (False, "relaxed")):
        yield case(
            f"write.{word}",
            f"one record of 100 B at a time, {word}",
            (P50, P99, Figure("rate", "writes/s", True), CPU, CPU_ALL),
            Load(durable=durable, seconds=2.0),
            Load(durable=durable, seconds=0.5),
        )
    records = (RECORDS_S, P50, P99, CPU, CPU_ALL)
    yield case(
        "batch.durable",
        "batches of 1,000 records of 100 B, durable",
        records,
        Load(durable=True, seconds=2.0),
        Load(durable=True, seconds=0.5),
    )
    yield case(
        "diff",
        "diffs of 1,000 records of 100 B",
        records,
        Load(seconds=2.0, records=100 * K),
        Load(seconds=0.5, records=20 * K),
    )
    for durable, word in ((True, "durable"), (False, "relaxed")):
        yield case(
            f"push.{word}",
            f"write to event, {word}, 100 B",
            (P50, P99),
            Load(durable=durable, records=600),
            Load(durable=durable, records=150),
        )
    yield case(
        "fanout",
        "a pulse to many streams, relaxed, 100 B",
        (P50, P99, Figure("last_p50", "µs", False), CPU),
        Load(records=200, steps=(1, 100, 1000)),
        Load(records=50, steps=(1, 100, 1000)),
    )
    yield case(
        "claims",
        "50 workers claim 8 jobs and acknowledge them, relaxed, 100 B",
        (JOBS_S, P50, P99, CPU),
        Load(records=20 * K),
        Load(records=4 * K),
    )
