"""A pipeline in a process of its own that kills itself, like SIGKILL from outside, at the n-th passing of one point.

python -m tests.spark.pipeline_victim archive|restore SOCKET DIR TOPIC TARGET POINT N
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.inlinespark import InlineSpark
from topicd.client.blocking.client import Client
from topicd.client.blocking.numbered_writer import NumberedWriter
from topicd.disk.fs import RealFs
from topicd.spark.pipelines import archive, inputs, parts, restore
from topicd.spark.pipelines.journal import Journal
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.store import Store

BATCH_RECORDS = 100
# What to die at: before or after the call of that function.
ARCHIVE_POINTS: dict[str, tuple[Any, str]] = {
    "staged": (parts.PartWriter, "finish"),
    "moving": (RealFs, "rename"),
    "moved": (Store, "move"),
    "manifest": (Store, "write_manifest"),
    "verified": (archive, "_verify"),
    "deleted": (Client, "delete"),
}
RESTORE_POINTS: dict[str, tuple[Any, str]] = {
    "begun": (Journal, "begin"),
    "sent": (NumberedWriter, "send"),
    "noted": (Journal, "note"),
    "trimmed": (Journal, "trim"),
}


def small() -> None:
    """Many tasks, files and batches of few records, the same in every process."""
    archive.TASK_MIN, archive.TASK_MAX = 300, 300
    inputs.BATCH_RECORDS = BATCH_RECORDS


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(owner: Any, name: str, before: bool, passing: int, die: Callable[[], None] = die) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    left = passing

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if before and left == 0:
            die()
        result = original(*args, **kwargs)
        if left == 0:
            die()
        return result

    setattr(owner, name, deadly)


def main(kind: str, socket: str, directory: str, topic: str, target: str, point: str, passing: str) -> None:
    small()
    when, _, name = point.partition("-")
    points = ARCHIVE_POINTS if kind == "archive" else RESTORE_POINTS
    arm(*points[name], before=when == "before", passing=int(passing))
    spark: Any = InlineSpark()
    where = connection_options(socket, 30.0)
    if kind == "archive":
        archive.run(
            spark, archive.Options(where, (topic,), Path(directory), then_delete=name in ("verified", "deleted"))
        )
    else:
        restore.run(spark, restore.Options(where, Path(directory), ((topic, target),)))


if __name__ == "__main__":
    main(*sys.argv[1:])
