"""As much of Spark as pipelines need whose tasks are plain functions: each runs here and now, without a JVM. For tests
that kill the process at one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class InlineRdd:
    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def map(self, task: Callable[[Any], Any]) -> InlineRdd:
        return InlineRdd(task(item) for item in self._items)

    def flatMap(self, task: Callable[[Any], Iterable[Any]]) -> InlineRdd:
        return InlineRdd(made for item in self._items for made in task(item))

    def foreach(self, task: Callable[[Any], object]) -> None:
        for item in self._items:
            task(item)

    def collect(self) -> list[Any]:
        return list(self._items)


class InlineContext:
    defaultParallelism = 2

    def parallelize(self, items: Iterable[Any], slices: int) -> InlineRdd:
        return InlineRdd(items)


class InlineSpark:
    """In the place of a LazySpark."""

    def __init__(self) -> None:
        self.session = self
        self.sparkContext = InlineContext()

    def is_needless(self, records: int, size: int) -> bool:
        return False

    def run(self, label: str, job: Callable[[Any], Any], progress: object = None) -> Any:
        return job(self.session)

    def run_tasks(self, label: str, job: Callable[[Any], Any], progress: object = None) -> Any:
        return job(self.sparkContext)
