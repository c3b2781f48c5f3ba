"""Spark for a pipeline: started when it is first needed, stopped if it was started here; of SQL, which takes as long to
start as all the rest, nothing is loaded before a pipeline wants a session. Promise: without Java or
pyspark, and when a job fails, the error is one of topicd's and says what is wrong, never a traceback.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from topicd import errors
from topicd.errors import TopicdError
from topicd.limits import MIB
from topicd.spark.pipelines.report import Progress, no_progress
from topicd.spark.python import python_for_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
Item = TypeVar("Item")
Given = TypeVar("Given")  # a session or a context

# What this process does sooner than Spark starts, on any machine.
SMALL_RECORDS = 200_000
SMALL_BYTES = 64 * MIB
DEFAULT_MASTER = "local[*]"
JAVA_RULE = "Spark needs Java 17 or newer; set JAVA_HOME or put java into PATH"
DEBUG_ENV = "TOPICCTL_DEBUG"
_POLL_S = 0.2
SHUFFLE, SHUFFLE_DEFAULT = "spark.sql.shuffle.partitions", "200"
_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
# What Spark quotes of an exception that was raised in a Python worker.
_RAISED = re.compile(r"^(?:topicd\.(?:\w+\.)*)(\w+): (.*)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .+$", re.MULTILINE)
_ERROR_CLASSES = {cls.__name__: cls for cls in errors.ERRORS.values()}


class SparkUnavailable(TopicdError):
    """Raised before anything was done."""

    code: ClassVar[str] = "spark_unavailable"
    status: ClassVar[int] = 503
    retriable: ClassVar[bool] = False
    summary: ClassVar[str] = "Java or pyspark is missing, or Spark does not start (pipelines only)"


class JobFailed(TopicdError):
    """Spark gave up on a job; what was read or written before it is as if it had not begun."""

    code: ClassVar[str] = "job_failed"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = True
    summary: ClassVar[str] = "Spark gave up on a job (pipelines only)"


class LazySpark:
    """A session that is made on first use, or one that the caller has already and keeps."""

    def __init__(self, master: str | None = None, session: SparkSession | None = None) -> None:
        self._master = master
        self._session = session
        self._context = session.sparkContext if session is not None else None
        self._ours = False

    @property
    def context(self) -> SparkContext:
        """For tasks that are plain functions."""
        if self._context is None:
            self._context = self._start()
        return self._context

    @property
    def session(self) -> SparkSession:
        """For DataFrames."""
        if self._session is None:
            self._session = self._with_sql(self.context)
        return self._session

    def _start(self) -> SparkContext:
        try:
            from pyspark.sql import SparkSession
        except ImportError as exc:
            raise SparkUnavailable(f"pyspark is not installed ({exc}); pip install 'topicd[spark]'") from None
        active = SparkSession.getActiveSession()
        if active is not None:
            self._session = active
            return active.sparkContext
        check_java(os.environ)
        os.environ.setdefault("PYSPARK_PYTHON", python_for_spark())
        try:
            made = _context(self._master)
        except Exception as exc:
            raise SparkUnavailable(f"Spark does not start: {first_line(exc)}. {JAVA_RULE}") from None
        self._ours = True
        return made

    def _with_sql(self, context: SparkContext) -> SparkSession:
        if self._session is not None:
            return self._session
        from pyspark.sql import SparkSession

        made = SparkSession(context)
        if made.conf.get(SHUFFLE) == SHUFFLE_DEFAULT:
            # On one machine most of 200 tasks have nothing to do and each costs its start.
            made.conf.set(SHUFFLE, str(max(2, context.defaultParallelism)))
        return made

    def is_needless(self, records: int, size: int) -> bool:
        """Is so much done before Spark has started? Not if somebody said where Spark runs, or it runs already."""
        asked = self._master is not None or "PYSPARK_GATEWAY_PORT" in os.environ
        return not asked and records <= SMALL_RECORDS and size <= SMALL_BYTES and not self._runs()

    def _runs(self) -> bool:
        if self._context is None and "pyspark.sql" in sys.modules:
            from pyspark.sql import SparkSession

            return SparkSession.getActiveSession() is not None
        return self._context is not None

    def run(self, label: str, job: Callable[[SparkSession], T], progress: Progress = no_progress) -> T:
        """The job's result; its failure as an error of ours."""
        return self._run(label, self.session, job, progress)

    def run_tasks(self, label: str, job: Callable[[SparkContext], T], progress: Progress = no_progress) -> T:
        """The same for a job that needs no SQL."""
        return self._run(label, self.context, job, progress)

    def _run(self, label: str, given: Given, job: Callable[[Given], T], progress: Progress) -> T:
        try:
            with _Watched(self.context, label, progress):
                return job(given)
        except TopicdError:
            raise
        except Exception as exc:
            raise explained(exc) from exc

    def close(self) -> None:
        if self._ours and self._session is not None:
            self._session.stop()
        elif self._ours and self._context is not None:
            self._context.stop()
        self._session, self._context, self._ours = None, None, False

    def __enter__(self) -> LazySpark:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _context(master: str | None) -> SparkContext:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf().setAppName("topicd").setAll(list(_CONF.items()))
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit says itself where to run
    if master is not None or not submitted:
        conf = conf.setMaster(master or DEFAULT_MASTER)
    if submitted or os.environ.get(DEBUG_ENV):
        return SparkContext(conf=conf)
    # What the JVM has to say goes nowhere: what matters of it comes as exceptions.
    launch: Any = launch_gateway  # untyped
    with open(os.devnull, "wb") as nowhere:
        return SparkContext(conf=conf, gateway=launch(conf, {"stderr": nowhere}))


class _Watched:
    """Tells how many tasks of the running stages are done, as long as the block lasts."""

    def __init__(self, context: SparkContext, label: str, progress: Progress) -> None:
        self._context = context
        self._label = label
        self._progress = progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="topicd-progress", daemon=True)

    def __enter__(self) -> _Watched:
        if self._progress is not no_progress:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        tracker: Any = self._context.statusTracker()
        while not self._over.wait(_POLL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                done = sum(stage.numCompletedTasks for stage in known)
                self._progress(self._label, done, sum(stage.numTasks for stage in known))


def check_java(environ: dict[str, str] | os._Environ[str]) -> None:
    home = environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home) / "bin" / "java", os.X_OK):
            raise SparkUnavailable(f"JAVA_HOME is {home}, which has no bin/java. {JAVA_RULE}")
    elif shutil.which("java", path=environ.get("PATH")) is None:
        raise SparkUnavailable(f"Java is not installed. {JAVA_RULE}")


def run_here(label: str, items: Sequence[Item], task: Callable[[Item], T], progress: Progress) -> list[T]:
    """The tasks of a small job, one after the other, without Spark."""
    found: list[T] = []
    try:
        for item in items:
            found.append(task(item))
            progress(label, len(found), len(items))
    except TopicdError:
        raise
    except Exception as exc:
        raise JobFailed(f"{label} failed: {type(exc).__name__}: {first_line(exc)}") from exc
    return found


def explained(exc: Exception) -> TopicdError:
    """What went wrong in a job: the error that one of our tasks raised, else the first line of what Spark says."""
    raised = _RAISED.findall(str(exc))
    if raised:
        name, message = raised[-1]
        return _ERROR_CLASSES.get(name, JobFailed)(message.strip())
    python = _PYTHON_ERROR.findall(str(exc))
    return JobFailed(f"the Spark job failed: {python[-1][:500] if python else first_line(exc)}")


def first_line(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(exc).__name__
