"""When a dead child is started again."""

from __future__ import annotations

from topicd.supervisor.restarts import FAST_CRASHES, HEALTHY_S, MAX_DELAY_S, RestartPolicy


def test_delay_doubles_up_to_its_maximum() -> None:
    policy = RestartPolicy()
    delays = [policy.crashed(now=100.0 * n, served_s=10.0) for n in range(9)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAX_DELAY_S, MAX_DELAY_S, MAX_DELAY_S]


def test_delay_begins_anew_after_a_healthy_life() -> None:
    policy = RestartPolicy()
    for n in range(5):
        policy.crashed(100.0 * n, 10.0)
    assert policy.crashed(1000.0, HEALTHY_S) == 0.1


def test_fast_crashes_in_a_short_time_end_it() -> None:
    policy = RestartPolicy()
    answers = [policy.crashed(float(n), None) for n in range(FAST_CRASHES)]
    assert None not in answers[:-1]
    assert answers[-1] is None


def test_a_crash_right_after_serving_is_a_fast_one() -> None:
    policy = RestartPolicy()
    assert [policy.crashed(float(n), 0.5) for n in range(FAST_CRASHES)][-1] is None


def test_fast_crashes_far_apart_do_not_end_it() -> None:
    policy = RestartPolicy()
    assert None not in [policy.crashed(10.0 * n, None) for n in range(50)]


def test_crashes_of_children_that_served_a_while_never_end_it() -> None:
    policy = RestartPolicy()
    assert None not in [policy.crashed(3.0 * n, 3.0) for n in range(50)]
