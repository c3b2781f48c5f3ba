"""Who holds what until when, under numbers that only grow."""

from __future__ import annotations

from topicd.shards.delivery.queues.leases import NUMBERS_AHEAD, Holder, Leases


def test_a_number_follows_from_the_place_in_the_grant() -> None:
    leases = Leases()
    leases.give(5, 8, 100, 1_000, b"w", None)
    assert leases.is_held(7, 102, b"") and not leases.is_held(7, 101, b"")
    assert leases.is_held(7, 0, b"w") and not leases.is_held(7, 0, b"x") and not leases.is_held(9, 104, b"w")


def test_one_is_expired_after_its_deadline_and_not_at_it() -> None:
    leases = Leases()
    leases.give(1, 2, 1, 1_000, b"w", None)
    assert leases.take_expired(1_000) == [] and leases.next_end == 1_001
    assert [seq for seq, _ in leases.take_expired(1_001)] == [1, 2]
    assert len(leases) == 0 and leases.next_end is None


def test_extended_in_part_the_rest_expires_alone() -> None:
    leases = Leases()
    leases.give(1, 3, 1, 1_000, b"w", None)
    leases.give(2, 2, 2, 5_000, b"w", None)
    assert [seq for seq, _ in leases.take_expired(2_000)] == [1, 3]
    assert leases.is_held(2, 2, b"")


def test_a_number_does_not_stand_for_another_node() -> None:
    leases = Leases()
    leases.give(1, 1, 7, 1_000, b"w", None)
    assert leases.is_held(1, 7, b"w") and leases.is_held(1, 7, b"") and leases.is_held(1, 0, b"w")
    assert not leases.is_held(1, 7, b"x") and not leases.is_held(1, 0, b"x") and not leases.is_held(1, 8, b"w")


def test_a_holder_knows_how_many_it_holds() -> None:
    leases, holder = Leases(), Holder()
    leases.give(1, 3, 1, 1_000, b"w", holder)
    leases.end(2)
    leases.give(3, 3, 3, 2_000, b"w", holder)
    assert holder.held == 2 and len(holder.grants) == 2
    leases.end(1)
    leases.end(3)
    assert holder.held == 0 and not holder.grants


def test_numbers_of_a_later_run_or_behind_a_mark_are_larger() -> None:
    leases = Leases()
    leases.begin_run(1)
    first = leases.next_number
    leases.marked = first + NUMBERS_AHEAD
    successor = Leases()
    successor.marked = leases.marked
    successor.begin_run(1)
    assert successor.next_number >= leases.marked > first
    later = Leases()
    later.marked = leases.marked
    later.begin_run(2)
    assert later.next_number > successor.next_number + NUMBERS_AHEAD


def test_rows_give_the_same_leases_again() -> None:
    leases = Leases()
    leases.give(1, 4, 10, 1_000, b"w", None)
    leases.give(9, 9, 14, 2_000, b"x", None)
    leases.end(2)
    again = Leases()
    for first, last, base, deadline, node in leases.rows():
        again.give(first, last, base, deadline, node, None)  # type: ignore[arg-type]
    assert [seq for seq in range(12) if again.get(seq)] == [1, 3, 4, 9]
    assert again.is_held(4, 13, b"") and again.is_held(9, 14, b"") and again.next_end == 1_001


def test_extending_for_ever_costs_nothing() -> None:
    leases = Leases()
    for n in range(10_000):
        leases.give(1, 1, 1, 1_000 + n, b"w", None)
    assert len(leases._due) < 200


def test_what_was_handed_out_together_ends_together_and_only_as_a_whole() -> None:
    leases, holder = Leases(), Holder()
    leases.give(1, 4, 10, 1_000, b"w", holder)
    for first, last, number in ((1, 3, 10), (2, 4, 11), (1, 4, 11), (1, 5, 10), (9, 9, 1)):
        assert leases.end_whole(first, last, number) is None
    assert len(leases) == 4 and holder.held == 4
    grant = leases.end_whole(1, 4, 10)
    assert grant is not None and len(leases) == 0 and holder.held == 0 and not holder.grants
    assert leases.take_expired(9_999) == []


def test_one_that_was_given_again_in_part_is_whole_no_more() -> None:
    leases = Leases()
    leases.give(1, 4, 10, 1_000, b"w", None)
    leases.give(2, 3, 11, 5_000, b"w", None)  # extended
    assert leases.end_whole(1, 4, 10) is None and len(leases) == 4
    assert [seq for seq, _ in leases.take_expired(2_000)] == [1, 4]
    assert leases.end_whole(2, 3, 11) is not None and len(leases) == 0
