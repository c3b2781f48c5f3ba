"""Who may do what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topicd import errors
from topicd.channel import ChannelAcl, ChannelConfig, ChannelState
from topicd.shards.delivery.channels import acl

STATE = ChannelState("lobby", "ann", members=("ann", "bob"), config=ChannelConfig(max_clients=3, max_payload_size=5))
CLOSED = replace(STATE, acl=ChannelAcl(("eve",), ("eve",), ("eve",)))


def test_an_empty_list_is_everybody() -> None:
    acl.may_join(STATE, "eve")
    acl.may_publish(STATE, "bob", 5)
    acl.may_read(STATE, "bob")


def test_a_list_is_nobody_else_but_the_owner() -> None:
    acl.may_join(CLOSED, "eve")
    for refused in (
        lambda: acl.may_join(CLOSED, "mia"),
        lambda: acl.may_publish(CLOSED, "bob", 1),
        lambda: acl.may_read(CLOSED, "bob"),
    ):
        with pytest.raises(errors.Forbidden):
            refused()
    acl.may_publish(CLOSED, "ann", 1)
    acl.may_read(CLOSED, "ann")


def test_limits() -> None:
    with pytest.raises(errors.PayloadTooLarge):
        acl.may_publish(STATE, "ann", 6)
    with pytest.raises(errors.ChannelFull):
        acl.may_join(replace(STATE, members=("a", "b", "c")), "d")


def test_members_owners_and_types() -> None:
    with pytest.raises(errors.NotMember):
        acl.may_read(STATE, "eve")
    with pytest.raises(errors.NotOwner):
        acl.check_owner(STATE, "bob")
    with pytest.raises(errors.NotOwner):
        acl.check_owner(replace(STATE, owner=None), "bob")
    for fifo in (True, False):
        state = replace(STATE, type="pubsub" if fifo else "fifo")
        with pytest.raises(errors.Conflict):
            acl.check_type(state, fifo=fifo)
