"""How topics come into being, change and go: only when the log has it, and as before when it has not."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import Conflict, InvalidRequest, NotReady, Throttled, TopicdError, TopicNotFound, WrongShard
from topicd.frames import FrameType
from topicd.limits import LIST_PAGE_MAX
from topicd.model import TopicConfig
from topicd.placement import delivery_shard
from topicd.shards.delivery.topic.catalog import Catalog, TopicIds
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need


class Asked:
    """What became of a change."""

    def __init__(self) -> None:
        self.told: list[tuple[Topic | None, TopicdError | None]] = []

    def __call__(self, topic: Topic | None, error: TopicdError | None) -> None:
        self.told.append((topic, error))

    @property
    def code(self) -> str:
        [(topic, error)] = self.told
        assert (topic is None) == (error is not None)
        return "done" if error is None else error.code


def create(desk: Desk, name: str, **config: Any) -> Asked:
    asked = Asked()
    desk.parts.catalog.create(name, TopicConfig.from_fields(config), asked)
    return asked


# ---- birth ----


def test_a_topic_is_there_when_the_log_has_its_birth_and_not_before(desk: Desk) -> None:
    born: list[Topic] = []
    desk.parts.catalog.on_born.append(born.append)
    asked = create(desk, "orders", durability="disk", cap_records=5)
    assert (asked.told, desk.parts.catalog.by_name, born) == ([], {}, [])
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert asked.told == []  # its first block of seqs must be synced
    desk.settle()
    topic = desk.parts.catalog.get("orders")
    assert asked.told == [(topic, None)]
    assert (born, topic.config.cap_records, desk.parts.catalog.by_id[topic.id]) == ([topic], 5, topic)
    [(kind, body)] = desk.wal.frames()
    assert (kind, body["name"], body["reserved"]) == (FrameType.TOPIC_CREATE, "orders", topic.seqs.reserved)


def test_those_who_create_one_name_together_share_one_birth(desk: Desk) -> None:
    first, second = create(desk, "orders"), create(desk, "orders", cap_records=9)
    desk.settle()
    assert first.told == second.told
    assert len(desk.wal.frames()) == 1


def test_a_birth_that_the_log_refuses_leaves_nothing(desk: Desk) -> None:
    asked = create(desk, "orders")
    before = desk.parts.catalog.settled_below
    desk.fail_wal(errno.ENOSPC)
    assert asked.code == "storage_failed"
    assert (desk.parts.catalog.by_name, desk.parts.catalog.by_id) == ({}, {})
    assert desk.parts.catalog.settled_below > before  # nobody waits for that id
    assert create(desk, "orders").told == []
    desk.settle()
    assert desk.parts.catalog.get("orders").live


def test_a_log_that_takes_nothing_refuses_at_once(desk: Desk) -> None:
    desk.wal.ring.set_read_only(errno.ENOSPC)
    with pytest.raises(TopicdError) as caught:
        create(desk, "orders")
    assert caught.value.code == "storage_failed"
    desk.wal.ring.set_read_only(0)
    create(desk, "orders")
    desk.settle()
    assert desk.parts.catalog.get("orders").live


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 256])
def test_a_bad_name_is_refused(desk: Desk, name: str) -> None:
    with pytest.raises(InvalidRequest):
        create(desk, name)


def test_a_name_of_another_shard_is_refused_with_its_owner(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(shards=2)
    name = next(f"t{n}" for n in range(100) if delivery_shard(f"t{n}", 2) == 1)
    for ask in (lambda: create(desk, name), lambda: desk.parts.catalog.get(name)):
        with pytest.raises(WrongShard) as caught:
            ask()
        assert caught.value.detail["shard"] == 1


def test_the_number_of_topics_is_bounded_with_those_on_their_way(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_topics=2)
    desk.topic("a")
    create(desk, "b")
    with pytest.raises(Throttled) as caught:
        create(desk, "c")
    assert caught.value.detail["limit"] == "max_topics"
    assert create(desk, "b").told == []  # joins the one on its way


# ---- look-up ----


def test_what_is_not_there_is_not_found(desk: Desk) -> None:
    with pytest.raises(TopicNotFound):
        desk.parts.catalog.get("orders")
    assert desk.parts.catalog.find("orders") is None


def test_pages_are_in_order_and_whole(desk: Desk) -> None:
    for name in ("b", "a", "c", "ad", "x"):
        desk.topic(name)
    catalog = desk.parts.catalog

    def names(prefix: str, after: str, limit: int) -> tuple[list[str], str | None]:
        topics, following = catalog.page(prefix, after, limit, lambda name: name != "x")
        return [topic.name for topic in topics], following

    assert names("", "", 2) == (["a", "ad"], "ad")
    assert names("", "ad", 2) == (["b", "c"], None)
    assert names("a", "", 9) == (["a", "ad"], None)
    assert names("", "aa", 1) == (["ad"], "ad")  # after a name that is not there
    assert names("", "zz", 9) == ([], None)
    assert len(catalog.page("", "", 10 * LIST_PAGE_MAX, lambda name: True)[0]) == 5


# ---- change ----


def test_a_change_counts_when_the_log_has_it(desk: Desk) -> None:
    topic, asked, story = desk.topic(durability="fsync"), Asked(), []
    catalog = desk.parts.catalog
    catalog.before_change.insert(0, lambda topic: story.append(f"before: {topic.config.cap_records}"))
    catalog.on_changed.insert(0, lambda topic: story.append(f"after: {topic.config.cap_records}"))
    catalog.configure(topic, {"cap_records": 7}, asked)
    assert (topic.config.cap_records, story) == (0, [])
    desk.settle()
    assert (asked.code, topic.config.cap_records, topic.next_config) == ("done", 7, None)
    assert story == ["before: 0", "after: 7"]


def test_a_change_that_changes_nothing_needs_no_log(desk: Desk) -> None:
    topic, asked = desk.topic(cap_records=7), Asked()
    before = desk.wal.ring.head
    desk.parts.catalog.configure(topic, {"cap_records": 7}, asked)
    assert (asked.code, desk.wal.ring.head) == ("done", before)


def test_a_change_builds_on_the_one_under_way(desk: Desk) -> None:
    topic, first, second = desk.topic(), Asked(), Asked()
    desk.parts.catalog.configure(topic, {"cap_records": 7}, first)
    desk.parts.catalog.configure(topic, {"ttl_ms": 9}, second)
    desk.settle()
    assert (topic.config.cap_records, topic.config.ttl_ms, first.code, second.code) == (7, 9, "done", "done")


def test_a_change_back_to_what_is_there_is_not_lost_behind_the_one_under_way(desk: Desk) -> None:
    topic, first, second = desk.topic(cap_records=1), Asked(), Asked()
    desk.parts.catalog.configure(topic, {"cap_records": 7}, first)
    desk.parts.catalog.configure(topic, {"cap_records": 1}, second)
    assert second.told == []
    desk.settle()
    assert topic.config.cap_records == 1


def test_a_change_that_the_log_refuses_changes_nothing(desk: Desk) -> None:
    topic, asked = desk.topic(), Asked()
    before = topic.config
    desk.parts.catalog.configure(topic, {"cap_records": 7}, asked)
    desk.fail_wal(errno.EIO)
    assert (asked.code, topic.config, topic.next_config) == ("storage_failed", before, None)


def test_bad_fields_are_refused_and_change_nothing(desk: Desk) -> None:
    topic = desk.topic()
    for fields in ({"cap_records": -1}, {"no_such": 1}, "text"):
        with pytest.raises(InvalidRequest):
            desk.parts.catalog.configure(topic, fields, Asked())
    with pytest.raises(Conflict):
        desk.parts.catalog.configure(topic, {"type": "queue"}, Asked())
    assert topic.next_config is None


@pytest.mark.parametrize(("from_", "to"), [("disk", "ephemeral"), ("ephemeral", "disk")])
def test_a_topic_with_records_neither_enters_nor_leaves_the_log(desk: Desk, from_: str, to: str) -> None:
    topic, asked = desk.topic(durability=from_), Asked()
    desk.write(topic, [b"x"])
    with pytest.raises(Conflict):
        desk.parts.catalog.configure(topic, {"durability": to}, asked)
    empty = desk.topic("empty", durability=from_)
    desk.parts.catalog.configure(empty, {"durability": to}, asked)
    desk.settle()
    assert asked.code == "done"


def test_changes_become_true_in_the_order_they_were_asked_for(desk: Desk) -> None:
    """One of a weaker class does not overtake one that waits for its sync."""
    topic, story = desk.topic(durability="memory"), []
    desk.parts.catalog.configure(topic, {"durability": "fsync"}, lambda topic, error: story.append("fsync"))
    desk.parts.catalog.configure(topic, {"durability": "memory"}, lambda topic, error: story.append("memory"))
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert story == []
    desk.settle()
    assert story == ["fsync", "memory"]


# ---- end ----


def test_a_topic_is_gone_when_the_log_has_its_end(desk: Desk) -> None:
    topic, asked, gone = desk.topic(), Asked(), []
    desk.parts.catalog.on_gone.append(gone.append)
    desk.parts.catalog.delete(topic, if_empty=False, done=asked)
    assert (asked.told, gone) == ([], [])
    with pytest.raises(TopicNotFound):
        desk.parts.catalog.get("orders")
    with pytest.raises(NotReady):
        desk.parts.catalog.find("orders")
    desk.settle()
    assert (asked.code, gone, desk.parts.catalog.by_name, desk.parts.catalog.by_id) == ("done", [topic], {}, {})


def test_an_end_that_the_log_refuses_leaves_the_topic(desk: Desk) -> None:
    topic, asked = desk.topic(), Asked()
    desk.parts.catalog.delete(topic, if_empty=False, done=asked)
    desk.fail_wal(errno.EIO)
    assert (asked.code, desk.parts.catalog.get("orders")) == ("storage_failed", topic)


def test_if_empty_counts_what_is_under_way(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    desk.append(topic, [b"x"])
    for _ in range(2):
        with pytest.raises(Conflict):
            desk.parts.catalog.delete(topic, if_empty=True, done=Asked())
        assert topic.live
        desk.parts.turn.end()
        desk.settle()


def test_the_end_does_not_overtake_the_writes_before_it(desk: Desk) -> None:
    """What is told after the end would bring the topic's files back."""
    topic, asked = desk.topic(durability="fsync"), Asked()
    writer = desk.append(topic, [b"x"])
    desk.parts.catalog.delete(topic, if_empty=False, done=asked)
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert (asked.told, writer.told) == ([], [])
    desk.settle()
    assert (asked.code, writer.told[0].how) == ("done", "appended")
    assert [kind for kind, _ in desk.wal.frames()][-2:] == [FrameType.APPEND, FrameType.TOPIC_DELETE]


def test_forgetting_an_old_topic_spares_the_new_one_of_its_name(desk: Desk) -> None:
    old = desk.topic()
    desk.parts.catalog.delete(old, if_empty=False, done=Asked())
    desk.settle()
    new = desk.topic()
    desk.parts.catalog.forget(old)
    assert desk.parts.catalog.get("orders") is new
    assert new.id > old.id


# ---- ids ----


def test_ids_go_up_through_all_blocks_and_more_are_asked_for_in_time() -> None:
    asked: list[str] = []
    ids = TopicIds(lambda: asked.append("more"))
    ids.add(10, 300)
    ids.add(500, 800)
    taken = [ids.take() for _ in range(590)]
    assert taken == [*range(10, 300), *range(500, 800)]
    assert asked == ["more"]  # once, until they come
    assert ids.next == 800
    with pytest.raises(Throttled):
        ids.take()
    ids.add(900, 901)
    assert (ids.next, ids.take(), asked) == (900, 900, ["more", "more"])


def test_an_empty_block_is_no_block() -> None:
    ids = TopicIds(lambda: None)
    ids.add(5, 5)
    with pytest.raises(Throttled):
        ids.take()


def test_settled_below_waits_for_births_under_way(desk: Desk) -> None:
    catalog = desk.parts.catalog
    create(desk, "a")
    first = catalog.settled_below
    create(desk, "b")
    assert catalog.settled_below == first == 1
    desk.settle()
    assert catalog.settled_below == catalog.ids.next == 3
    assert {topic.id for topic in catalog.by_name.values()} == {1, 2}


def test_the_end_of_a_memory_topic_is_at_least_written(desk: Desk) -> None:
    topic, asked = desk.topic(durability="memory"), Asked()
    assert topic.need_for(0) is Need.PLACED
    desk.parts.catalog.delete(topic, if_empty=False, done=asked)
    assert asked.told == []
    desk.settle()
    assert asked.code == "done"


# ---- many pages ----


def listed(catalog: Catalog, prefix: str, limit: int) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page, following = catalog.page(prefix, after, limit, lambda name: not name.endswith("7"))
        found += [topic.name for topic in page]
        if following is None:
            return found
        assert len(page) == limit
        after = following


def test_pages_show_what_is_there_once_and_in_order_whatever_comes_and_goes(desk: Desk) -> None:
    catalog, chance = desk.parts.catalog, random.Random(7)
    names = [f"{letter}.{number}" for letter in "abc" for number in range(40)]
    for number in range(2_000):
        name = chance.choice(names)
        known = catalog.by_name.get(name)
        if known is not None:
            catalog.forget(known)
        else:
            catalog.add(Topic(number + 1, name, TopicConfig(), 0, 0))
        if number % 50 == 0:
            prefix = chance.choice(["", "a", "b.", "c.1", "d"])
            there = sorted(n for n in catalog.by_name if n.startswith(prefix) and not n.endswith("7"))
            assert listed(catalog, prefix, chance.choice([1, 3, 100])) == there
    assert len(catalog._names) <= 2 * len(names)  # names that are gone do not pile up


@pytest.mark.fault("TOP-02")
def test_a_change_of_a_topic_that_is_being_born_is_made_after_its_birth(desk: Desk) -> None:
    catalog = desk.parts.catalog
    assert not catalog.configure_unborn("orders", {}, Asked())
    born, changed, wrong = create(desk, "orders"), Asked(), Asked()
    assert catalog.configure_unborn("orders", {"cap_records": 5}, changed)
    with pytest.raises(InvalidRequest):
        catalog.configure_unborn("orders", {"cap_records": -5}, wrong)
    assert changed.told == []
    desk.settle()
    desk.settle()
    assert (born.code, changed.code, catalog.get("orders").config.cap_records) == ("done", "done", 5)
    assert wrong.told == []


def test_a_change_of_a_topic_whose_birth_fails_fails_with_it(desk: Desk) -> None:
    catalog, changed = desk.parts.catalog, Asked()
    born = create(desk, "orders")
    assert catalog.configure_unborn("orders", {"cap_records": 5}, changed)
    desk.fail_wal(errno.EIO)
    desk.settle()
    assert (born.code, changed.code, catalog.by_name) == ("storage_failed", "storage_failed", {})
