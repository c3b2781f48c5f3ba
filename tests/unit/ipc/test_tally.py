"""What all shards hold together."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest

from topicd import paths
from topicd.ipc import tally
from topicd.ipc.tally import Tally


def shards(instance: str, count: int) -> list[Tally]:
    tally.create(instance, count).close()
    return [Tally.attach(instance, index, count) for index in range(count)]


def test_once_all_have_told_one_may_have_everything(instance: str) -> None:
    one, other = shards(instance, 2)
    one.tell_topics(0)
    other.tell_topics(2)
    assert [one.take_topic(own, 5) for own in range(5)] == [True, True, True, False, False]
    other.tell_topics(0)
    assert one.take_topic(4, 5) and not other.take_topic(0, 5)


def test_bytes_are_counted_likewise(instance: str) -> None:
    one, other = shards(instance, 2)
    one.tell_topics(0)
    other.tell_topics(0)
    other.tell_bytes(30)
    assert (one.room(50, 100), other.room(30, 100)) == (20, 20)


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 100_001])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_until_then_each_has_its_share(instance: str, limit: int, count: int) -> None:
    all_of_them = shards(instance, count)
    room = [each.room(0, limit) for each in all_of_them]
    # A shard alone has nobody to wait for.
    assert sum(room) == limit and max(room) - min(room) <= 1
    alone = [Tally.attach("none", index, count).room(0, limit) for index in range(count)]
    assert alone == room


def test_racing_shards_never_take_more_than_there_are(instance: str) -> None:
    four = shards(instance, 4)
    for each in four:
        each.tell_topics(0)
    taken = [0] * 4

    def race(index: int) -> None:
        for _ in range(200):
            if four[index].take_topic(taken[index], 100):
                taken[index] += 1

    threads = [threading.Thread(target=race, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 100


def test_a_holder_that_stands_still_is_not_waited_for(instance: str) -> None:
    (one,) = shards(instance, 1)
    one.tell_topics(0)
    held = os.open(paths.SHM_DIR / paths.tally_shm(instance).lstrip("/"), os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert not one.take_topic(0, 5)
    os.close(held)  # as its end does
    assert one.take_topic(0, 5)


def test_one_that_is_dropped_holds_no_descriptor(instance: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = shards(instance, 2)
    assert len(os.listdir("/proc/self/fd")) > before
    del made
    assert len(os.listdir("/proc/self/fd")) == before
