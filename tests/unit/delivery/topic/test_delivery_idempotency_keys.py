"""Free idempotency keys: remembered for the topic's window, bounded in number."""

from __future__ import annotations

import pytest

from tests.unit.delivery.kit import make_topic
from topicd.clock import ManualClock
from topicd.shards.delivery.topic import idempotency_keys as keys
from topicd.shards.delivery.topic.idempotency_keys import IdempotencyKeys


def test_a_key_is_answered_until_its_window_ends() -> None:
    clock, topic = ManualClock(), make_topic(idempotency_window_ms=1000)
    window = IdempotencyKeys(clock)
    window.remember(topic.id, b"k", 5, 2, topic.config.idempotency_window_ms)
    clock.advance(1000)
    assert window.lookup(topic.id, b"k") == (5, 2)
    clock.advance(1)
    assert window.lookup(topic.id, b"k") is None


def test_a_key_belongs_to_its_topic() -> None:
    clock, topic, other = ManualClock(), make_topic(), make_topic()
    other.id = topic.id + 1
    window = IdempotencyKeys(clock)
    window.remember(topic.id, b"k", 1, 1, topic.config.idempotency_window_ms)
    assert window.lookup(other.id, b"k") is None


def test_a_forgotten_key_is_new_again() -> None:
    topic = make_topic()
    window = IdempotencyKeys(ManualClock())
    window.remember(topic.id, b"k", 1, 1, topic.config.idempotency_window_ms)
    window.forget(topic.id, b"k")
    window.forget(topic.id, b"")
    assert window.lookup(topic.id, b"k") is None


def test_an_expired_key_may_be_remembered_anew() -> None:
    clock, topic = ManualClock(), make_topic(idempotency_window_ms=10)
    window = IdempotencyKeys(clock)
    window.remember(topic.id, b"k", 1, 1, topic.config.idempotency_window_ms)
    clock.advance(11)
    window.remember(topic.id, b"k", 9, 1, topic.config.idempotency_window_ms)
    assert window.lookup(topic.id, b"k") == (9, 1)


def test_the_oldest_keys_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_KEPT", 3)
    topic = make_topic()
    window = IdempotencyKeys(ManualClock())
    for number in range(1, 6):
        window.remember(topic.id, b"%d" % number, number, 1, topic.config.idempotency_window_ms)
    assert [window.lookup(topic.id, b"%d" % n) for n in range(1, 6)] == [None, None, (3, 1), (4, 1), (5, 1)]
