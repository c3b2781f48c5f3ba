"""Clients after a fork. Promise: a child never writes into its parent's connections nor uses its producer ids.

A `Client` works on in the child, with connections of its own; producers, pipelines and watches belong to the process
that made them and are closed in the child.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def forked(self) -> None:
        """Called in the child; only the thread that forked is left, locks may be held by threads that are not."""
        ...


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def track(made: Forkable) -> None:
    _alive.add(made)


def _in_child() -> None:
    for made in list(_alive):
        made.forked()


os.register_at_fork(after_in_child=_in_child)
