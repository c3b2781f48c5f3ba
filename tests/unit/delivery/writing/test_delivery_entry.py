"""What is on its way to the log, and what its outcome means."""

from __future__ import annotations

from topicd.errors import TopicdError
from topicd.shards.delivery.writing.durability import Need, storage_failed
from topicd.shards.delivery.writing.entry import ControlEntry, Entry


def test_a_change_hears_of_its_own_outcome_only() -> None:
    applied: list[str] = []
    refused: list[TopicdError] = []
    entry = ControlEntry(Need.WRITTEN, lambda: applied.append("applied"), refused.append)
    entry.answer()
    assert (applied, refused) == ([], [])
    entry.committed()
    assert (applied, refused) == (["applied"], [])
    error = storage_failed(5)
    other = ControlEntry(Need.WRITTEN, lambda: applied.append("applied"), refused.append)
    other.failed(error)
    assert (applied, refused) == (["applied"], [error])


def test_nobody_has_to_listen() -> None:
    for entry in (Entry(Need.PLACED), ControlEntry(Need.PLACED)):
        entry.answer()
        entry.committed()
        entry.failed(storage_failed(5))


def test_by_itself_an_entry_has_nobody_waiting_for_records() -> None:
    entry = Entry(Need.SYNCED)
    assert (entry.need, entry.awaited, entry.ring_end, entry.size) == (Need.SYNCED, False, 0, 0)
