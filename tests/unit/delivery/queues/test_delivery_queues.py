"""Queues by name and by id."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import NotAQueue, TopicNotFound


def test_a_queue_is_found_by_name_and_id_and_a_log_is_none(desk: Desk) -> None:
    hands, log = Hands(desk), desk.topic("orders")
    queues = desk.parts.queues
    assert queues.named("jobs") is queues.numbered(hands.topic.id) is queues.of(hands.topic)
    for find in (lambda: queues.named("orders"), lambda: queues.numbered(log.id)):
        with pytest.raises(NotAQueue):
            find()
    with pytest.raises(TopicNotFound):
        queues.numbered(999)


def test_a_start_goes_on_with_what_has_a_time(desk: Desk) -> None:
    hands = Hands(desk)
    hands.put(delay_ms=100)
    assert hands.counts() == (0, 0, 1)
    desk.parts.queues._services.clear()
    desk.parts.queues.start()
    assert len(desk.parts.deadlines) > 0
