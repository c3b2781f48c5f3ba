"""A connection begins as a stranger with nothing under way, and its bytes are somebody else's duty."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.shards.delivery.sessions.connection import Connection
from topicd.tokens import EVERYTHING


@pytest.fixture
def connection(desk: Desk) -> Connection:
    return Connection(desk.parts.place, desk.parts.agenda, desk.parts.counters)


def test_it_begins_as_a_stranger_with_nothing_under_way(connection: Connection) -> None:
    assert not connection.greeted
    assert not connection.needs_token
    assert connection.rights is EVERYTHING  # what a user id vouches for; connections.py asks others for a token
    assert (connection.subscriptions, connection.long_polls, connection.in_flight) == ({}, set(), 0)
    assert connection.waiting_since == 0.0
    assert connection.write_blocked  # there is no transport yet


def test_two_of_them_share_nothing(desk: Desk) -> None:
    a, b = (Connection(desk.parts.place, desk.parts.agenda, desk.parts.counters) for _ in range(2))
    assert a.subscriptions is not b.subscriptions
    assert a.long_polls is not b.long_polls


def test_who_takes_bytes_says_how_many_wait(connection: Connection) -> None:
    with pytest.raises(NotImplementedError):
        _ = connection.incomplete_bytes
    with pytest.raises(NotImplementedError):
        connection.relax()


def test_a_session_says_both(desk: Desk) -> None:
    session = desk.line().session
    assert session.incomplete_bytes == 0
    session.relax()
