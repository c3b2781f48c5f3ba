"""`topicctl queue work`: a command for each job. Promise: exit code 0 finishes the job, 75 (EX_TEMPFAIL) gives it back
as if it had not been delivered, anything else fails it with the last line of stderr as the reason.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit, exit_of
from topicd.cli.options import SPAN
from topicd.cli.show.human import duration, printable_text
from topicd.cli.topic_names import complete_topics
from topicd.cli.verbs.queue import known_queue
from topicd.errors import TopicdError
from topicd.limits import CLAIM_MAX
from topicd.words import counted

if TYPE_CHECKING:
    from topicd.client.blocking.job import Job
    from topicd.client.blocking.work import Work

EX_TEMPFAIL = 75
RELEASED_MS = 1_000
_CANNOT_RUN = 127


@verb(
    "work",
    examples="""
    topicctl queue work thumbs -- ./render.sh
    topicctl queue work thumbs --concurrency 4 -- sh -c 'convert - -resize 100 /thumbs/$TOPICD_JOB_SEQ.png'
    topicctl queue work thumbs --idle 0s -- ./render.sh       # until the queue is empty
    """,
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_topics)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--concurrency", type=click.IntRange(1, CLAIM_MAX), default=1, metavar="N", help="Jobs at once.")
@click.option("--lease", "lease_ms", type=SPAN, metavar="TIME", help="Instead of the queue's; it is extended.")
@click.option("--idle", "idle_ms", type=SPAN, metavar="TIME", help="Leave when no job has come for so long.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Leave after N jobs.")
@click.option("--node", metavar="NAME", help="The worker's name.")
@pass_app
def work(
    app: App,
    name: str,
    command: tuple[str, ...],
    concurrency: int,
    lease_ms: int | None,
    idle_ms: int | None,
    limit: int | None,
    node: str | None,
) -> None:
    """Run COMMAND for each job of QUEUE, with the job's data on stdin.

    The variables TOPICD_JOB_QUEUE, _SEQ, _TAG, _META (JSON), _DELIVERIES, _LEASE and _DEADLINE say what it is. Exit
    code 0 finishes the job, 75 gives it back for a second, anything else fails it with the last line of stderr as the
    reason. SIGTERM and Ctrl-C take no more jobs, wait for the commands that run, and leave. With --json stdout is one
    line per job, and what COMMAND writes there goes to stderr.
    """
    idle = None if idle_ms is None else idle_ms / 1000
    most = min(concurrency, limit or concurrency)
    with app.connect() as client, known_queue(client, name):
        jobs = client.queue(name, node=node)
        jobs.stats()  # One that does not exist is not made by whoever wants to work on it.
        with jobs.work(max=most, lease_ms=lease_ms, idle=idle) as stream, _stopping(stream):
            _serve(app, stream, list(command), most, limit)


def _serve(app: App, stream: Work, command: list[str], most: int, limit: int | None) -> None:
    left = limit
    broken = threading.Event()
    untold: list[TopicdError] = []
    with ThreadPoolExecutor(most) as crew:
        while left != 0:
            try:
                job = next(stream)
            except StopIteration:
                break
            left = None if left is None else left - 1
            crew.submit(_one, app, job, command, stream, broken, untold)
        stream.stop()
        with suppress(StopIteration):
            next(stream)  # Gives back what was not begun.
    if broken.is_set():
        raise CliError(f"{command[0]}: the command cannot be run", Exit.FAILED)
    if untold:
        text = f"{counted(len(untold), 'job')} ended and could not be reported: {untold[-1].message}"
        raise CliError(text, exit_of(untold[-1]), code=untold[-1].code)


@contextmanager
def _stopping(stream: Work) -> Iterator[None]:
    """Signals stop the stream, from a thread: what they interrupt may be in the middle of sending."""

    def handle(number: int, frame: Any) -> None:
        threading.Thread(target=stream.stop, daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one(
    app: App, job: Job, command: list[str], stream: Work, broken: threading.Event, untold: list[TopicdError]
) -> None:
    began = time.monotonic()
    code, reason = run_command(command, job, sys.stderr if app.json else None)
    outcome, fate = "done" if code == 0 else "failed", ""
    try:
        if code == 0:
            ours = job.done()
        elif code == EX_TEMPFAIL:
            outcome, ours = "released", job.release(delay_ms=RELEASED_MS, reason=reason)
        elif code == _CANNOT_RUN and reason.startswith("cannot run"):
            # Not the job's fault, and the next one would fare no better.
            broken.set()
            stream.stop()
            outcome, ours = "released", job.release(reason=reason)
        else:
            ours = job.fail(reason)
        fate = "" if ours else "lost"
    except TopicdError as exc:
        untold.append(exc)
        fate = "unreported"
    _say(app, job, outcome, fate, code, reason, time.monotonic() - began)


_FATES = {
    "lost": "the lease was lost: somebody else has the job",
    "unreported": "that could not be reported: it will be delivered again",
}


def _say(app: App, job: Job, outcome: str, fate: str, code: int, reason: str, took: float) -> None:
    """fate: why the outcome does not count; empty: it does."""
    if app.json:
        said = {"seq": job.seq, "outcome": fate or outcome, "exit_code": code, "reason": reason}
        app.out.lines([{**said, "deliveries": job.deliveries, "seconds": round(took, 6)}])
    elif fate:
        app.out.text(f"{job.seq} {outcome}, but {_FATES[fate]}")
    else:
        app.out.text(f"{job.seq} {outcome} in {duration(took)}" + (f": {printable_text(reason)}" if reason else ""))


def run_command(command: list[str], job: Job, stdout: TextIO | None = None) -> tuple[int, str]:
    """Its exit code, and of one that failed the last line that it wrote to stderr. stdout: instead of ours."""
    environ = {**os.environ, **variables(job)}
    try:
        # A group of its own: Ctrl-C is for us, who let it finish.
        done = subprocess.run(
            command,
            input=job.data,
            env=environ,
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
            process_group=0,
        )
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else None
        return _CANNOT_RUN, f"cannot run {command[0]}: {why or exc}"
    sys.stderr.buffer.write(done.stderr)
    sys.stderr.flush()
    if done.returncode == 0:
        return 0, ""
    lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    if done.returncode < 0:
        return done.returncode, lines[-1] if lines else f"killed by signal {-done.returncode}"
    return done.returncode, lines[-1] if lines else f"exit code {done.returncode}"


def variables(job: Job) -> dict[str, str]:
    return {
        "TOPICD_JOB_QUEUE": job.queue,
        "TOPICD_JOB_SEQ": str(job.seq),
        "TOPICD_JOB_TAG": (job.tag or "").replace("\0", ""),
        "TOPICD_JOB_META": json.dumps(job.meta, default=str),
        "TOPICD_JOB_DELIVERIES": str(job.deliveries),
        "TOPICD_JOB_LEASE": str(job.lease),
        "TOPICD_JOB_DEADLINE": str(job.deadline),
    }
