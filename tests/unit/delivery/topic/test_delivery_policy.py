"""What a configuration means: one row per class, and the limits of caps and segments."""

from __future__ import annotations

from typing import Any

import pytest

from topicd.config import Settings
from topicd.limits import MIB
from topicd.model import Durability, TopicConfig
from topicd.shards.delivery.topic.policy import EPHEMERAL_BYTES, Policy
from topicd.shards.delivery.writing.durability import Need


def policy(*, internal: bool = False, **config: Any) -> Policy:
    return Policy(TopicConfig.from_fields(config), internal=internal)


def test_every_class_has_a_policy() -> None:
    for durability in Durability:
        assert policy(durability=durability.value).need in Need


@pytest.mark.parametrize(
    ("durability", "logged", "need", "change", "birth", "reserves", "waits", "may_lose"),
    [
        ("ephemeral", False, Need.PLACED, Need.WRITTEN, Need.WRITTEN, True, False, False),
        ("memory", True, Need.PLACED, Need.WRITTEN, Need.WRITTEN, False, False, True),
        ("disk", True, Need.WRITTEN, Need.WRITTEN, Need.SYNCED, True, True, False),
        ("fsync", True, Need.SYNCED, Need.SYNCED, Need.SYNCED, False, False, False),
    ],
)
def test_each_class(
    durability: str,
    logged: bool,
    need: Need,
    change: Need,
    birth: Need,
    reserves: bool,
    waits: bool,
    may_lose: bool,
) -> None:
    made = policy(durability=durability)
    assert (made.logged, made.need, made.change_need, made.birth_need) == (logged, need, change, birth)
    assert (made.reserves, made.waits_for_marks, made.may_lose_tail) == (reserves, waits, may_lose)
    assert made.synced == (durability == "fsync")


def test_marks_are_synced_where_acknowledged_seqs_depend_on_them() -> None:
    assert policy(durability="disk").mark_need is Need.SYNCED
    assert policy(durability="ephemeral").mark_need is Need.PLACED


# ---- caps ----


def test_a_topic_without_caps_keeps_everything() -> None:
    made = policy()
    assert (made.capped, made.evicts, made.kept_records, made.kept_bytes) == (False, False, 0, 0)


def test_a_cap_evicts_and_one_that_rejects_does_not() -> None:
    evicting = policy(cap_records=5, cap_bytes=100)
    assert (evicting.capped, evicting.evicts, evicting.kept_records, evicting.kept_bytes) == (True, True, 5, 100)
    rejecting = policy(cap_records=5, cap_bytes=100, discard="reject")
    assert (rejecting.capped, rejecting.rejects, rejecting.kept_records, rejecting.kept_bytes) == (True, True, 0, 0)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, EPHEMERAL_BYTES),
        ({"cap_bytes": 100}, 100),
        ({"cap_bytes": 10 * EPHEMERAL_BYTES}, EPHEMERAL_BYTES),
        ({"cap_bytes": 100, "discard": "reject"}, EPHEMERAL_BYTES),
    ],
)
def test_what_is_in_memory_only_is_always_bounded(config: dict[str, Any], kept: int) -> None:
    made = policy(durability="ephemeral", **config)
    assert (made.kept_bytes, made.evicts) == (kept, True)


# ---- past the log ----


@pytest.mark.parametrize(
    ("durability", "internal", "copied", "setting", "direct"),
    [
        ("fsync", False, False, "synced", True),
        ("fsync", False, False, "copies", False),
        ("disk", False, False, "synced", False),
        ("disk", False, True, "copies", True),
        ("disk", True, False, "copies", True),
        ("disk", True, True, "none", False),
        ("ephemeral", True, True, "synced", False),
    ],
)
def test_which_large_writes_go_past_the_log(
    durability: str, internal: bool, copied: bool, setting: str, direct: bool
) -> None:
    made = policy(durability=durability, internal=internal)
    assert made.may_go_direct(Settings(direct_writes=setting), copied=copied) is direct


def test_segments_of_internal_topics_are_sealed_by_what_a_file_can_hold_only() -> None:
    settings = Settings(segment_max_records=10, segment_max_bytes=20)
    assert policy().segment_limits(settings) == (10, 20)
    assert policy(internal=True).segment_limits(settings) == (10_000_000, 1024 * MIB)
