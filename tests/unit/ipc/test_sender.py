"""The sender by itself: when it wants to be called again."""

from __future__ import annotations

from topicd.errors import Throttled
from topicd.ipc.protocol.codec import answer_map
from topicd.ipc.protocol.cutter import Cutter
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox
from topicd.ipc.protocol.retry import Backoff
from topicd.ipc.protocol.sender import Sender
from topicd.ipc.protocol.wire import ANSWER, HEADER, error_message, map_message

DEADLINE = 1_000.0


def request_id_of(piece: bytes | bytearray) -> int:
    return int(HEADER.unpack_from(piece)[3])


def feed(sender: Sender, message: bytes, now: float) -> None:
    cutter = Cutter()
    cutter.window()[: len(message)] = message
    cutter.received(len(message))
    sender.feed(cutter, now)


def refused_at_ten() -> Sender:
    """One batch that was refused at 10.0 and may go again at 10.5."""
    sender = Sender(8)
    outbox = TopicOutbox("t", Backoff(lambda: 0.0))
    sender.attach(outbox)
    sender.connect()
    sender.submit(OutBatch(outbox, b"frames", 1, DEADLINE))
    (opening,) = sender.output(9.0)
    assert answer_map(bytes(opening)[HEADER.size :]) == {"topic": "t"}
    feed(sender, map_message(Op.OPEN | ANSWER, request_id_of(opening), {"topic_id": 1}), 9.0)
    (append,) = sender.output(9.0)
    feed(sender, error_message(request_id_of(append), Throttled("full", retry_after_ms=500)), 10.0)
    return sender


def test_a_refused_batch_is_sent_again_when_its_pause_is_over() -> None:
    sender = refused_at_ten()
    assert sender.output(10.1) == []
    assert sender.wake_at() == 10.5
    assert len(sender.output(10.5)) == 1
    assert sender.wake_at() == DEADLINE


def test_a_pause_that_ends_between_asking_and_waiting_is_not_slept_over() -> None:
    sender = refused_at_ten()
    assert sender.output(10.499) == []
    assert sender.wake_at() == 10.5
    assert len(sender.output(10.501)) == 1


def test_who_cannot_send_anyway_is_not_woken_for_it() -> None:
    sender = refused_at_ten()
    assert sender.output(10.1) == []
    assert sender.wake_at(blocked=True) == DEADLINE
