"""One topic: the class of its next write, a change of its configuration, and what those who wait are told."""

from __future__ import annotations

import pytest

from tests.unit.delivery.kit import make_topic
from topicd.model import TopicConfig
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.delivery.writing.durability import Need


@pytest.mark.parametrize(
    ("durability", "need"),
    [("ephemeral", Need.PLACED), ("memory", Need.PLACED), ("disk", Need.WRITTEN), ("fsync", Need.SYNCED)],
)
def test_each_class_needs_what_it_promises(durability: str, need: Need) -> None:
    topic = make_topic(durability=durability)
    topic.seqs.reserve(100)
    assert topic.need_for(1) is need


def test_a_disk_write_beyond_the_reserved_seqs_waits_for_the_sync() -> None:
    topic = make_topic(durability="disk")
    topic.seqs.reserve(100)
    assert topic.need_for(100) is Need.WRITTEN
    assert topic.need_for(101) is Need.SYNCED


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_no_write_overtakes_a_stricter_one_under_way(durability: str) -> None:
    topic = make_topic(durability=durability)
    topic.seqs.reserve(100)
    topic.flight.synced = 1
    assert topic.need_for(1) is Need.SYNCED


def test_an_ephemeral_write_waits_for_no_mark() -> None:
    assert make_topic(durability="ephemeral").need_for(10_000) is Need.PLACED


def test_another_configuration_is_another_policy_at_once() -> None:
    topic = make_topic(durability="disk")
    topic.set_config(TopicConfig.from_fields({"durability": "fsync", "cap_records": 5}))
    assert (topic.policy.need, topic.policy.kept_records) == (Need.SYNCED, 5)


@pytest.mark.parametrize(("to", "reserved"), [("ephemeral", 0), ("fsync", 1024), ("memory", 1024)])
def test_marks_go_only_when_the_topic_leaves_the_log(to: str, reserved: int) -> None:
    topic = make_topic(durability="disk")
    topic.seqs.reserve(1024)
    topic.set_config(TopicConfig.from_fields({"durability": to}))
    assert topic.seqs.reserved == reserved


def test_an_internal_topic_stays_internal() -> None:
    topic = make_topic("topicd.stage")
    topic.set_config(TopicConfig.from_fields({"cap_records": 1}))
    assert topic.policy.internal


def test_every_part_that_it_names_is_one() -> None:
    topic = make_topic(type="queue")
    assert [getattr(topic, name) for name in topic.PARTS if name != "compacted"] == topic.parts()
    compacted = make_topic(compact="last-per-tag")
    assert compacted.compacted in compacted.parts()
    assert all(isinstance(part, TopicPart) for part in topic.parts())


def test_no_part_is_forgotten_in_the_list() -> None:
    topics = (make_topic(type="queue"), make_topic(compact="last-per-tag"))
    found = {name for topic in topics for name, value in vars(topic).items() if isinstance(value, TopicPart)}
    assert found == set(topics[0].PARTS)


def test_who_waits_for_a_deleted_topic_is_told_which() -> None:
    error = make_topic().gone()
    assert (error.code, error.detail["topic"], error.detail["topic_id"]) == ("topic_not_found", "orders", 7)
