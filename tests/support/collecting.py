"""Shards in the tests' own process tell the collector of cycles to look rarely, and what they held keeps its
descriptors until it does."""

from __future__ import annotations

import gc
import os

MANY = 100


def give_back() -> None:
    """Collect if many descriptors are held."""
    if len(os.listdir("/proc/self/fd")) > MANY:
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)
        gc.collect()
