"""An archive, or any Parquet, JSON or CSV files, into topics. Promise: within a topic the order is that of the archive;
each record is stored once, however often the run is repeated and wherever it was killed.

Where to go on is known twice. The topic itself counts the batches of each file under a producer id made from the file,
in the same write as the batch: one that is sent again is not stored again, also after a restart of the daemon. And a
journal in the daemon notes what was acknowledged, for the day when a thousand other producers made it forget ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.blocking.numbered_writer import NumberedWriter, open_topic
from topicd.errors import Conflict, InvalidRequest, TopicNotFound
from topicd.model import check_topic_name
from topicd.spark import connection
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.inputs import (
    ARCHIVE,
    FORMATS,
    Columns,
    InputFile,
    Surveyed,
    find_files,
    guess_format,
    survey,
)
from topicd.spark.pipelines.journal import JOURNAL, Journal, digest, producer_id
from topicd.spark.pipelines.manifest import KIND, VERSION, Manifest
from topicd.spark.pipelines.parts import check_part
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark, run_here
from topicd.spark.pipelines.store import MANIFEST, Store
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

RETENTION = ("ttl_ms", "cap_records", "cap_bytes", "discard", "retain", "schema")
PACKED = 4  # so many times its size a file may have inside
COLUMNS = ("topic", "from", "files", "records", "stored", "already")


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    source: Path
    topics: tuple[tuple[str, str], ...] = ()  # (in the archive, into); empty: all, under their names
    format: str | None = None  # None: an archive, or what the names of the files say
    into: str | None = None  # for files without a topic column
    columns: Columns = field(default_factory=Columns)
    append: bool = False
    with_config: bool = False
    dry_run: bool = False
    journal: str = JOURNAL


@dataclass(frozen=True)
class Source:
    """Files that follow each other into one topic."""

    id: str
    label: str
    topic: str
    files: tuple[InputFile, ...]
    records: int
    checks: tuple[tuple[int, str], ...] = ()  # size and SHA-256 of each file, where a manifest has them
    config: tuple[tuple[str, object], ...] = ()


class Job(NamedTuple):
    """All that goes into one topic, in order."""

    topic: str
    topic_id: int
    sources: list[Source]


class Stored(NamedTuple):
    topic: str
    stored: list[int]  # by source


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    client = place.client(options.place)
    sources = _sources(spark, options, progress)
    topics = list(dict.fromkeys(source.topic for source in sources))
    by_topic = {topic: [source for source in sources if source.topic == topic] for topic in topics}
    for topic in topics:
        _check_target(client, options, topic, by_topic[topic])
    if options.dry_run:
        return _report(options, by_topic, {})
    jobs = [Job(topic, _opened(client, options, topic, by_topic[topic]), by_topic[topic]) for topic in topics]
    done = [_finished(client, options, job) for job in jobs]
    todo = [job for job, finished in zip(jobs, done, strict=True) if not finished]
    stored = _restore(spark, options, todo, progress) if todo else []
    for job in jobs:
        _limit(client, options, job)
    return _report(options, by_topic, {one.topic: one.stored for one in stored})


# ---- what there is ----


def _sources(spark: LazySpark, options: Options, progress: Progress) -> list[Source]:
    if not options.source.exists():
        raise InvalidRequest(f"{options.source} does not exist")
    if options.format is None and (options.source / MANIFEST).exists():
        return _archived(options)
    format = options.format or guess_format(options.source)
    if format not in FORMATS:
        raise InvalidRequest(f"{options.source} is no archive; say what it is with --format {', '.join(FORMATS)}")
    if (options.into is None) == (options.columns.topic is None):
        raise InvalidRequest("say where the records go: --into TOPIC, or --topic-column COLUMN, one of them")
    files, columns = find_files(options.source, format), options.columns

    def look(path: Path) -> Surveyed:
        return survey(path, format, columns)

    if spark.is_needless(0, _unpacked(files)):
        return _foreign(options, format, run_here("survey", files, look, progress))
    looked = spark.run_tasks(
        "survey",
        lambda context: context.parallelize(files, len(files)).map(look).collect(),
        progress,
    )
    return _foreign(options, format, looked)


def _unpacked(files: Sequence[Path]) -> int:
    """About how many bytes they have when they are read. One that is missing is named when its turn comes."""
    return PACKED * sum(file.stat().st_size for file in files if file.exists())


def _archived(options: Options) -> list[Source]:
    body = Store(options.source, KIND, VERSION).load()
    manifest = Manifest.from_json(body or {})
    chosen = dict(options.topics) or {topic.topic: topic.topic for topic in manifest.topics}
    found: list[Source] = []
    for name, target in chosen.items():
        if not manifest.named(name):
            raise TopicNotFound(f"the archive {options.source} has no topic {name!r}")
        for topic in manifest.named(name):
            files = tuple(InputFile(options.source.absolute() / part.path, part.path, ARCHIVE) for part in topic.parts)
            found.append(
                Source(
                    f"{manifest.archive_id}/{name}/{topic.topic_id}",
                    name,
                    check_topic_name(target),
                    files,
                    topic.count,
                    tuple((part.bytes, part.sha256) for part in topic.parts),
                    tuple(topic.config.items()),
                )
            )
    return found


def _foreign(options: Options, format: str, looked: list[Surveyed]) -> list[Source]:
    found: list[Source] = []
    renamed = dict(options.topics)
    seen: Counter[str] = Counter()
    for one in looked:
        # The same content twice is meant twice, but the same file again is not.
        seen[one.sha256] += 1
        key = f"{one.sha256}/{seen[one.sha256]}"
        for name, count in one.counts.items():
            if renamed and name not in renamed:
                continue
            topic = check_topic_name(options.into if name is None else renamed.get(name, name))
            file = InputFile(one.path, key, format, options.columns, name)
            identity = digest(key, format, repr(options.columns), name or "").hex()
            found.append(Source(identity, one.path.name, topic, (file,), count))
    return found


def _check_target(client: Client, options: Options, topic: str, sources: list[Source]) -> None:
    """A topic that has records is gone on with only if this restore put some there."""
    try:
        state = client.state(topic, touch=False)
    except TopicNotFound:
        return
    if options.append or not state.head_seq:
        return
    if not any(_journal(client, options, topic, state.topic_id, source).last() for source in sources):
        raise Conflict(
            f"topic {topic!r} has records that are not from here; --append puts these behind them, "
            f"--topic OLD=NEW puts them elsewhere"
        )


def _opened(client: Client, options: Options, topic: str, sources: list[Source]) -> int:
    if options.with_config and sources[-1].config:
        try:
            client.state(topic, touch=False)
        except TopicNotFound:
            kept: Any = {name: value for name, value in sources[-1].config if name not in RETENTION}
            client.configure(topic, **kept)
    return open_topic(client, topic)


def _limit(client: Client, options: Options, job: Job) -> None:
    """What removes records, or refuses them, comes last: a cap may be smaller than a batch, a schema younger than the
    records."""
    if options.with_config:
        limits: Any = {name: value for name, value in job.sources[-1].config if name in RETENTION}
        client.configure(job.topic, **limits)


def _journal(client: Client, options: Options, topic: str, topic_id: int, source: Source) -> Journal:
    return Journal(client, options.journal, topic, topic_id, source.id)


def _finished(client: Client, options: Options, job: Job) -> bool:
    """Nothing is left to do, and nothing has to be started to find out."""
    for source in job.sources:
        journal = _journal(client, options, job.topic, job.topic_id, source)
        last = journal.last()
        if source.files and (last is None or not last.complete or last.file != source.files[-1].key):
            return False
        journal.trim()  # a run may have died just before
    return True


# ---- storing ----


def _restore(spark: LazySpark, options: Options, jobs: list[Job], progress: Progress) -> list[Stored]:
    where, journal = options.place, options.journal

    def store(job: Job) -> Stored:
        client = connection.client(where)
        return Stored(job.topic, [restore_source(client, journal, job, source) for source in job.sources])

    sources = [source for job in jobs for source in job.sources]
    size = _unpacked([file.path for source in sources for file in source.files])
    if spark.is_needless(sum(source.records for source in sources), size):
        return run_here("restore", jobs, store, progress)

    def in_tasks(context: SparkContext) -> list[Stored]:
        found: list[Stored] = context.parallelize(jobs, len(jobs)).map(store).collect()
        return found

    return spark.run_tasks("restore", in_tasks, progress)


def restore_source(client: Client, journal_topic: str, job: Job, source: Source) -> int:
    """How many records this call stored."""
    if not source.files:
        return 0
    journal = Journal(client, journal_topic, job.topic, job.topic_id, source.id)
    last = journal.last()
    keys = [file.key for file in source.files]
    at, batch = 0, 0
    if last is None:
        journal.begin(keys[0])
    elif last.file not in keys:
        raise Conflict(f"{source.label} was restored up to {last.file}, which is not in it any more")
    else:
        at = keys.index(last.file) + last.complete
        batch = 0 if last.complete else last.batch
    stored = 0
    for number in range(at, len(keys)):
        if source.checks:
            check_part(source.files[number].path, *source.checks[number])
        stored += _restore_file(client, journal, job, source, source.files[number], batch + 1)
        batch = 0
    journal.trim()
    return stored


def _restore_file(client: Client, journal: Journal, job: Job, source: Source, file: InputFile, first_no: int) -> int:
    writer = NumberedWriter(client, job.topic, job.topic_id, producer_id(job.topic_id, source.id, file.key))
    stored, wanted, last_no = 0, first_no, 0
    while True:
        for last_no, batch in enumerate(file.batches(), 1):
            if last_no < wanted:
                continue
            outcome = writer.send(last_no, batch)
            stored += len(batch) if outcome.stored else 0
            wanted = outcome.next_no
            if wanted <= last_no:
                break  # a power loss took what the journal knows: from there again
            journal.note(file.key, last_no, complete=False)
        else:
            journal.note(file.key, last_no, complete=True)
            return stored


# ---- telling ----


def _report(options: Options, by_topic: dict[str, list[Source]], stored: dict[str, list[int]]) -> Report:
    report = Report("restore", COLUMNS, dry_run=options.dry_run)
    for topic, sources in by_topic.items():
        for source, count in zip(sources, stored.get(topic, [0] * len(sources)), strict=True):
            report.rows.append(
                {
                    "topic": topic,
                    "from": source.label,
                    "files": len(source.files),
                    "records": source.records,
                    "stored": count,
                    "already": None if options.dry_run else source.records - count,
                }
            )
    report.totals = {key: sum(row[key] for row in report.rows) for key in ("files", "records", "stored")}
    if options.dry_run:
        records = counted(report.totals["records"], "record")
        report.summary = f"would make sure of {records} in {counted(len(by_topic), 'topic')}"
    else:
        report.summary = f"stored {report.totals['stored']:,} of {counted(report.totals['records'], 'record')}"
    return report
