"""Who gets jobs: claims once, streams as long as they hold fewer than they may."""

from __future__ import annotations

from typing import Any

from tests.unit.delivery.kit import make_topic
from topicd.shards.delivery.queues.takers import NONE, WaitingClaim, WorkStream


class Out:
    write_blocked = False

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def jobs(self, *what: Any) -> None:
        self.sent.append(what)

    def notice(self, request_id: int, body: dict[str, Any]) -> None:
        self.sent.append((request_id, body["event"]))

    def refused(self, request_id: int, error: Any) -> None:
        self.sent.append((request_id, error.code))


def test_a_claim_is_answered_once() -> None:
    out: Any = Out()
    claim = WaitingClaim(out, 7, b"w", 3, 0)
    claim.enlist()
    assert claim.wants == 3 and claim.holder is None and claim.among == {7: claim}
    claim.deliver(make_topic(), 0, NONE)
    assert claim.wants == 0 and claim.among == {} and len(out.sent) == 1


def test_a_stream_wants_what_it_does_not_hold_and_nothing_while_nobody_reads() -> None:
    out: Any = Out()
    stream = WorkStream(out, 7, b"w", 3, 0)
    assert stream.wants == 3 and stream.holder is stream
    stream.held = 2
    assert stream.wants == 1
    out.write_blocked = True
    assert stream.wants == 0


def test_a_stream_is_not_sent_that_there_is_nothing() -> None:
    out: Any = Out()
    WorkStream(out, 7, b"w", 3, 0).deliver(make_topic(), 0, NONE)
    assert out.sent == []


def test_both_are_told_that_the_queue_is_gone() -> None:
    out: Any = Out()
    WorkStream(out, 7, b"w", 3, 0).topic_gone(make_topic())
    WaitingClaim(out, 8, b"w", 3, 0).topic_gone(make_topic())
    assert out.sent == [(7, "topic_deleted"), (8, "topic_not_found")]
