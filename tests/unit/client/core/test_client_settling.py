"""What both faces of a queue do alike: what is refused before a byte is sent; dead letters that are not there yet."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest

from topicd.client.aio.work import AsyncWork
from topicd.client.blocking.work import Work
from topicd.client.core.held import Finishing, held_keys
from topicd.client.core.jobs import leased_rows
from topicd.client.core.options import span
from topicd.client.core.queue_answers import Redriven
from topicd.client.core.settling import Redriving, wait_times
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.ipc.protocol.retry import FOREVER_S, Tempo
from topicd.limits import CLAIM_MAX, LONG_POLL_MS_MAX

NO_TIMES = [-1, math.nan, "1", True, None, b"1"]


def no_topic(name: str) -> TopicNotFound:
    return TopicNotFound(f"no topic named {name!r}", topic=name)


@pytest.mark.parametrize("given", NO_TIMES)
def test_what_is_no_number_of_seconds_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="wait is a number of seconds"):
        span("wait", given)
    with pytest.raises(InvalidRequest, match="wait is a number of seconds"):
        next(wait_times(Tempo(), given))


def test_for_ever_is_a_number_of_seconds() -> None:
    assert span("idle", math.inf) == FOREVER_S
    assert span("idle", 2) == 2.0
    assert next(wait_times(Tempo(), math.inf)) == LONG_POLL_MS_MAX
    assert list(wait_times(Tempo(), 0)) == [0]


@pytest.mark.parametrize("kind", [Work, AsyncWork])
@pytest.mark.parametrize("idle", [given for given in NO_TIMES if given is not None])
def test_a_stream_that_is_refused_leaves_nothing_to_end(kind: Any, idle: Any) -> None:
    class Caller:
        loop = None

    with pytest.raises(InvalidRequest, match="idle is a number of seconds"):
        kind(Caller(), None, "q", "me", 1, 0, idle)
    gc.collect()  # What is raised while it goes is an error of this test: see filterwarnings.


def test_a_key_alone_is_one_job_and_not_two() -> None:
    """Taken for two seqs, it would finish a job whose lease was to be checked."""
    assert held_keys((7, 99)) == [(7, 99)]
    assert Finishing((7, 99)).rows == leased_rows([(7, 99)])
    assert held_keys([7, 99]) == [(7, 0), (99, 0)]
    assert held_keys(((7, 99), (8, 100))) == [(7, 99), (8, 100)]


@pytest.mark.parametrize("given", [object(), 1.5, None, b"ab", "ab", [True], [(1,)], [(1, 2, 3)], (1.0, 2)])
def test_what_names_no_jobs_is_refused(given: Any) -> None:
    for use in (held_keys, Finishing):
        with pytest.raises(InvalidRequest):
            use(given)


def test_where_no_job_has_died_all_that_is_asked_for_is_skipped() -> None:
    everything = Redriving("q.dead", "q", None, discard=False)
    assert everything.next() is not None
    everything.refused(no_topic("q.dead"))
    assert (everything.next(), everything.total) == (None, Redriven(0, 0, []))
    seqs = list(range(1, CLAIM_MAX + 5))
    named = Redriving("q.dead", "q", seqs, discard=True)
    assert named.next() is not None
    named.refused(no_topic("q.dead"))
    assert (named.next(), named.total.skipped) == (None, seqs)


def test_a_queue_that_is_not_there_is_no_lack_of_dead_letters() -> None:
    todo = Redriving("q.dead", "q", None, discard=False)
    todo.next()
    with pytest.raises(TopicNotFound, match="'q'"):
        todo.refused(no_topic("q"))
