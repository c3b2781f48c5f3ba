"""Meta that was read can be written with the types it had."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicd.errors import InvalidRequest
from topicd.spark import metas

TEXTS = st.text(max_size=5)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=5)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=5))
    | st.builds(msgpack.Timestamp, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999))
)
KEYS = TEXTS | st.sampled_from(["$binary", "$ext", "$map"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.integers(0, 9) | st.binary(max_size=2), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
def test_as_json_every_meta_comes_back(meta: dict[str, Any]) -> None:
    packed = msgpack.packb(meta)
    back = metas.from_json(metas.as_json(packed))
    assert back is not None
    assert msgpack.unpackb(back, strict_map_key=False) == msgpack.unpackb(packed, strict_map_key=False)


def test_plain_values_look_like_json_everywhere() -> None:
    meta = {"n": 7, "x": 1.5, "t": "7", "yes": True, "none": None, "list": [1, {"a": "ä"}]}
    assert metas.as_json(msgpack.packb(meta)) == ('{"n":7,"x":1.5,"t":"7","yes":true,"none":null,"list":[1,{"a":"ä"}]}')


def test_as_a_map_of_texts_it_is_for_looking() -> None:
    packed = msgpack.packb({"t": "7", "n": 7, "none": None, "b": b"\x01"})
    assert metas.as_pairs(packed) == [("t", "7"), ("n", "7"), ("none", None), ("b", '{"$binary":"AQ=="}')]
    assert metas.from_pairs([("t", "7"), ("none", None)]) == msgpack.packb({"t": "7", "none": None})


@pytest.mark.parametrize("text", ["null", "{}"])
def test_nothing_is_no_meta(text: str) -> None:
    assert metas.from_json(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "meta is not JSON"),
        ("[1]", "meta as JSON must be an object"),
        ('{"$binary": "AQ=="}', "meta as JSON must be an object"),
        ('{"a": {"$binary": "?"}}', "that is none"),
        ('{"a": {"$binary": 5}}', "that is none"),
        ('{"a": {"$ext": [1]}}', "that is none"),
        ('{"a": {"$map": [[[{}], 1]]}}', "that is none"),
        ('{"a": 99999999999999999999999}', "more than 64 bits"),
    ],
)
def test_what_is_no_meta_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        metas.from_json(text)
