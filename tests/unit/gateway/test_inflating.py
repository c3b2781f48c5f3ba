"""Bodies in gzip: whole, in several members, cut off, none, and those that grow without end."""

from __future__ import annotations

import gzip
import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from topicd.gateway.app import _inflated, step_back
from topicd.gateway.endpoints import BODY_MAX
from topicd.gateway.errors import Refusal
from topicd.limits import MIB

NOISE = Random(1).randbytes(3 * MIB)


@pytest.mark.parametrize("text", [b"", b"{}", b"x" * 1_000_000, NOISE, NOISE[:1_000] * 9_000], ids=len)
def test_what_was_packed_comes_out(text: bytes) -> None:
    assert _inflated(gzip.compress(text, 1)) == text
    assert _inflated(gzip.compress(text, 1) + gzip.compress(b"more")) == text + b"more"


@pytest.mark.parametrize(
    "body",
    [gzip.compress(NOISE)[:-5], gzip.compress(b"{}")[:9], b"", b"none", gzip.compress(b"{}") + b"x"],
    ids=["cut off", "cut off in its head", "empty", "none", "something behind it"],
)
def test_what_is_cut_off_or_none_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        _inflated(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


def test_who_inflates_leaves_the_cores_to_others() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1, initializer=step_back) as aside:
        beside = aside.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()
    assert beside == min(19, before + 10)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_what_grows_without_end_costs_no_memory() -> None:
    bomb = gzip.compress(bytes(BODY_MAX + 1), 9)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal) as refused:
            _inflated(bomb)
        assert refused.value.status == 413
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
