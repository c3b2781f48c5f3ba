"""The channels of a shard, by handler and by user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.delivery.desk import Desk
from topicd.channel import ChannelState, channel_hash
from topicd.errors import ChannelNotFound, StorageCorrupt
from topicd.shards.delivery.channels.registry import Registry


@pytest.fixture
def registry(desk: Desk) -> Registry:
    return desk.parts.channels.registry


def put(registry: Registry, handler: str, *members: str) -> ChannelState:
    state = ChannelState(handler, members[0] if members else None, members=tuple(sorted(members)))
    registry.apply(registry.obtain(handler), state)
    return state


def test_what_is_applied_is_found_and_counted(registry: Registry, desk: Desk) -> None:
    state = put(registry, "b", "ann", "bob")
    put(registry, "a", "ann")
    tallies = desk.parts.channels.tallies
    assert registry.get("b")[1] is state
    assert registry.by_user == {"ann": {"a", "b"}, "bob": {"b"}}
    assert (tallies.active, tallies.members, len(registry)) == (2, 3, 2)
    registry.apply(registry.obtain("b"), replace(state, members=("ann",)))
    assert (registry.by_user, tallies.members) == ({"ann": {"a", "b"}}, 2)
    registry.apply(registry.obtain("b"), None)
    assert (registry.by_user, tallies.active, tallies.members) == ({"ann": {"a"}}, 1, 1)
    with pytest.raises(ChannelNotFound):
        registry.get("b")


def test_a_place_that_came_to_nothing_is_forgotten(registry: Registry) -> None:
    place = registry.obtain("new")
    assert registry.obtain("new") is place
    registry.discard(place)
    assert registry.obtain("new") is not place
    assert registry.all() == []


def test_one_that_could_not_be_read_is_refused_by_name(registry: Registry) -> None:
    registry.corrupt[channel_hash("bad")] = "checksum"
    for look in (registry.get, registry.obtain):
        with pytest.raises(StorageCorrupt, match="checksum"):
            look("bad")


def test_pages(registry: Registry) -> None:
    for name in ("b", "a", "ab", "c"):
        put(registry, name, "ann")
    put(registry, "d", "bob")

    def page(*given: object) -> tuple[list[str], str | None]:
        states, following = registry.page(*given)  # type: ignore[arg-type]
        return [state.handler for state in states], following

    assert page("", "", 2, None) == (["a", "ab"], "ab")
    assert page("", "ab", 9, None) == (["b", "c", "d"], None)
    assert page("a", "", 9, None) == (["a", "ab"], None)
    assert page("", "", 9, "bob") == (["d"], None)
    assert page("", "", 9, "nobody") == ([], None)
