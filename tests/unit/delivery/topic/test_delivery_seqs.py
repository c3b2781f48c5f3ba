"""stored <= visible <= head, whatever happens; and seqs promised ahead."""

from __future__ import annotations

import random

import pytest

from topicd.shards.delivery.topic.seqs import FIRST_BLOCK, Seqs


def holds(seqs: Seqs) -> bool:
    return 0 <= seqs.stored <= seqs.visible <= seqs.head


@pytest.mark.parametrize("seed", range(10))
def test_the_invariant_holds_through_any_life(seed: int) -> None:
    chance, seqs, under_way = random.Random(seed), Seqs(), []
    for step in range(500):
        move = chance.choice(["give", "commit", "fail", "store"])
        if move == "give":
            under_way.append(seqs.head + 1)
            seqs.give_out(chance.randint(1, 5), step)
        elif move == "commit" and under_way:
            under_way.pop(0)
            seqs.commit(under_way[0] - 1 if under_way else seqs.head)
        elif move == "fail" and under_way:
            seqs.roll_back(under_way.pop())
        elif move == "store":
            seqs.store(chance.randint(0, seqs.visible))
        assert holds(seqs), f"seed {seed}, step {step}: {move}"


def test_what_failed_is_given_out_again() -> None:
    seqs = Seqs()
    seqs.give_out(3, 1)
    seqs.give_out(2, 2)
    seqs.roll_back(4)
    assert seqs.head == 3
    seqs.roll_back(1)
    assert seqs.head == 0


def test_a_failure_of_what_was_taken_back_already_changes_nothing() -> None:
    seqs = Seqs()
    seqs.give_out(5, 1)
    seqs.roll_back(2)
    seqs.roll_back(4)
    assert seqs.head == 1


def test_stored_never_goes_back() -> None:
    seqs = Seqs()
    seqs.load(10, 7)
    seqs.store(4)
    assert (seqs.stored, seqs.visible, seqs.head, seqs.last_ts) == (10, 10, 10, 7)


def test_loading_does_not_take_time_back() -> None:
    seqs = Seqs()
    seqs.last_ts = 9
    seqs.load(10, 7)
    assert seqs.last_ts == 9


# ---- seqs promised ahead ----


def test_a_new_topic_needs_a_mark_before_its_first_seq() -> None:
    seqs = Seqs()
    assert seqs.next_mark() >= FIRST_BLOCK
    assert seqs.next_mark() == 0  # one is under way


def test_the_next_mark_is_asked_for_before_the_last_one_is_used_up() -> None:
    seqs = Seqs()
    seqs.reserve(FIRST_BLOCK)
    asked = 0
    while not asked:
        seqs.give_out(1, 1)
        assert seqs.head < seqs.reserved
        asked = seqs.next_mark()
    assert asked > seqs.reserved


def test_blocks_grow_with_the_pace_up_to_a_bound() -> None:
    seqs, marks = Seqs(), []
    for _ in range(30):
        mark = seqs.next_mark()
        assert mark > seqs.head
        seqs.mark_stored(mark)
        marks.append(mark - seqs.head)
        seqs.give_out(mark - seqs.head, 1)
    assert marks == sorted(marks)
    assert marks[-1] == 1 << 20


def test_a_mark_that_failed_is_asked_for_again() -> None:
    seqs = Seqs()
    seqs.next_mark()
    seqs.mark_failed()
    assert (seqs.reserved, seqs.reserving) == (0, 0)
    assert seqs.next_mark() > 0


def test_a_mark_never_goes_back() -> None:
    seqs = Seqs()
    seqs.reserve(100)
    seqs.reserve(50)
    seqs.mark_stored(70)
    assert (seqs.reserved, seqs.reserving) == (100, 100)


def test_marks_are_forgotten_when_the_class_needs_none() -> None:
    seqs = Seqs()
    seqs.reserve(100)
    seqs.forget_marks()
    assert (seqs.reserved, seqs.reserving) == (0, 0)
