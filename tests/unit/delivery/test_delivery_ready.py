"""Who is served next: bands, ageing, and the priority that fades after the last read; on a clock that stands still."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.delivery.kit import TS, make_topic
from topicd.clock import ManualClock
from topicd.shards.delivery.ready import Ready, band_of, effective_priority
from topicd.shards.delivery.topic.topic import Topic

PRIORITIES = (1000, 500, 250, 0, -1)  # one for each band
WEIGHTS = (8, 4, 2, 1, 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(TS)


@pytest.fixture
def ready(clock: ManualClock) -> Ready:
    return Ready(clock)


def topics(*priorities: int | None) -> list[Topic]:
    return [make_topic(f"t{n}", n + 1, priority=priority) for n, priority in enumerate(priorities)]


def drained(ready: Ready) -> list[str]:
    found = []
    while (topic := ready.next()) is not None:
        found.append(topic.name)
    return found


def test_first_in_first_out_and_each_at_most_once(ready: Ready) -> None:
    a, b, c = topics(0, 0, 0)
    for topic in (a, b, a, c, a):
        ready.add(topic)
    assert len(ready) == 3
    assert drained(ready) == ["t0", "t1", "t2"]
    assert len(ready) == 0


def test_one_that_moves_again_while_it_is_served_comes_again(ready: Ready) -> None:
    [topic] = topics(0)
    ready.add(topic)
    assert ready.next() is topic
    ready.add(topic)
    assert ready.next() is topic


@pytest.mark.parametrize("dealt", [False, True])
def test_one_that_is_gone_is_not_served(ready: Ready, dealt: bool) -> None:
    a, b = topics(0, 0)
    ready.add(a)
    ready.add(b)
    if dealt:
        ready.settle()
    ready.forget(a)
    ready.forget(a)
    assert (len(ready), drained(ready)) == (1, ["t1"])


def test_bands() -> None:
    floors = [band_of(priority) for priority in (2000, 750, 749, 500, 499, 250, 249, 0, -1, -1000)]
    assert floors == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [band_of(priority, lower=1) for priority in (1000, 500, 0, -1)] == [1, 2, 4, 4]


@pytest.mark.parametrize("comes_back", [0, 1])
def test_five_saturated_topics_are_served_as_their_weights_say(ready: Ready, comes_back: int) -> None:
    """Exactly, whether a topic has new records at once or when another one was served meanwhile."""
    for topic in topics(*PRIORITIES):
        ready.add(topic)
    ready.settle()
    served: Counter[str] = Counter()
    away: list[Topic] = []
    for _ in range(16 * 100):
        topic = ready.next()
        assert topic is not None
        served[topic.name] += 1
        away.append(topic)
        while len(away) > comes_back:
            ready.add(away.pop(0))
    assert [served[f"t{n}"] for n in range(5)] == [weight * 100 for weight in WEIGHTS]


def test_a_band_that_has_nothing_leaves_its_turns_to_the_others(ready: Ready) -> None:
    high, low = topics(1000, -5)
    others = [make_topic(f"low{n}", 100 + n, priority=-5) for n in range(20)]
    for topic in [high, low, *others]:
        ready.add(topic)
    assert drained(ready)[0] == "t0"
    assert len(ready) == 0


def test_within_a_band_who_came_first_goes_first(ready: Ready) -> None:
    given = topics(10, 20, 30, 5)
    for topic in given:
        ready.add(topic)
    ready.settle()
    assert drained(ready) == ["t0", "t1", "t2", "t3"]


def test_who_waits_climbs_by_a_hundred_each_second(ready: Ready, clock: ManualClock) -> None:
    low, other = topics(-200, 0)
    ready.add(low)
    ready.add(other)
    ready.settle()
    seen = []
    for _ in range(12):
        seen.append(effective_priority(low, clock.now_ms(), clock.monotonic()))
        clock.advance(1_000)
    assert seen == [-200, -100, 0, 100, 200, 300, 400, 500, 600, 700, 800, 800]


@pytest.mark.parametrize(("waited_ms", "priority", "first"), [(9_994, -250, "flood"), (9_996, -250, "low")])
def test_who_waits_is_in_the_highest_band_when_its_age_says_so(
    ready: Ready, clock: ManualClock, waited_ms: int, priority: int, first: str
) -> None:
    """At 750: -250, and 1000 for ten seconds, rounded. A newcomer of its band comes behind it."""
    low, flood = topics(priority, 1000)
    ready.add(low)
    ready.add(make_topic("also", 9, priority=-1000))
    ready.settle()
    clock.advance(waited_ms)
    ready.add(flood)
    found = ready.next()
    assert found is (low if first == "low" else flood)


def test_ages_are_looked_at_every_50_ms_only(ready: Ready, clock: ManualClock) -> None:
    """At 49 ms nobody has climbed, at 50 ms whoever had 5 to go has."""
    for waited_ms, expected in ((49, ["t1", "t0"]), (50, ["t0", "t1"])):
        a, b = topics(245, 250)
        ready.add(a)
        ready.add(make_topic("also", 9, priority=-1000))
        ready.settle()
        clock.advance(waited_ms)
        ready.add(b)
        assert [name for name in drained(ready) if name != "also"] == expected
        ready = Ready(clock)


def test_age_is_gone_once_it_was_served(ready: Ready, clock: ManualClock) -> None:
    low, other = topics(0, 0)
    ready.add(low)
    ready.add(other)
    ready.settle()
    clock.advance(5_000)
    assert effective_priority(low, clock.now_ms(), clock.monotonic()) == 500
    ready.add(low)  # moving again changes nothing
    assert effective_priority(low, clock.now_ms(), clock.monotonic()) == 500
    assert ready.next() is low
    assert effective_priority(low, clock.now_ms(), clock.monotonic()) == 0
    assert ready.worst_wait_s == 5.0


def test_the_lowest_against_a_flood_in_the_highest_band(ready: Ready, clock: ManualClock) -> None:
    """A thousand topics of the highest band that are never done: the lowest has its share of the turns at once."""
    low = make_topic("low", 5_000, priority=-1000)
    flood = topics(*[1000] * 1_000)
    for topic in [*flood, low]:
        ready.add(topic)
    served = 1
    while (topic := ready.next()) is not low:
        assert topic is not None
        served += 1
        ready.add(topic)
        clock.advance(1)
    assert served == 9  # eight of the highest band, then the only other one


def test_many_of_a_low_band_against_a_flood_none_waits_longer_than_its_age_allows(
    ready: Ready, clock: ManualClock
) -> None:
    """400 topics of the lowest band, one of the highest that always has something; a service takes 20 ms. Without
    ageing the last of them would wait for 9 * 400 services, 72 s."""
    flood = make_topic("flood", 5_000, priority=0)
    lows = topics(*[-250] * 400)
    for topic in [flood, *lows]:
        ready.add(topic)
    done: dict[str, float] = {}
    while len(done) < len(lows):
        topic = ready.next()
        assert topic is not None
        if topic is flood:
            ready.add(topic)
        else:
            done[topic.name] = clock.monotonic()
        clock.advance(20)
    assert max(done.values()) < 10 + 400 * 0.02 * 1.2
    assert list(done) == [topic.name for topic in lows]  # first in, first out all the way up


def test_parked_ones_come_back_with_their_age(ready: Ready, clock: ManualClock) -> None:
    a, b = topics(-5, -5)
    ready.add(a)
    ready.add(b)
    ready.settle()
    clock.advance(1_000)
    assert ready.next() is a
    ready.park(a, ready.since)
    assert (len(ready), list(ready.parked)) == (1, [a.id])
    clock.advance(1_000)
    assert effective_priority(a, clock.now_ms(), clock.monotonic()) == 195
    ready.unpark()
    assert sorted(drained(ready)) == ["t0", "t1"]
    assert a.waiting_since < 0


# ---- effective priority ----


def test_a_topic_that_is_read_comes_first_for_a_while() -> None:
    topic = make_topic()
    assert effective_priority(topic, TS, 0.0) == 0  # never read
    topic.last_read_ms = TS
    boosted = [effective_priority(topic, TS + idle, 0.0) for idle in (0, 30_000, 60_000, 299_999, 300_000)]
    assert boosted == [500, 250, 125, 0, 0]  # 0.49 is none


@pytest.mark.parametrize("priority", [0, 10, -1000])
def test_a_priority_that_was_given_takes_the_place_of_the_automatic_one(priority: int) -> None:
    topic = make_topic(priority=priority)
    topic.last_read_ms = TS
    assert effective_priority(topic, TS, 0.0) == priority


def test_a_clock_that_went_back_boosts_no_more_than_a_read_now() -> None:
    topic = make_topic()
    topic.last_read_ms = TS
    assert effective_priority(topic, TS - 1_000_000, 0.0) == 500


@pytest.mark.parametrize("priority", [None, 0, -5])
def test_without_auto_priority_only_the_own_one_counts(priority: int | None) -> None:
    topic = make_topic(priority=priority, auto_priority=False)
    topic.last_read_ms = TS
    assert effective_priority(topic, TS, 0.0) == (priority or 0)
