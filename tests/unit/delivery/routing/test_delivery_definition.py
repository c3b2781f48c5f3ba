"""What a router may be, and how it is stored."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from topicd.errors import FormatError, InvalidRequest
from topicd.ipc.protocol.messages import CreateRouter
from topicd.model import TagMatch
from topicd.shards.delivery.routing.definition import Definition, forget_record, parse_record


def wanted(**more: Any) -> Definition:
    return Definition.wanted(CreateRouter.from_wire({"router": "r", "source": "a", "dest": "b", **more}))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"dest": "a"}, "different topics"),
        ({"dest": "topicd.routers"}, "topicd's own"),
        ({"guarantee": "twice"}, "guarantee is"),
        ({"set_tag": "{data}"}, "no other braces"),
        ({"set_node": "{"}, "no other braces"),
        ({"set_tag": "x", "preserve_tag": False}, "not both"),
        ({"set_node": "", "preserve_node": False}, "not both"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        wanted(**more)


def test_it_comes_back_from_the_log_as_it_was() -> None:
    one = wanted(filter=["tag", "Glob", "eu:*"], sample=7, set_tag="copy:{tag}")
    again = parse_record(one.to_record(), 12)
    assert isinstance(again, Definition)
    assert again.id == 12
    assert again.filter == TagMatch(b"eu:", prefix=True)
    assert again.with_options_of(one) == again
    assert parse_record(again.to_record(), 99) == again, "a change keeps the id"
    assert parse_record(forget_record([3, 5]), 1) == [3, 5]


@pytest.mark.parametrize("data", [b"", b"\xc1", msgpack.packb({}), msgpack.packb({"put": {"router": "r"}})])
def test_a_record_without_sense_is_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_record(data, 1)


def test_only_what_the_codec_cannot_do_is_no_plain_copy() -> None:
    assert wanted(preserve_tag=False).plain
    assert not any(wanted(**more).plain for more in ({"sample": 2}, {"set_tag": "x"}, {"guarantee": "exactly_once"}))


def test_options_are_told_as_they_were_given() -> None:
    assert wanted(filter="x").options()["filter"] == ["tag", "Eq", "x"]
    assert wanted().options()["filter"] is None
