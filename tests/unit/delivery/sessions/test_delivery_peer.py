"""The other end of a connection says what flushing and going on mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topicd.shards.delivery.sessions.outbox import Outbox
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.sessions.session import Session


@pytest.mark.parametrize("call", [Peer.flush, Peer.go_on])
def test_a_peer_that_forgets_a_duty_is_noticed(call: Callable[[Peer], None]) -> None:
    with pytest.raises(NotImplementedError):
        call(Peer())


def test_a_session_says_both() -> None:
    assert issubclass(Session, Peer)
    assert Outbox.flush is not Peer.flush
    assert Session.go_on is not Peer.go_on
