"""Who is told of a topic's moves says what that means."""

from __future__ import annotations

import pytest

from topicd.shards.delivery.reading.long_polls import LongPoll
from topicd.shards.delivery.reading.subscriptions import TopicFeed
from topicd.shards.delivery.topic.follower import Follower


@pytest.mark.parametrize("call", [Follower.moved, Follower.gone])
def test_a_follower_that_forgets_a_duty_is_noticed(call: object) -> None:
    with pytest.raises(NotImplementedError):
        call(Follower())  # type: ignore[operator]


@pytest.mark.parametrize("kind", [LongPoll, TopicFeed])
def test_those_there_are_say_both(kind: type[Follower]) -> None:
    assert {"moved", "gone"} <= set(vars(kind))
