"""Which job is next: by priority, groups in turn, those that came back first."""

from __future__ import annotations

from itertools import pairwise

from topicd.shards.delivery.queues.lanes import STARVING_MS, GroupLimits, Lanes, Picked

NO_LIMITS = GroupLimits(0, 0)


def seqs(found: list[Picked]) -> list[int]:
    return [seq for one in found for seq in range(one.first, one.last + 1)]


def test_plain_jobs_are_one_run_however_many() -> None:
    lanes = Lanes()
    lanes.add_fresh(lanes.plain, 1, 500_000)
    lanes.add_fresh(lanes.plain, 500_001, 1_000_000)
    assert lanes.ready == 1_000_000 and len(lanes.plain.fresh) == 1
    (picked,) = lanes.pick(1_000, 0, NO_LIMITS)
    assert (picked.first, picked.last, lanes.ready) == (1, 1_000, 999_000)


def test_those_that_came_back_go_first_the_longest_back_before_others() -> None:
    lanes = Lanes()
    lanes.add_fresh(lanes.plain, 10, 12)
    lanes.add_back(lanes.plain, 7, since_ms=200)
    lanes.add_back(lanes.plain, 8, since_ms=100)
    assert seqs(lanes.pick(4, 300, NO_LIMITS)) == [8, 7, 10, 11]


def test_a_higher_priority_goes_first() -> None:
    lanes = Lanes()
    lanes.add_fresh(lanes.plain, 1, 2)
    lanes.add_fresh(lanes.get(9, ""), 3, 3)
    lanes.add_fresh(lanes.get(0, ""), 4, 4)
    assert seqs(lanes.pick(4, 0, NO_LIMITS)) == [3, 1, 2, 4]


def test_a_lower_one_that_waits_is_served_once_for_each_wait() -> None:
    lanes = Lanes()
    lanes.add_fresh(lanes.get(9, ""), 1, 1_000)
    lanes.add_fresh(lanes.get(0, ""), 2_001, 2_010)
    order = [(now, seqs(lanes.pick(1, now, NO_LIMITS))[0]) for now in range(0, 20_000, 100)]
    low = [now for now, seq in order if seq > 2_000]
    assert low and low[0] <= STARVING_MS + 100
    assert all(STARVING_MS <= b - a <= STARVING_MS + 200 for a, b in pairwise(low))


def test_five_bands_under_saturation_starve_nobody_for_ten_seconds() -> None:
    lanes = Lanes()
    for n, priority in enumerate((1, 3, 5, 7, 9)):
        lanes.add_fresh(lanes.get(priority, ""), n * 100_000 + 1, n * 100_000 + 50_000)
    last = dict.fromkeys(range(5), 0)
    for now in range(0, 60_000, 10):
        for seq in seqs(lanes.pick(2, now, NO_LIMITS)):
            last[(seq - 1) // 100_000] = now
        assert all(now - at <= 10_000 for at in last.values())


def test_groups_take_turns() -> None:
    lanes = Lanes()
    lanes.add_fresh(lanes.get(4, "a"), 1, 3)
    lanes.add_fresh(lanes.get(4, "b"), 11, 13)
    lanes.add_fresh(lanes.plain, 21, 22)
    assert seqs(lanes.pick(8, 0, NO_LIMITS)) == [1, 11, 21, 2, 12, 22, 3, 13]


def test_a_full_group_is_passed_over_until_one_of_its_jobs_ends() -> None:
    lanes, limits = Lanes(), GroupLimits(2, 0)
    lane = lanes.get(4, "a")
    lanes.add_fresh(lane, 1, 5)
    lanes.add_fresh(lanes.plain, 11, 12)
    assert seqs(lanes.pick(10, 0, limits)) == [1, 11, 2, 12]
    assert not lanes.any_may_go and lanes.ready == 3
    lanes.ended(lane.group)
    assert seqs(lanes.pick(10, 0, limits)) == [3]


def test_a_group_with_a_rate_goes_on_when_its_time_has_come() -> None:
    lanes, limits = Lanes(), GroupLimits(0, 2)
    lanes.add_fresh(lanes.get(4, "a"), 1, 5)
    assert seqs(lanes.pick(10, 1_000, limits)) == [1]
    until = lanes.parked_until
    assert until is not None and 1_499 <= until <= 1_501
    assert seqs(lanes.pick(10, until - 2, limits)) == []
    assert seqs(lanes.pick(10, until, limits)) == [2]


def test_what_was_not_handed_out_is_where_it_was() -> None:
    lanes = Lanes()
    lane = lanes.get(4, "a")
    lanes.add_fresh(lane, 1, 5)
    (picked,) = lanes.pick(3, 0, NO_LIMITS)
    lanes.put_back(picked, 0)
    assert lanes.ready == 5 and lane.group.in_flight == 0 and [tuple(run) for run in lane.fresh] == [(1, 5)]


def test_one_can_be_taken_out_of_the_middle() -> None:
    lanes = Lanes()
    lanes.add_fresh(lanes.plain, 1, 5)
    assert lanes.remove(lanes.plain, 3) and not lanes.remove(lanes.plain, 3)
    assert seqs(lanes.pick(9, 0, NO_LIMITS)) == [1, 2, 4, 5]
    lanes.add_back(lanes.plain, 3, 0)
    assert lanes.remove(lanes.plain, 3) and not lanes.any_may_go


def test_a_lane_without_jobs_is_forgotten_with_its_group() -> None:
    lanes = Lanes()
    lane = lanes.get(7, "tenant")
    lanes.forget(lane)
    assert "tenant" not in lanes.groups and lanes.get(7, "tenant") is not lane
