"""What waits to be stored: whoever does the work is told, and a topic that is gone is in none of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.kit import make_topic, publish
from topicd.shards.delivery.storing.backlog import Backlog


@pytest.fixture
def backlog() -> Backlog:
    made = Backlog()
    made.on_work = lambda: story(made).append("work")
    made.on_direct = lambda topic: story(made).append("direct")
    made.on_doomed = lambda: story(made).append("doomed")
    return made


def story(backlog: Backlog) -> list[str]:
    vars(backlog).setdefault("story", [])
    return vars(backlog)["story"]  # type: ignore[no-any-return]


def collections(backlog: Backlog) -> dict[str, Any]:
    return {name: kept for name, kept in vars(backlog).items() if isinstance(kept, dict)}


def test_new_records_are_counted_and_start_work(backlog: Backlog) -> None:
    topic = make_topic()
    blob = publish(topic, [b"abc"])
    backlog.note_records(topic, blob)
    size = blob.end - blob.start
    assert (backlog.tail_bytes, backlog.total_bytes, backlog.dirty) == (size, size, {topic.id: topic})
    assert story(backlog) == ["work"]


def test_records_that_are_never_stored_are_no_work(backlog: Backlog) -> None:
    topic = make_topic(durability="ephemeral")
    backlog.note_records(topic, publish(topic, [b"abc"]))
    assert (backlog.tail_bytes, backlog.total_bytes, backlog.dirty, story(backlog)) == (0, 0, {}, [])


def test_each_kind_of_work_is_told_to_its_doer(backlog: Backlog) -> None:
    topic = make_topic()
    backlog.note_marks(topic)
    backlog.note_direct(topic)
    assert (story(backlog), backlog.metadata_changed) == (["work", "direct"], False)
    backlog.note_reclaimable(topic)
    assert (story(backlog), backlog.metadata_changed) == (["work", "direct"], True)
    assert backlog.unmarked == backlog.direct == backlog.reclaimable == {topic.id: topic}


def test_a_topic_that_is_gone_is_in_none_of_them(backlog: Backlog) -> None:
    gone, other = make_topic("gone", 1), make_topic("other", 2)
    for topic in (gone, other):
        backlog.note_records(topic, publish(topic, [b"abc"]))
        for work in collections(backlog).values():
            work[topic.id] = topic
        backlog.unsure_marks.add((topic.id, 1))
    assert len(collections(backlog)) == 7
    left = backlog.tail_bytes // 2
    backlog.forget(gone)
    assert all(list(work) == [2] for work in collections(backlog).values())
    assert (backlog.unsure_marks, backlog.tail_bytes, backlog.doomed) == ({(2, 1)}, left, [1])
    assert backlog.metadata_changed
    assert story(backlog)[-1] == "doomed"


def test_what_was_never_counted_is_not_taken_off(backlog: Backlog) -> None:
    topic = make_topic(durability="ephemeral")
    backlog.note_records(topic, publish(topic, [b"abc"]))
    backlog.forget(topic)
    assert backlog.tail_bytes == 0
