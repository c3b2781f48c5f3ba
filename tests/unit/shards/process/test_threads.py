"""Threads, and how busy they are."""

from __future__ import annotations

import threading

from tests.support.daemon import wait_until
from topicd.shards.process.threads import CountedThreads


def test_business_is_what_is_under_way_and_at_most_all_of_them() -> None:
    threads, go = CountedThreads(2, "test"), threading.Event()
    assert threads.business() == 0
    first = threads.submit(go.wait)
    assert threads.business() == 0.5
    rest = [threads.submit(go.wait) for _ in range(5)]
    assert threads.business() == 1
    go.set()
    for future in [first, *rest]:
        assert future.result(10)
    wait_until(lambda: threads.business() == 0, "the threads to rest", 10)
    threads.shutdown()
