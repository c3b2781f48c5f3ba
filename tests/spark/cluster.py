"""A standalone Spark cluster on loopback: a master and two workers with one core each. Promise: close() leaves no
process behind.

    with Cluster(tmp_path) as cluster:
        answer = cluster.run("tests.spark.cluster_jobs", "count", socket, topic)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from tests.support.daemon import wait_until
from tests.support.ports import free_ports
from topicd.spark.python import python_for_spark

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
JOB_S = 100.0
STOP_S = 10.0
# Short-lived JVMs: no time is lost to compilers and collectors that never pay off.
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
}


class Cluster:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._port = free_ports(1)
        try:
            master = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
            self._start("master", "org.apache.spark.deploy.master.Master", *master)
            for number in range(WORKERS):
                small = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
                folder = ["--work-dir", str(self.root / f"worker-{number}")]
                self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *small, *folder, self.url)
            wait_until(lambda: self._log("master").count("Registering worker") == WORKERS, "the workers to register")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            _end(process)
        self._processes.clear()

    def run(self, module: str, *args: str) -> Any:
        """What `python -m module <master> <args>` prints as its last line, JSON."""
        log = self.root / f"{args[0]}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, self.url, *args],
                cwd=ROOT,
                env=self._env(),
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            try:
                out, _ = process.communicate(timeout=JOB_S)
            finally:
                _end(process)
        if process.returncode:
            raise AssertionError(f"{module} {args} ended with {process.returncode}\n{log.read_text()[-5000:]}")
        return json.loads(out.splitlines()[-1])

    def executors_started(self) -> int:
        """By all jobs so far."""
        return self._log("master").count("Launching executor")

    def _start(self, name: str, java_class: str, *args: str) -> None:
        home = Path(pyspark.__file__).parent
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), java_class, *args],
                env=self._env(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

    def _log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def _env(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYSPARK_PYTHON": python_for_spark(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    """With everything it has started: it leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)
