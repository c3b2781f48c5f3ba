"""`topicctl pipeline`: Spark jobs over topics. Reference: docs/spark.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import DEFAULT_TIMEOUT_S, App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.exits import Exit
from topicd.cli.groups import Group
from topicd.cli.options import data_dir_option
from topicd.cli.show.human import count, parse_age, size
from topicd.cli.show.progress import Bar
from topicd.cli.show.render import Column
from topicd.cli.topic_names import complete_topics
from topicd.spark.pipelines import PIPELINES

if TYPE_CHECKING:
    from topicd.spark.options import ConnectionOptions
    from topicd.spark.pipelines.report import Progress, Report
    from topicd.spark.pipelines.session import LazySpark

# Executors wait out a restart of the daemon.
PATIENCE_S = 60.0
_DIRECTORY = click.Path(file_okay=False, path_type=Path)
# Of reports: left out where the terminal is narrow, highest first.
_RANKS = {
    "files": 3,
    "absent": 2,
    "first_seq": 1,
    "waiting_p99_ms": 6,
    "running_p99_ms": 5,
    "waiting_p95_ms": 4,
    "running_p95_ms": 3,
    "per_s": 2,
    "retried": 1,
}

pipeline = Group("pipeline", help="Run Spark jobs over topics.", no_args_is_help=True)
run = Group("run", help="Run a pipeline.", no_args_is_help=True)
pipeline.add_command(run)


@pipeline.verb("list", online=False, examples="topicctl pipeline list")
@pass_app
def list_pipelines(app: App) -> None:
    """List the pipelines."""
    if app.json:
        app.out.document([{"name": name, "help": text} for name, text in PIPELINES.items()])
    else:
        app.out.table([Column("pipeline"), Column("what it does", wrap=True)], PIPELINES.items())


def spark_options(function: Callable[..., Any]) -> Callable[..., Any]:
    master = click.option("--master", metavar="URL", help="Where Spark runs [default: local[*]; spark-submit's own].")
    return master(click.option("--dry-run", is_flag=True, help="Say what would be done.")(function))


@run.verb(
    "archive",
    examples="""
    topicctl pipeline run archive orders audit --to /backup/topics
    topicctl pipeline run archive 'orders.*' --to /backup/topics --then-delete --yes
    """,
    needs=("--yes --then-delete",),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--to", required=True, type=_DIRECTORY, metavar="DIR", help="The archive; made if it is not there.")
@click.option("--then-delete", is_flag=True, help="Delete what was read back from the archive and compared.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@spark_options
@pass_app
def archive(
    app: App, topics: tuple[str, ...], to: Path, then_delete: bool, yes: bool, master: str | None, dry_run: bool
) -> int:
    """Write TOPICs to Parquet files by topic and day. A later run adds what is new; a run that dies changes nothing."""
    from topicd.spark.pipelines import archive as job

    if then_delete and not dry_run:
        confirm(f"delete the records of {', '.join(topics)} that are verified in {to}?", yes)
    options = job.Options(_place(app), topics, to, then_delete=then_delete, dry_run=dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "restore",
    examples="""
    topicctl pipeline run restore /backup/topics
    topicctl pipeline run restore /backup/topics --topic orders=orders.restored
    topicctl pipeline run restore events.csv --into events --data payload --tag kind
    """,
    apart=("--into --topic-column",),
)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--topic", "topics", multiple=True, metavar="A[=B]", help="Only topic A, into B; may be repeated.")
@click.option(
    "--format", "format_", type=click.Choice(["parquet", "json", "csv"]), help="Files that are no archive of ours."
)
@click.option("--into", metavar="TOPIC", help="For files that do not name topics.")
@click.option("--topic-column", metavar="COLUMN", help="Column that names the topic.")
@click.option(
    "--data", default="data", metavar="COLUMN", help="Column of the data [data; without it, the row as JSON]."
)
@click.option("--tag", default="tag", metavar="COLUMN", help="Column of the tag [tag].")
@click.option("--node", default="node", metavar="COLUMN", help="Column of the node [node].")
@click.option("--meta", default="meta", metavar="COLUMN", help="Column of the meta [meta].")
@click.option("--append", is_flag=True, help="Also into topics that have other records.")
@click.option("--with-config", is_flag=True, help="Give new topics the configuration they had.")
@spark_options
@pass_app
def restore(
    app: App,
    source: Path,
    topics: tuple[str, ...],
    format_: str | None,
    into: str | None,
    topic_column: str | None,
    data: str,
    tag: str,
    node: str,
    meta: str,
    append: bool,
    with_config: bool,
    master: str | None,
    dry_run: bool,
) -> int:
    """Store the records of an archive, or of Parquet, JSON (one object per line) or CSV files, in topics.

    Data, tag, node, meta and order are those of the source; seqs and times are new. Each record is stored once, however
    often the command is repeated.
    """
    from topicd.spark.pipelines import restore as job
    from topicd.spark.pipelines.inputs import Columns

    options = job.Options(
        _place(app),
        source,
        tuple((old, new or old) for old, _, new in (text.partition("=") for text in topics)),
        format_,
        into,
        Columns(data, tag, node, meta, topic_column),
        append=append,
        with_config=with_config,
        dry_run=dry_run,
    )
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "rollup",
    examples="""
    topicctl pipeline run rollup orders --to /reports/orders
    topicctl pipeline run rollup orders --by tag --window 1h --latency 'json:$.sent_at' --to /reports/orders
    topicctl pipeline run rollup 'orders.*' --stream available --to-topic stats --checkpoint /var/lib/rollup
    """,
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--window", default="1m", metavar="LENGTH", help="500ms, 10s, 1m, 1h, 1d [1m].")
@click.option("--by", multiple=True, type=click.Choice(["tag", "node"]), help="Apart by tag or node; may be repeated.")
@click.option("--latency", metavar="PATH", help="json:$.path or meta:$.path of when a record was made.")
@click.option("--to", type=_DIRECTORY, metavar="DIR", help="Write Parquet here.")
@click.option("--to-topic", metavar="TOPIC", help="Write JSON records there.")
@click.option("--stream", type=click.Choice(["available", "continuous"]), help="Go on where the last run ended.")
@click.option("--checkpoint", type=_DIRECTORY, metavar="DIR", help="With --to-topic: where it remembers that.")
@click.option("--acknowledge-gaps", metavar="JSON", help="Go on without records that are gone, as the error says it.")
@spark_options
@pass_app
def rollup(
    app: App,
    topics: tuple[str, ...],
    window: str,
    by: tuple[str, ...],
    latency: str | None,
    to: Path | None,
    to_topic: str | None,
    stream: str | None,
    checkpoint: Path | None,
    acknowledge_gaps: str | None,
    master: str | None,
    dry_run: bool,
) -> int:
    """Count records, bytes, rates, gaps and latencies per window of time."""
    from topicd.spark.pipelines import rollup as job

    options = job.Options(
        _place(app), topics, window, by, latency, to, to_topic, stream, checkpoint, dry_run, acknowledge_gaps
    )
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "dedup",
    examples="""
    topicctl pipeline run dedup orders --by 'json:$.id' --plan repeated.ndjson
    topicctl pipeline run dedup states --by tag --keep last --apply --yes
    """,
    needs=("--yes --apply",),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--by", default="data", metavar="KEY", help="data, tag or json:$.path [data].")
@click.option("--keep", default="first", type=click.Choice(["first", "last"]), help="Which one stays [first].")
@click.option("--plan", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write all seqs there.")
@click.option("--apply", "apply_", is_flag=True, help="Delete what the daemon can delete exactly.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@spark_options
@pass_app
def dedup(
    app: App,
    topics: tuple[str, ...],
    by: str,
    keep: str,
    plan: Path | None,
    apply_: bool,
    yes: bool,
    master: str | None,
    dry_run: bool,
) -> int:
    """Find records that repeat another one of their topic."""
    from topicd.spark.pipelines import dedup as job

    if apply_ and not dry_run:
        confirm(f"delete repeated records of {', '.join(topics)} for good?", yes)
    options = job.Options(_place(app), topics, by, keep, plan, apply_, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "fsck",
    online=False,
    examples="""
    topicctl pipeline run fsck --data-dir /var/lib/topicd
    topicctl pipeline run fsck --master 'local[4]' --json
    """,
)
@data_dir_option
@spark_options
@pass_app
def fsck(app: App, data_dir: str | None, master: str | None, dry_run: bool) -> int:
    """Check a data directory like `topicctl fsck`, in parallel. Exit code 1 when damage was found.

    While the daemon runs, only sealed segments are read.
    """
    from topicd.spark.pipelines import fsck as job

    options = job.Options(data_dir, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "loss-audit",
    examples="""
    topicctl pipeline run loss-audit
    topicctl pipeline run loss-audit 'orders.*' --json
    """,
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@spark_options
@pass_app
def loss_audit(app: App, topics: tuple[str, ...], master: str | None, dry_run: bool) -> int:
    """Account for every seq of TOPICs, or of all. Exit code 1 when one is lost."""
    from topicd.spark.pipelines import loss_audit as job

    options = job.Options(_place(app), topics or ("*",), dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "membership-audit",
    examples="""
    topicctl pipeline run membership-audit --data-dir /var/lib/topicd
    topicctl pipeline run membership-audit --json
    """,
)
@data_dir_option
@spark_options
@pass_app
def membership_audit(app: App, data_dir: str | None, master: str | None, dry_run: bool) -> int:
    """Compare the members of persistent channels in their files with what the daemon answers. Exit code 1 when they
    differ, or a file cannot be read."""
    from topicd.spark.pipelines import membership_audit as job

    options = job.Options(_place(app), data_dir, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "queue-report",
    examples="""
    topicctl pipeline run queue-report thumbs
    topicctl pipeline run queue-report thumbs --json | jq .failures
    """,
)
@click.argument("queue", shell_complete=complete_topics)
@spark_options
@pass_app
def queue_report(app: App, queue: str, master: str | None, dry_run: bool) -> int:
    """Report how QUEUE has done, by group: jobs that are done and kept (keep_done_ms), and its dead letters."""
    from topicd.spark.pipelines import queue_report as job

    options = job.Options(_place(app), queue, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


# ---- chat stores ----

_ARCHIVE = click.option(
    "--archive", type=_DIRECTORY, metavar="DIR", help="An archive of topicd.chat.00 instead of the live store."
)
_TOP = click.option("--top", type=click.IntRange(1), default=100, metavar="N", help="So many rows at most [100].")


@run.verb(
    "inbox-rollup",
    examples="""
    topicctl pipeline run inbox-rollup
    topicctl pipeline run inbox-rollup --archive /backup/topics --top 10 --json
    """,
)
@_ARCHIVE
@_TOP
@spark_options
@pass_app
def inbox_rollup(app: App, archive: Path | None, top: int, master: str | None, dry_run: bool) -> int:
    """Count chats and unread messages of every user of the chat store; those with most unread first."""
    from topicd.spark.pipelines import inbox_rollup as job

    options = job.Options(_place(app), archive, top, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "retention-plan",
    examples="""
    topicctl pipeline run retention-plan --older-than 90d
    topicctl pipeline run retention-plan --older-than 1d --archive /backup/topics --json
    """,
)
@click.option("--older-than", required=True, metavar="AGE", help="30m, 12h, 90d.")
@_ARCHIVE
@_TOP
@spark_options
@pass_app
def retention_plan(app: App, older_than: str, archive: Path | None, top: int, master: str | None, dry_run: bool) -> int:
    """Say what `topicctl chat retain` would remove, chat by chat; those that lose most first."""
    from topicd.clock import SystemClock
    from topicd.spark.pipelines import retention_plan as job

    age = parse_age(older_than)
    if age is None:
        raise click.UsageError(f"--older-than {older_than!r} is no age like 90d, 12h")
    cutoff_ms = SystemClock().now_ms() - int(age.total_seconds() * 1000)
    options = job.Options(_place(app), max(0, cutoff_ms), archive, top, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "digests",
    examples="""
    topicctl pipeline run digests
    topicctl pipeline run digests --archive /backup/topics
    """,
)
@_ARCHIVE
@spark_options
@pass_app
def digests(app: App, archive: Path | None, master: str | None, dry_run: bool) -> int:
    """Make the digests of a chat store from its log, as `topicctl chat digest` shows them."""
    from topicd.spark.pipelines import digests as job

    options = job.Options(_place(app), archive, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


@run.verb(
    "anti-entropy",
    examples="""
    topicctl pipeline run anti-entropy /backup/one /backup/two
    topicctl pipeline run anti-entropy /backup/one --plan lacking.ndjson
    """,
)
@click.argument("first", type=_DIRECTORY)
@click.argument("second", type=_DIRECTORY, required=False)
@click.option("--plan", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write all ids there.")
@spark_options
@pass_app
def anti_entropy(
    app: App, first: Path, second: Path | None, plan: Path | None, master: str | None, dry_run: bool
) -> int:
    """Say what the chat stores of two archives lack of each other; without SECOND, of FIRST and the live store."""
    from topicd.spark.pipelines import anti_entropy as job

    options = job.Options(_place(app), first, second, plan, dry_run)
    return _run(app, master, lambda spark, progress: job.run(spark, options, progress))


# ---- all of them ----


def _place(app: App) -> ConnectionOptions:
    from topicd.spark.pipelines.place import connection_options

    return connection_options(app.socket, PATIENCE_S if app.timeout == DEFAULT_TIMEOUT_S else app.timeout)


def _run(app: App, master: str | None, job: Callable[[LazySpark, Progress], Report]) -> int:
    from topicd.spark.pipelines.session import LazySpark

    with LazySpark(master) as spark, _Bars() as bars:
        report = job(spark, bars.show)
    if app.json:
        app.out.document(report.to_json())
    else:
        _print(app, report)
    return Exit.FAILED if report.failed else Exit.OK


class _Bars:
    """A bar for each stage of work."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._stage: tuple[str, int] | None = None
        self._done = 0

    def show(self, label: str, done: int, total: int) -> None:
        if self._bar is None or self._stage != (label, total):
            self.close()
            self._bar, self._stage, self._done = Bar(label, total or None, "tasks"), (label, total), 0
        self._bar.advance(done - self._done)
        self._done = done

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
        self._bar = None

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _print(app: App, report: Report) -> None:
    rows = [[_cell(name, row.get(name)) for name in report.columns] for row in report.rows]
    if rows:
        numbers = {name for row in report.rows for name, value in row.items() if isinstance(value, int | float)}
        columns = [
            Column(
                name.replace("_", " "),
                right=name in numbers,
                shrink=name in ("topic", "path", "from", "what"),
                rank=_RANKS.get(name, 0),
            )
            for name in report.columns
        ]
        app.out.table(columns, rows)
    for note in report.notes:
        app.out.text(app.out.styled(f"note: {note}", "yellow"))
    dry = " (dry run: nothing was changed)" if report.dry_run else ""
    app.out.text(app.out.styled(report.summary + dry, "red" if report.failed else "green"))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("bytes", "data_bytes"):
        return size(value)
    if isinstance(value, int):
        return count(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
