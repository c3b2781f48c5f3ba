"""The oracle itself: every kind of violation is found, and what is allowed is not blamed."""

from __future__ import annotations

import pytest

from tests.support.oracle import Oracle, Seen

T = "t"


@pytest.fixture
def oracle() -> Oracle:
    """Seqs 1 to 3 and 4 to 5 are acknowledged, x and y were sent without an answer."""
    made = Oracle()
    made.acked(made.submit(T, "p", [b"a", b"b", b"c"], tag="old"), 1)
    made.acked(made.submit(T, "q", [b"d", b"e"]), 4)
    made.submit(T, "p", [b"x", b"y"])
    return made


def records(text: str, start: int = 1) -> list[Seen]:
    """A letter per record; a dot is a seq without one."""
    return [Seen(seq, letter.encode()) for seq, letter in enumerate(text, start) if letter != "."]


def test_what_was_acknowledged_is_enough_and_what_was_sent_is_allowed(oracle: Oracle) -> None:
    assert oracle.check(T, records("abcde")) == []
    assert oracle.check(T, records("abcdexy"), head_seq=7) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("abcd", "acknowledged and lost"),
        ("ab.de", "acknowledged and lost"),
        ("", "acknowledged and lost"),
        ("acbde", "not at the seq"),
        ("abcdea", "stored twice"),
        ("abcdez", "never sent"),
        ("abcdex", "half a batch"),
        ("abcdex.y", "half a batch"),
        ("abcde.xy", "nothing at seq"),
    ],
)
def test_violation_is_named(oracle: Oracle, found: str, problem: str) -> None:
    assert any(problem in line for line in oracle.check(T, records(found)))


def test_seqs_must_rise(oracle: Oracle) -> None:
    assert any("do not rise" in line for line in oracle.check(T, [*records("abcde"), Seen(5, b"x"), Seen(6, b"y")]))


def test_head_must_not_go_back_even_when_unacknowledged_records_vanish(oracle: Oracle) -> None:
    assert oracle.check(T, records("abcdexy")) == []
    assert any("head went back" in line for line in oracle.check(T, records("abcde")))


def test_same_seq_for_two_batches_is_found(oracle: Oracle) -> None:
    oracle.acked(oracle.submit(T, "r", [b"f"]), 5)
    assert any("acknowledged twice" in line for line in oracle.check(T, records("abcde")))


def test_producer_out_of_order_is_found(oracle: Oracle) -> None:
    early, late = oracle.submit(T, "r", [b"f"]), oracle.submit(T, "r", [b"g"])
    oracle.acked(late, 6)
    oracle.acked(early, 7)
    assert any("out of order" in line for line in oracle.check(T, records("abcdegf")))


def test_refused_batch_must_not_appear(oracle: Oracle) -> None:
    batch = oracle.submit(T, "r", [b"f"])
    oracle.refused(batch)
    assert any("refused" in line for line in oracle.check(T, records("abcdef")))


def test_delete_by_seq_takes_what_is_below_and_nothing_else(oracle: Oracle) -> None:
    removal = oracle.delete(T, before_seq=3)
    assert oracle.check(T, records("cde", 3)) == []
    assert oracle.check(T, records("abcde")) == []
    oracle.deleted(removal)
    assert oracle.check(T, records("cde", 3)) == []
    assert any("deleted and yet there" in line for line in oracle.check(T, records("bcde", 2)))
    assert any("lost" in line for line in oracle.check(T, records("de", 4)))


def test_delete_by_tag_takes_what_was_stored_before_it(oracle: Oracle) -> None:
    removal = oracle.delete(T, tag="old")
    during = oracle.submit(T, "r", [b"f"], tag="old")
    oracle.acked(during, 6)
    oracle.deleted(removal)
    after = oracle.submit(T, "r", [b"g"], tag="old")
    oracle.acked(after, 7)
    assert oracle.check(T, records("defg", 4)) == []
    assert oracle.check(T, records("de.g", 4)) == []
    assert any("lost" in line for line in oracle.check(T, records("def.", 4)))
    assert any("deleted and yet there" in line for line in oracle.check(T, records("abcdefg")))


def test_records_of_a_deleted_topic_never_return(oracle: Oracle) -> None:
    oracle.topic_deleted(T)
    assert oracle.check(T, []) == []
    assert any("deleted" in line for line in oracle.check(T, records("a")))


def test_cap_keeps_the_newest_and_only_those() -> None:
    oracle = Oracle()
    oracle.topic(T, cap_records=2)
    oracle.acked(oracle.submit(T, "p", [b"a", b"b", b"c"]), 1)
    assert oracle.check(T, records("bc", 2)) == []
    assert any("lost" in line for line in oracle.check(T, records("c", 3)))
    assert any("deleted and yet there" in line for line in oracle.check(T, records("abc")))


def test_watcher_must_have_everything_once_and_nothing_that_is_not_there(oracle: Oracle) -> None:
    there = records("abcdexy")
    assert oracle.check_watched(T, there, there) == []
    assert any("missed" in line for line in oracle.check_watched(T, records("ab.dexy"), there))
    assert any("rise" in line for line in oracle.check_watched(T, [*there, *records("y", 7)], there))
    assert any("then gone" in line for line in oracle.check_watched(T, there, records("abcde")))
