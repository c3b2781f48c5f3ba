"""Topic configuration, tag matches, tombstones: what is accepted, what is refused and how that is said."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicd.errors import Conflict, InvalidRequest
from topicd.limits import MAX_SEQ, MAX_TAG
from topicd.model import QUEUES_ONLY, TagMatch, Tombstone, TopicConfig, check_topic_name


@pytest.mark.parametrize("name", ["a", "9", "A.b_c:d-e", "a" * 255])
def test_allowed_names_are_returned(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a" * 256, ".a", "_a", ":a", "-a", "a b", "a/b", "a\n", "ä", "a\0", None, 1, b"a"]
)
def test_other_names_are_refused_with_the_rule(name: object) -> None:
    with pytest.raises(InvalidRequest, match="1 to 255"):
        check_topic_name(name)


# ---- configuration ----


def test_the_defaults_are_those_of_the_contract() -> None:
    config = TopicConfig.from_fields({})
    assert (config.type, config.durability, config.discard, config.retain) == ("log", "disk", "old", "all")
    assert (config.idempotency_window_ms, config.lease_ms, config.max_deliveries) == (120_000, 30_000, 0)
    assert config.auto_create
    assert config.dedupe_node


def test_fields_survive_the_way_to_the_wire_and_back() -> None:
    config = TopicConfig.from_fields({"cap_records": 5, "dedupe_node": False, "priority": -3, "durability": "fsync"})
    assert TopicConfig.from_fields(config.to_fields()) == config


@pytest.mark.parametrize(
    ("given_fields", "durability"),
    [
        ({"durable": True}, "fsync"),
        ({"durable": False}, "disk"),
        ({"durable": True, "durability": "memory"}, "memory"),
    ],
)
def test_durable_is_an_alias_that_an_explicit_class_overrides(given_fields: dict[str, object], durability: str) -> None:
    assert TopicConfig.from_fields(given_fields).durability == durability


def test_an_update_changes_only_what_it_names() -> None:
    before = TopicConfig.from_fields({"cap_records": 5, "ttl_ms": 9})
    after = before.updated({"ttl_ms": 10})
    assert (after.cap_records, after.ttl_ms) == (5, 10)
    assert before.updated({}) == before


def test_the_type_may_be_repeated_but_not_changed() -> None:
    config = TopicConfig.from_fields({"type": "log"})
    assert config.updated({"type": "log"}) == config
    with pytest.raises(Conflict):
        config.updated({"type": "queue"})


def test_a_breaker_that_could_never_open_is_refused() -> None:
    for make in (
        lambda: TopicConfig.from_fields({"type": "queue", "breaker_failures": 101}),
        lambda: TopicConfig.from_fields({"type": "queue", "breaker_failures": 10}).updated({"breaker_jobs": 9}),
    ):
        with pytest.raises(InvalidRequest, match="breaker_failures is at most breaker_jobs"):
            make()
    assert TopicConfig.from_fields({"type": "queue", "breaker_failures": 5, "breaker_jobs": 5}).breaker_jobs == 5


@pytest.mark.parametrize("name", QUEUES_ONLY)
def test_what_only_queues_have_is_refused_by_a_log(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is for queues"):
        TopicConfig.from_fields({name: 99})
    with pytest.raises(InvalidRequest, match=f"{name} is for queues"):
        TopicConfig().updated({name: 99})
    assert getattr(TopicConfig.from_fields({"type": "queue", name: 99}), name) == 99


@pytest.mark.parametrize("field", [{"compact": "last-per-tag"}, {"compress": "zstd"}, {"hot_retain_segments": 3}])
def test_what_is_about_segments_is_refused_where_there_are_none(field: dict[str, Any]) -> None:
    (name,) = field
    assert TopicConfig.from_fields(field)
    with pytest.raises(InvalidRequest, match=f"{name} needs segments"):
        TopicConfig.from_fields({"durability": "ephemeral", **field})
    with pytest.raises(InvalidRequest, match=f"{name} needs segments"):
        TopicConfig.from_fields(field).updated({"durability": "ephemeral"})
    with pytest.raises(InvalidRequest, match=f"{name} is for logs: a queue does not take it"):
        TopicConfig.from_fields({"type": "queue", **field})


@pytest.mark.parametrize("name", [f.name for f in fields(TopicConfig)])
@pytest.mark.parametrize("value", [[], {}, "no such value", -(10**6), 2**70, 0.5, b"x"])
def test_every_violation_names_its_field_and_value(name: str, value: object) -> None:
    if name == "dead_letter" and value == "no such value":
        value = "no/such/topic"
    with pytest.raises(InvalidRequest) as caught:
        TopicConfig.from_fields({name: value})
    assert name in caught.value.message
    assert repr(value)[:100] in caught.value.message


@pytest.mark.parametrize("name", ["cap_records", "ttl_ms", "lease_ms", "priority"])
def test_true_is_not_a_number(name: str) -> None:
    with pytest.raises(InvalidRequest):
        TopicConfig.from_fields({name: True})


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("cap_records", 0, MAX_SEQ),
        ("cap_bytes", 0, MAX_SEQ),
        ("ttl_ms", 0, MAX_SEQ),
        ("priority", -1000, 1000),
        ("idempotency_window_ms", 0, 86_400_000),
    ],
)
def test_ranges_include_their_ends(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(TopicConfig.from_fields({name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidRequest):
            TopicConfig.from_fields({name: value})


@pytest.mark.parametrize("given_fields", [None, 5, "x", ["cap_records"], {"nonsense": 1}, {b"cap_records": 1}])
def test_what_is_no_configuration_is_refused(given_fields: object) -> None:
    with pytest.raises(InvalidRequest):
        TopicConfig.from_fields(given_fields)


# ---- tags ----


@pytest.mark.parametrize(
    ("wire", "yes", "no"),
    [
        ("x", [b"x"], [b"xy", b"", b"X", None]),
        (["tag", "Eq", "x"], [b"x"], [b"xy", None]),
        (("tag", "Glob", "x*"), [b"x", b"xy"], [b"y", b"", None]),
        (["tag", "Glob", "*"], [b"", b"anything"], [None]),
        ("ä", ["ä".encode()], [b"a"]),
    ],
)
def test_a_match_takes_what_it_says(wire: object, yes: list[bytes], no: list[bytes | None]) -> None:
    match = TagMatch.from_wire(wire)
    assert all(match.matches(tag) for tag in yes)
    assert not any(match.matches(tag) for tag in no)


@pytest.mark.parametrize(
    "wire",
    [
        *("", 5, None, [], {}, ["tag"], ["tag", "Eq"], ["tag", "Eq", 5], ["tag", "eq", "x"], ["node", "Eq", "x"]),
        *(["tag", "Glob", "x"], ["tag", "Glob", "*x"], ["tag", "Glob", "x*y*"], ["tag", "Glob", "**"]),
        "t" * (MAX_TAG + 1),
    ],
)
def test_what_is_no_match_is_refused(wire: object) -> None:
    with pytest.raises(InvalidRequest):
        TagMatch.from_wire(wire)


def test_a_tag_of_the_full_length_is_a_match() -> None:
    assert TagMatch.from_wire("t" * MAX_TAG).matches(b"t" * MAX_TAG)


@given(st.text(min_size=1, max_size=60).filter(lambda t: "*" not in t), st.booleans())
def test_a_match_survives_the_way_to_the_wire_and_back(text: str, prefix: bool) -> None:
    match = TagMatch.from_wire(["tag", "Glob", text + "*"] if prefix else text)
    assert TagMatch.from_wire(match.to_wire()) == match


def test_a_tombstone_survives_the_way_to_the_wire_and_back() -> None:
    tombstone = Tombstone(1, 5, "cap", 5, 6, 9)
    assert Tombstone.from_wire(tombstone.to_wire()) == tombstone
