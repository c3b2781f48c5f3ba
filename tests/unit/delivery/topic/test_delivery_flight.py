"""What is under way for a topic, and who waits for it."""

from __future__ import annotations

from array import array

from tests.unit.delivery.desk import Outcome, Writer
from tests.unit.delivery.kit import TS, stamped
from topicd.shards.delivery.topic.flight import Flight, InFlight, RunWaiter, Waiter
from topicd.shards.delivery.writing.durability import Need, storage_failed


def entry(flight: Flight, first: int, count: int, need: Need = Need.WRITTEN) -> InFlight:
    made, blob = InFlight(need, first, TS), stamped([b"abc"] * count, first)
    made.frames += bytes(blob.view())
    made.offsets = array("I", blob.offsets)
    flight.take(made, count, 3 * count)
    return made


def test_an_entry_knows_its_records() -> None:
    made = entry(Flight(), 5, 3)
    assert (made.count, made.last_seq, made.content, made.direct) == (3, 7, 9, False)
    blob = made.blob()
    assert (blob.first_seq, blob.last_seq, blob.content_bytes()) == (5, 7, 9)


def test_counts_go_up_and_down_with_entries() -> None:
    flight = Flight()
    a, b = entry(flight, 1, 2), entry(flight, 3, 1)
    assert (flight.count, flight.bytes, list(flight.under_way)) == (3, 9, [a, b])
    flight.leave(a, a.content)
    assert (flight.count, flight.bytes, list(flight.under_way)) == (1, 3, [b])
    flight.leave(b, b.content)
    assert (flight.count, flight.bytes, list(flight.under_way)) == (0, 0, [])


def test_a_batch_that_joins_an_entry_does_not_make_another() -> None:
    flight = Flight()
    made = entry(flight, 1, 2, Need.SYNCED)
    made.offsets = array("I", [*made.offsets, 200])
    flight.take(made, 1, 3)
    assert (flight.count, len(flight.under_way), flight.synced) == (3, 1, 1)


def test_only_those_that_wait_for_a_sync_hold_up_later_ones() -> None:
    flight = Flight()
    made = [entry(flight, 1 + n, 1, need) for n, need in enumerate(Need)]
    assert flight.synced == 1
    for one in made:
        flight.leave(one, one.content)
    assert flight.synced == 0


def test_the_holder_of_a_seq_is_found_at_both_its_ends() -> None:
    flight = Flight()
    a, b = entry(flight, 1, 2), entry(flight, 3, 3)
    assert [flight.holder_of(seq) for seq in range(7)] == [None, a, a, b, b, b, None]


def test_a_direct_write_is_next_when_everything_before_it_has_left() -> None:
    flight = Flight()
    assert not flight.direct_is_next
    before, direct = entry(flight, 1, 1), entry(flight, 2, 1, Need.STORED)
    flight.behind_direct.append(direct)
    assert direct.direct
    assert not flight.direct_is_next
    flight.leave(before, before.content)
    assert flight.direct_is_next


def test_everybody_who_waits_is_answered_with_their_own_seqs() -> None:
    writer, made = Writer(), entry(Flight(), 5, 4)
    made.runs.append(RunWaiter(writer, array("I", [11, 12]).tobytes(), 5))
    made.waiters.append(Waiter(writer, 13, 0, 7, 2))
    made.answer()
    assert writer.told == [
        Outcome("appended", 11, 5, 1),
        Outcome("appended", 12, 6, 1),
        Outcome("appended", 13, 7, 2),
    ]


def test_everybody_who_waits_is_refused() -> None:
    writer, made = Writer(), entry(Flight(), 5, 3)
    made.runs.append(RunWaiter(writer, array("I", [11, 12]).tobytes(), 5))
    made.waiters.append(Waiter(writer, 13, 0, 7, 1))
    made.refuse_waiters(storage_failed(5))
    assert [(told.how, told.request_id) for told in writer.told] == [("storage_failed", n) for n in (11, 12, 13)]
