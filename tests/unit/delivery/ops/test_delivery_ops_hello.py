"""The first message of a connection."""

from __future__ import annotations

import pytest

import topicd
from tests.unit.delivery.desk import Desk
from topicd import limits
from topicd.errors import InvalidRequest, Unauthorized, UnsupportedVersion
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import PROTOCOL_VERSION
from topicd.tokens import Rights, Token, TokenFile, digest_of


def test_it_says_where_everything_is_and_what_the_limits_are(desk: Desk, instance: str) -> None:
    line = desk.line(hello=False)
    answer = line.ask(Op.HELLO, version=PROTOCOL_VERSION, client="test")
    assert line.session.greeted
    assert (answer["version"], answer["server"], answer["instance"]) == (
        PROTOCOL_VERSION,
        topicd.__version__,
        instance,
    )
    assert (answer["role"], answer["shard"], answer["delivery_shards"], answer["wal_shards"]) == ("delivery", 0, 1, 1)
    assert answer["shards"] == desk.parts.place.socket_paths
    assert answer["limits"]["max_batch_records"] == limits.MAX_BATCH_RECORDS


@pytest.mark.parametrize("version", [PROTOCOL_VERSION + 1, 0, "2", None, True])
def test_another_version_is_refused_with_the_one_spoken_here(desk: Desk, version: object) -> None:
    line = desk.line(hello=False)
    with pytest.raises(UnsupportedVersion) as caught:
        line.ask(Op.HELLO, version=version, whatever=1)
    assert caught.value.detail["supported"] == [PROTOCOL_VERSION]
    assert not line.session.greeted


@pytest.mark.parametrize("token", ["wrong", None])
def test_where_a_token_is_needed_there_is_no_hello_without(desk: Desk, token: str | None) -> None:
    rights = Rights("spark", frozenset({"read"}))
    desk.parts.connections.tokens = TokenFile([Token(rights, digest_of("secret"), None)])
    line = desk.line(hello=False)
    line.session.needs_token = True
    with pytest.raises(Unauthorized):
        line.ask(Op.HELLO, version=PROTOCOL_VERSION, **({"token": token} if token else {}))
    assert not line.session.greeted
    line.ask(Op.HELLO, version=PROTOCOL_VERSION, token="secret")
    assert (line.session.greeted, line.session.rights) == (True, rights)


def test_somebody_is_there(desk: Desk) -> None:
    assert desk.line().ask(Op.PING) == {}


def test_the_status_is_the_supervisors(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="supervisor"):
        desk.line().ask(Op.STATUS)
