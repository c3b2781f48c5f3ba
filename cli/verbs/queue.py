"""`topicctl queue`: work queues, their jobs, dead letters and schedules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import FIELD_VALUES, App, pass_app
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group, Lazy
from topicd.cli.options import MOMENT, SPAN, meta_option
from topicd.cli.show.human import count, local_time, parse_age, printable, printable_text
from topicd.cli.show.queues import COLUMNS, all_stats, mode_text, oldest, row
from topicd.cli.show.render import Column
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.cli.verbs.topic import parse_config
from topicd.errors import NotAQueue
from topicd.limits import CLAIM_MAX
from topicd.words import counted

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client
    from topicd.client.blocking.queue import Queue
    from topicd.client.core.jobs import OnConflict
    from topicd.client.core.queue_answers import JobState, QueueMode, QueueStats, Steered

queue = Group(
    "queue",
    help="Put, work on, look at and steer jobs of work queues.",
    no_args_is_help=True,
    lazy={
        "work": Lazy("topicd.cli.verbs.queue_work:work", "Run a command for each job of a queue."),
        "dead": Lazy("topicd.cli.verbs.queue_dead:dead", "List, redrive and discard dead letters."),
        "cron": Lazy("topicd.cli.verbs.queue_cron:cron", "Put jobs at times: add, list and remove schedules."),
    },
)
NAME = click.argument("name", metavar="QUEUE", shell_complete=complete_topics)
SHOWN = 60


@contextmanager
def opened(app: App, name: str) -> Iterator[Queue]:
    """A queue that is there; a name that does not exist, or a log, is an error that says so."""
    with app.connect() as client, known_queue(client, name):
        yield client.queue(name)


@contextmanager
def known_queue(client: Client, name: str) -> Iterator[None]:
    with known_topic(client, name):
        try:
            yield
        except NotAQueue as exc:
            raise CliError(exc.message, Exit.REFUSED, "`topicctl queue list` shows all queues") from None


# ---- making ----


@queue.verb(
    "create",
    examples="""
    topicctl queue create thumbs
    topicctl queue create thumbs --lease 30s --max-deliveries 5 --dead-letter thumbs.dead
    topicctl queue create mails durability=fsync rate_per_s=20 keep_done=1d
    """,
)
@NAME
@click.argument("settings", nargs=-1, metavar=FIELD_VALUES)
@click.option("--lease", "lease_ms", type=SPAN, metavar="TIME", help="How long a job is leased.")
@click.option("--max-deliveries", type=click.IntRange(min=0), metavar="N", help="Then to the dead letters; 0: never.")
@click.option("--dead-letter", metavar="TOPIC", help="Where jobs go that were given up.")
@click.option("--backoff", "backoff_ms", type=SPAN, metavar="TIME", help="The first pause after a failure.")
@pass_app
def create(app: App, /, name: str, settings: tuple[str, ...], **options: Any) -> None:
    """Create QUEUE, or change the given fields of one that exists. FIELD=VALUE as in `topicctl topic config`."""
    fields_given, by_option = parse_config(settings), {f: value for f, value in options.items() if value is not None}
    if twice := fields_given.keys() & by_option.keys():
        raise click.UsageError(f"{min(twice)} is given twice")
    given = fields_given | by_option
    with app.connect() as client:
        config = client.queue(name).configure(**given)
    if app.json:
        app.out.document({"queue": name, "config": config.to_fields()})
        return
    changed = {f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != f.default}
    shown = " ".join(f"{field}={value}" for field, value in changed.items() if field != "type")
    app.out.text(f"queue {name}" + (f": {shown}" if shown else ""))


@queue.verb("list", examples="topicctl queue list\ntopicctl queue list --json | jq '.[] | {topic, ready}'")
@click.argument("prefix", default="")
@pass_app
def list_queues(app: App, prefix: str) -> None:
    """List queues and how they are, those that begin with PREFIX if given."""
    with app.connect() as client:
        found = all_stats(client, prefix)
    if app.json:
        app.out.document([asdict(stats) for stats in found])
    elif not found:
        app.out.text("no queues" + (f" that begin with {prefix!r}" if prefix else ""))
    else:
        app.out.table(COLUMNS, [row(asdict(stats)) for stats in found])


# ---- putting ----


class UntilType(click.ParamType[str | int]):
    """`--until`: for how long a unique key is held; a length of time is in ms."""

    name = "until"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if isinstance(value, int) or value in ("done", "start"):
            found: str | int = value
            return found
        age = parse_age(str(value))
        if age is None:
            self.fail(f"{value!r} is not done, start, or a time like 30s, 5m, 2h or 1d", param, ctx)
        return round(age.total_seconds() * 1000)


UNTIL = UntilType()
CONFLICTS = ("drop", "replace", "reschedule")


@queue.verb(
    "put",
    examples="""
    topicctl queue put thumbs '{"file": 9}' --delay 5s
    topicctl queue put thumbs '{"file": 9}' --priority 7 --unique file:9 --group tenant-4
    cat mail.json | topicctl queue put mails -              # the whole of stdin as one job
    seq 100 | topicctl queue put numbers - --lines          # a job per line
    """,
    apart=("--delay --at", "--lines --unique", "--lines --meta"),
    needs=("--until --unique", "--on-conflict --unique"),
)
@NAME
@click.argument("data")
@click.option("--lines", is_flag=True, help="A job per line of stdin.")
@click.option("--delay", "delay_ms", type=SPAN, metavar="TIME", help="Not before so much from now.")
@click.option("--at", "ready_at", type=MOMENT, metavar="TIME", help="Not before that time, like 2027-01-31T12:00.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="0-9", help="9 goes first; 4 is the default.")
@click.option("--group", metavar="TEXT", help="Groups are served in turn.")
@click.option("--unique", metavar="KEY", help="No second job while one with this key is there.")
@click.option("--until", type=UNTIL, metavar="WHEN", help="How long that holds: done (the default), start, or a time.")
@click.option("--on-conflict", type=click.Choice(CONFLICTS), help="What becomes of the second job [default: drop].")
@click.option("--tag", metavar="TAG", help="Tag of the job; for workers, the task.")
@meta_option
@pass_app
def put(
    app: App,
    /,
    name: str,
    data: str,
    lines: bool,
    ready_at: datetime | None,
    tag: str | None,
    meta: dict[str, Any] | None,
    until: str | int | None,
    on_conflict: OnConflict | None,
    **how: Any,
) -> None:
    """Put a job into QUEUE, which is created if there is none. DATA of - is stdin.

    A second job with the same --unique key is dropped, takes the place of the first (replace), or only gives it its
    own --delay or --at (reschedule).
    """
    if until is not None:
        how |= {"until": until} if isinstance(until, str) else {"until": "time", "unique_ms": until}
    if on_conflict is not None:
        how["on_conflict"] = on_conflict
    if ready_at is not None:
        how["ready_at"] = ready_at
    if lines and data != "-":
        raise click.UsageError("--lines reads jobs from stdin: DATA is - then")
    content = sys.stdin.buffer.read() if data == "-" else os.fsencode(data)
    with app.connect() as client, known_queue(client, name):
        jobs = client.queue(name)
        if lines:
            _put_lines(app, jobs, content.splitlines(), tag, how)
            return
        done = jobs.put(content, tag=tag, meta=meta, **how)
    app.out.either(
        {"queue": name, "seq": done.seq, "new": done.new}, str(done.seq) if done.new else f"{done.seq} (there already)"
    )


def _put_lines(app: App, jobs: Queue, lines: list[bytes], tag: str | None, how: dict[str, Any]) -> None:
    how.pop("unique")
    total = jobs.put_many(lines, tag=tag, **how).count if lines else 0
    app.out.either({"queue": jobs.name, "count": total}, counted(total, "job"))


# ---- looking ----


@queue.verb("stats", examples="topicctl queue stats thumbs\ntopicctl queue stats thumbs --json")
@NAME
@pass_app
def show_stats(app: App, name: str) -> None:
    """Show how many jobs of QUEUE are ready, in flight, delayed and dead, and what became of the others."""
    with opened(app, name) as jobs:
        stats = jobs.stats()
    if app.json:
        app.out.document(asdict(stats))
        return
    priorities = ", ".join(f"{level}: {count(n)}" for level, n in sorted(stats.priorities.items(), reverse=True))
    app.out.fields(
        [
            ("queue", stats.topic),
            ("state", mode_text(asdict(stats))),
            ("ready", count(stats.ready) + (f" (by priority {priorities})" if priorities else "")),
            ("in flight", count(stats.in_flight)),
            ("delayed", count(stats.delayed)),
            ("oldest ready", oldest(stats.oldest_ready_ts)),
            ("kept", f"{count(stats.kept)} done and readable"),
            ("done", count(stats.acked)),
            ("failed", count(stats.failed)),
            ("released", count(stats.released)),
            ("expired", count(stats.expired)),
            ("dead letters", count(stats.dead_lettered) + _dead_place(stats)),
            ("workers", f"{counted(stats.workers, 'stream')}, {counted(stats.claims, 'waiting claim')}"),
            ("groups", count(stats.groups)),
            ("unique keys", count(stats.unique_keys)),
        ]
    )


def _dead_place(stats: QueueStats) -> str:
    return f" (in {stats.config.dead_letter})" if stats.config.dead_letter else ""


JOB_COLUMNS = [
    Column("seq", right=True),
    Column("state"),
    Column("deliveries", right=True),
    Column("waits until", rank=1),
    Column("held by", rank=1, shrink=True),
    Column("data", shrink=True),
    Column("last reason", rank=2, shrink=True),
]


@queue.verb("peek", examples="topicctl queue peek thumbs\ntopicctl queue peek thumbs --state delayed --limit 10 --json")
@NAME
@click.option(
    "--state",
    type=click.Choice(["any", "ready", "delayed", "in_flight", "done"]),
    default="any",
    help="Only jobs in this state.",
)
@click.option("--from", "from_seq", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Behind this seq.")
@click.option("--limit", type=click.IntRange(1, CLAIM_MAX), default=20, metavar="N", help="At most N jobs.")
@pass_app
def peek(app: App, name: str, state: str, from_seq: int, limit: int) -> None:
    """Show jobs of QUEUE as they are, without taking them."""
    with opened(app, name) as jobs:
        found = jobs.peek(state, from_seq=from_seq, limit=limit)
    if app.json:
        app.out.document({"jobs": [job_fields(job) for job in found], "next": found.next})
        return
    if not found.jobs:
        app.out.text("no jobs" if state == "any" else f"no jobs are {state.replace('_', ' ')}")
        return
    app.out.table(JOB_COLUMNS, [_job_row(job) for job in found])
    if found.next is not None:
        app.out.text(f"more: --from {found.next}")


def _job_row(job: JobState) -> list[str]:
    data = b"" if job.record is None else job.record.data
    until = job.ready_at if job.state == "delayed" else job.deadline
    return [
        str(job.seq),
        job.state.replace("_", " "),
        str(job.deliveries),
        local_time(until) if until else "",
        printable_text(job.node),
        printable(data[:SHOWN]) + ("…" if len(data) > SHOWN else ""),
        printable_text(job.reason),
    ]


def job_fields(job: JobState) -> dict[str, Any]:
    """For --json: the record's data as text, where it is text."""
    line = {f.name: getattr(job, f.name) for f in fields(job) if f.name not in ("record", "because")}
    if job.record is not None:
        line |= {"data": job.record.data.decode("utf-8", "backslashreplace"), "tag": job.record.tag}
        line |= {"meta": job.record.meta, "ts": job.record.ts}
    return line


@queue.verb("why", examples="topicctl queue why thumbs\ntopicctl queue why thumbs 401 --json")
@NAME
@click.argument("seq", type=click.IntRange(min=1), required=False)
@pass_app
def why(app: App, name: str, seq: int | None) -> None:
    """Say why job SEQ of QUEUE does not run; without SEQ, why its next job does not."""
    with opened(app, name) as jobs:
        found = jobs.why(seq)
    if app.json:
        app.out.document({**job_fields(found), "because": found.because})
        return
    if not found.seq:
        app.out.text(f"{name} has no job that is ready")
    else:
        app.out.text(f"{found.seq} is {found.state.replace('_', ' ')}")
    for sentence in found.because:
        app.out.text(f"  {printable_text(sentence)}")


# ---- steering ----

_REASON = click.option("--reason", default="", metavar="TEXT", help="Shown to whoever asks why.")


@queue.verb("pause", examples='topicctl queue pause thumbs --reason "printer on fire"')
@NAME
@_REASON
@pass_app
def pause(app: App, name: str, reason: str) -> None:
    """Hand out no jobs of QUEUE until it is resumed; jobs can be put and finished."""
    with opened(app, name) as jobs:
        _say_mode(app, name, jobs.pause(reason))


@queue.verb("resume", examples="topicctl queue resume thumbs")
@NAME
@pass_app
def resume(app: App, name: str) -> None:
    """Take in and hand out jobs of QUEUE again, whoever had stopped it."""
    with opened(app, name) as jobs:
        _say_mode(app, name, jobs.resume())


@queue.verb("drain", examples="topicctl queue drain thumbs")
@NAME
@_REASON
@pass_app
def drain(app: App, name: str, reason: str) -> None:
    """Take no more jobs into QUEUE until it is resumed; those that are there are handed out."""
    with opened(app, name) as jobs:
        _say_mode(app, name, jobs.drain(reason))


def _say_mode(app: App, name: str, mode: QueueMode) -> None:
    app.out.either({"queue": name, **asdict(mode)}, f"{name}: {mode_text(asdict(mode))}")


_SEQS = click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=click.IntRange(min=1))


@queue.verb("retry", examples="topicctl queue retry thumbs 401\ntopicctl queue retry thumbs 401 402 --json")
@NAME
@_SEQS
@pass_app
def retry(app: App, name: str, seqs: tuple[int, ...]) -> None:
    """Make jobs of QUEUE ready at once that wait for a time: delayed, or to be tried again."""
    with opened(app, name) as jobs:
        _say_steered(app, name, "ready", jobs.retry(seqs))


@queue.verb("delete", examples="topicctl queue delete thumbs 401\ntopicctl queue delete thumbs 401 402 --json")
@NAME
@_SEQS
@pass_app
def delete(app: App, name: str, seqs: tuple[int, ...]) -> None:
    """Delete jobs of QUEUE that wait, for good. Those that somebody works on are left alone."""
    with opened(app, name) as jobs:
        _say_steered(app, name, "deleted", jobs.delete(seqs))


def _say_steered(app: App, name: str, what: str, found: Steered) -> None:
    left = f"; left as they are: {', '.join(map(str, found.skipped))}" if found.skipped else ""
    app.out.either({"queue": name, **asdict(found)}, f"{name}: {count(found.changed)} {what}{left}")
    if not found.changed:
        raise CliError(
            "none of these jobs waits", Exit.REFUSED, f"`topicctl queue why {name} SEQ` says what a job does"
        )
