"""Which seqs are read, and by which task. Promise: the end is fixed when the plan is made; a plan asks for the state of
each topic and looks at no record, however many there are (but for one per topic where a timestamp is given).

Ranges are cut where full segments end, as near to even as that allows: seqs start at 1 and a segment is full at
SEGMENT_RECORDS unless the daemon is told otherwise, so no question is asked, and the same cuts come out whenever a
range is planned again. A cut that falls inside a segment all the same costs a second mapping of it, nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from topicd.client.blocking.client import Client
from topicd.client.core.answers import TopicInfo, TopicState
from topicd.config import Settings
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.spark.bounds import EARLIEST, LATEST, Bound, check_order
from topicd.spark.options import ReadOptions

WORTH_A_TASK = 50_000  # records; a task costs about as long as reading these
SEGMENT_RECORDS = Settings().segment_max_records

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LITERAL = re.compile(r"[A-Za-z0-9_:-]*")


@dataclass(frozen=True, slots=True)
class Range:
    """Seqs above `after`, up to `up_to`, of the topic with that id: another of the same name is another topic."""

    topic: str
    topic_id: int
    after: int
    up_to: int

    def __len__(self) -> int:
        return max(0, self.up_to - self.after)


# ---- topics ----


def topic_names(client: Client, options: ReadOptions) -> list[str]:
    """Those named, or those there are now that fit the pattern, in order."""
    if options.pattern is None:
        return sorted(options.topics)
    return [found.topic for found in matching(client, options.pattern)]


def matching(client: Client, pattern: str) -> Iterator[TopicInfo]:
    """Topics whose whole name fits."""
    fits = re.compile(pattern).fullmatch
    return (found for found in client.topics(literal_prefix(pattern)) if fits(found.topic))


def literal_prefix(pattern: str) -> str:
    """What every name that fits begins with: the daemon lists no others."""
    if "|" in pattern:
        return ""
    found = _LITERAL.match(pattern)
    literal = found.group() if found is not None else ""
    rest = pattern[len(literal) :]
    return literal[:-1] if rest[:1] in ("*", "?", "{") else literal


def newest(found: TopicInfo | TopicState, options: ReadOptions) -> int:
    """The seq a topic ends at for this reader. Never below it later: what a commit publishes comes behind it."""
    return found.settled_seq if options.committed else found.head_seq


def topic_state(client: Client, topic: str) -> TopicState | None:
    """None when there is none of that name."""
    try:
        return client.state(topic, touch=False)
    except TopicNotFound:
        return None


# ---- bounds ----


def batch_ranges(client: Client, options: ReadOptions) -> list[Range]:
    """What a batch query reads of each topic, in the order of their names."""
    if options.starting.default == LATEST or options.ending.default == EARLIEST:
        raise InvalidRequest("a batch query begins at earliest, a seq or a time, and ends at latest, a seq or a time")
    ranges = []
    topics = topic_names(client, options)
    check_named(options, topics)
    for topic in topics:
        state = client.state(topic)
        after = cursor_at(client, state, options, options.starting, "startingOffsets")
        up_to = cursor_at(client, state, options, options.ending, "endingOffsets")
        if options.starting.ts_ms is not None or options.starting.of(topic) != EARLIEST:
            check_order(topic, after, up_to)
        ranges.append(without_lost(Range(topic, state.topic_id, after, up_to), state, options))
    return [found for found in ranges if len(found)]


def check_named(options: ReadOptions, there: list[str]) -> None:
    """Is every topic there that an offset is given for?"""
    for option, bound in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        for topic, _ in bound.seqs:
            if topic not in there:
                raise TopicNotFound(f"option {option} names topic {topic!r}, which is not there", topic=topic)


def cursor_at(client: Client, state: TopicState, options: ReadOptions, bound: Bound, option: str) -> int:
    """The last seq before the bound."""
    end = newest(state, options)
    if bound.ts_ms is not None:
        return min(cursor_at_time(client, state, bound.ts_ms), end)
    position = bound.of(state.topic)
    if position == EARLIEST:
        return state.earliest_seq - 1
    if position == LATEST:
        return end
    if end + 1 < int(position) <= state.head_seq + 1:
        raise InvalidRequest(
            f"option {option} says {position} for topic {state.topic}, of which whole commits end at {end}: "
            "what lies behind is being committed (topicctl stages list says by whom)"
        )
    if int(position) > end + 1:
        raise InvalidRequest(
            f"option {option} says {position} for topic {state.topic}, whose newest record is {state.head_seq}"
        )
    return max(int(position) - 1, 0)


def cursor_at_time(client: Client, state: TopicState, ts_ms: int) -> int:
    moment = _EPOCH + timedelta(milliseconds=ts_ms)
    found = client.fetch(state.topic, limit=1, from_time=moment, metadata_only=True)
    return min(found[0].seq - 1, state.head_seq) if len(found) else state.head_seq


def check_not_shrunk(state: TopicState, seq: int, who: str) -> None:
    """A topic never ends before what was read of it."""
    if state.head_seq < seq:
        raise InvalidRequest(
            f"topic {state.topic} ends at {state.head_seq}, but {who} says that {seq} was read: "
            "its newest records are gone, and their seqs are being given out again"
        )


def without_lost(wanted: Range, state: TopicState, options: ReadOptions) -> Range:
    """The range without what cap or TTL took before the plan was made."""
    floor = min(state.evict_floor - 1, wanted.up_to)
    if floor <= wanted.after:
        return wanted
    options.losses.report(
        wanted.topic, wanted.topic_id, wanted.after + 1, floor, "cap or ttl", gap_to=state.evict_floor - 1
    )
    return replace(wanted, after=floor)


# ---- tasks ----


def split(ranges: list[Range], options: ReadOptions) -> list[tuple[Range, ...]]:
    """What each task reads; small topics share one. The same for the same ranges and options."""
    total = sum(map(len, ranges))
    if not total:
        return []
    tasks = options.min_partitions or min(os.cpu_count() or 1, -(-total // WORTH_A_TASK))
    if options.max_records_per_partition is not None:
        size = min(options.max_records_per_partition, -(-total // tasks))
        return list(_filled(ranges, [*range(size, total, size), total], 0))
    ends = [total * (task + 1) // tasks for task in range(max(0, tasks - total), tasks)]
    return list(_filled(ranges, ends, total // tasks // 10))


def _filled(ranges: list[Range], ends: list[int], slack: int) -> Iterator[tuple[Range, ...]]:
    """Tasks that end after so many records each, counted from the beginning, more or less up to `slack`."""
    task: list[Range] = []
    done, end = 0, ends[0]
    for found in ranges:
        rest = found
        while len(rest):
            piece = replace(rest, up_to=_cut(rest, rest.after + end - done, slack))
            task.append(piece)
            done += len(piece)
            rest = replace(rest, after=piece.up_to)
            if done < ends[-1] and (len(rest) or done == end):
                yield tuple(task)
                task, end = [], next(number for number in ends if number > max(done, end))
    if task:
        yield tuple(task)


def _cut(found: Range, seq: int, slack: int) -> int:
    """Where a task ends that should end at seq: at the end of a full segment if one is near."""
    if seq >= found.up_to:
        return found.up_to
    boundary = round(seq / SEGMENT_RECORDS) * SEGMENT_RECORDS
    return boundary if found.after < boundary < found.up_to and abs(boundary - seq) <= slack else seq
