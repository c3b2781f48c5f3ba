"""Needs are ordered, every class has one, and a refusal says what the disk said."""

from __future__ import annotations

import errno

from topicd.model import Durability
from topicd.shards.delivery.writing.durability import NEED_OF, Need, storage_failed


def test_a_stricter_class_never_needs_less() -> None:
    """The classes are declared from the weakest to the strictest."""
    needs = [NEED_OF[durability] for durability in Durability]
    assert needs == sorted(needs)
    assert (needs[0], needs[-1]) == (Need.PLACED, Need.SYNCED)


def test_each_need_includes_those_before_it() -> None:
    assert list(Need) == sorted([Need.STORED, Need.WRITTEN, Need.PLACED, Need.SYNCED])
    assert Need.STORED > Need.SYNCED > Need.WRITTEN > Need.PLACED


def test_a_refusal_names_the_error_and_may_be_tried_again() -> None:
    error = storage_failed(errno.ENOSPC)
    assert (error.detail["errno"], error.detail["reason"]) == (errno.ENOSPC, "No space left on device")
    assert error.retriable
    assert error.detail["retry_after_ms"] > 0
