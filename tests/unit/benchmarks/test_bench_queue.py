"""F: which drivers a load gets, and that figures of queues that hand out a job twice do not count."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import cases
from benchmarks.drivers import queue
from topicd.bench.load import Load
from topicd.errors import Internal


class Finished:
    """A worker that says what it has done."""

    def __init__(self, *result: int) -> None:
        self._result = result

    def wait_ready(self) -> None:
        pass

    def go(self) -> None:
        pass

    def result(self) -> Any:
        return self._result


def test_each_case_of_f_has_one_driver_of_a_peer_that_can_do_all() -> None:
    loads = [case.full for case in cases.all_cases() if case.test == "F"]
    assert [list(queue.drivers(load, "one", "some", "wait")) for load in loads] == [["one"], ["some"], ["wait"]] * 2


def test_a_peer_without_claims_of_many_is_left_out_there() -> None:
    assert queue.drivers(Load(records=10, batch=100), "one", wait="wait") == {}


def test_a_rate_counts_all_workers_from_the_first_start_to_the_last_end() -> None:
    workers: Any = [Finished(10, 1_000_000_000, 2_000_000_000), Finished(30, 1_500_000_000, 3_000_000_000)]
    assert queue.together(workers, Load(records=40)) == {"rate": 20.0}


def test_more_jobs_done_than_put_is_no_figure() -> None:
    workers: Any = [Finished(3, 0, 1), Finished(2, 0, 1)]
    with pytest.raises(Internal, match="5 jobs were done of 4"):
        queue.together(workers, Load(records=4))
