"""Who is at the other end: tokens with and without subjects, local peers, and whoever is taken at his word."""

from __future__ import annotations

import os
import pwd

import pytest

from topicd.channel import ChannelConfig, check_handler, check_user
from topicd.errors import Forbidden, InvalidRequest
from topicd.rights import Principal, user_of_uid
from topicd.tokens import EVERYTHING, Rights

ANN = Rights("t", frozenset({"read", "write"}), (), "ann")
NOBODY = Rights("t", frozenset({"read", "write"}))


def test_a_token_is_its_subject_and_nobody_else() -> None:
    assert Principal(ANN).acting_as(None) == Principal(ANN).acting_as("ann") == "ann"
    with pytest.raises(Forbidden, match="may not act as"):
        Principal(ANN).acting_as("bob")
    with pytest.raises(Forbidden, match="no subject"):
        Principal(NOBODY).acting_as(None)
    with pytest.raises(Forbidden):
        Principal(NOBODY).acting_as("ann")
    assert not Principal(ANN).operator
    assert Principal(Rights("t", frozenset({"admin"}))).operator


def test_a_local_peer_is_its_user_or_whom_it_says() -> None:
    local = Principal(EVERYTHING, os.geteuid())
    assert local.acting_as(None) == pwd.getpwuid(os.geteuid()).pw_name
    assert local.acting_as("ann") == "ann"
    assert local.operator
    assert user_of_uid(4_000_000_001) == "uid-4000000001"


def test_without_authentication_a_name_is_enough() -> None:
    assert Principal(NOBODY, None, taken_at_word=True).acting_as("bob") == "bob"


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "é", "a/b", 5, None])
def test_names_of_users(name: object) -> None:
    with pytest.raises(InvalidRequest, match="is not allowed"):
        check_user(name)
    assert check_user("a.B_c@d-0") == "a.B_c@d-0"


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128, "a\nb", "\ud800", 5])
def test_handlers(name: object) -> None:
    with pytest.raises(InvalidRequest, match="is not allowed"):
        check_handler(name)
    assert check_handler("room/1 für alle") == "room/1 für alle"


@pytest.mark.parametrize(
    "fields",
    [
        {"max_clients": 0},
        {"max_clients": True},
        {"max_payload_size": 1_024_001},
        {"message_flush_interval": 60_001},
        {"persist": 1},
        {"persist": True, "max_persist_messages": 0},
        {"colour": 1},
        [],
    ],
)
def test_configurations_that_are_refused(fields: object) -> None:
    with pytest.raises(InvalidRequest):
        ChannelConfig().updated(fields)
