"""Without Java or pyspark, and when jobs fail: one plain line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topicd.errors import StorageCorrupt
from topicd.spark.pipelines import session
from topicd.spark.pipelines.report import no_progress
from topicd.spark.pipelines.session import JobFailed, LazySpark, SparkUnavailable, check_java, explained, run_here


def run_pipeline(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


RUN = """
import sys
{before}
from topicd.cli.main import main
main(["pipeline", "run", "restore", {path!r}, "--into", "x", "--socket", {path!r}{more}])
"""


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to restore; the daemon is asked for nothing before Spark is needed."""
    path = tmp_path / "x.csv"
    path.write_text("data\na\n")
    return path


MASTER = ', "--master", "local[1]"'  # or so little would be restored without Spark
NO_DAEMON = "from topicd.spark.pipelines import place; place.client = lambda where: None"


def test_missing_java_is_told_plainly(answering: Path, tmp_path: Path) -> None:
    done = run_pipeline(RUN.format(before=NO_DAEMON, path=str(answering), more=MASTER), PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("topicctl: Java is not installed. Spark needs Java 17 or newer; set JAVA_HOME")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_missing_pyspark_is_told_plainly(answering: Path) -> None:
    hidden = f"sys.modules['pyspark.sql'] = None; {NO_DAEMON}"
    done = run_pipeline(RUN.format(before=hidden, path=str(answering), more=MASTER + ', "--json"'))
    assert (done.returncode, done.stdout) == (1, "")
    assert "pyspark is not installed" in done.stderr
    assert "pip install 'topicd[spark]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_daemon_is_told_before_anything_is_started(answering: Path) -> None:
    done = run_pipeline(RUN.format(before="", path=str(answering), more=""), PATH="")
    assert done.returncode == 3, done.stderr
    assert "no topicd daemon found" in done.stderr


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_what_a_task_raised_comes_out_of_what_spark_says() -> None:
    said = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure\n"
        "Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n'
        "topicd.errors.StorageCorrupt: part-1 fails the checksum\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    found = explained(RuntimeError(said))
    assert (type(found), found.message) == (StorageCorrupt, "part-1 fails the checksum")
    plain = said.replace("topicd.errors.StorageCorrupt: part-1 fails the checksum", "FileNotFoundError: [Errno 2] x")
    assert explained(RuntimeError(plain)).message == "the Spark job failed: FileNotFoundError: [Errno 2] x"
    unknown = explained(RuntimeError("\n[SOME_CLASS] it went wrong\nat somewhere"))
    assert (type(unknown), unknown.message) == (JobFailed, "the Spark job failed: [SOME_CLASS] it went wrong")


def test_small_work_needs_no_spark_unless_spark_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(LazySpark, "_runs", lambda self: False)
    assert LazySpark().is_needless(session.SMALL_RECORDS, session.SMALL_BYTES)
    assert not LazySpark().is_needless(session.SMALL_RECORDS + 1, 0)
    assert not LazySpark().is_needless(0, session.SMALL_BYTES + 1)
    assert not LazySpark("local[2]").is_needless(1, 1)
    monkeypatch.setattr(LazySpark, "_runs", lambda self: True)
    assert not LazySpark().is_needless(1, 1)
    monkeypatch.setattr(LazySpark, "_runs", lambda self: False)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not LazySpark().is_needless(1, 1)


def test_small_work_fails_as_plainly() -> None:
    assert run_here("double", [1, 2], lambda n: n * 2, no_progress) == [2, 4]
    with pytest.raises(JobFailed, match="divide failed: ZeroDivisionError"):
        run_here("divide", [0], lambda n: 1 // n, no_progress)
