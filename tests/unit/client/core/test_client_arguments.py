"""What users give, checked before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from topicd.client.core.arguments import tag_match
from topicd.errors import InvalidRequest
from topicd.model import TagMatch


def test_a_match_is_a_tag_or_a_beginning() -> None:
    assert tag_match("eu") == TagMatch(b"eu", prefix=False)
    assert tag_match("eu:*") == TagMatch(b"eu:", prefix=True)
    assert tag_match(["tag", "Eq", "x*"]) == TagMatch(b"x*", prefix=False)
    assert tag_match(None) is None


@pytest.mark.parametrize(
    "match", [5, 1.5, b"eu", True, object(), {"tag": "x"}, "\udcff", ["tag", "Eq", "\udcff"], ["x"]]
)
def test_anything_else_is_refused(match: Any) -> None:
    with pytest.raises(InvalidRequest):
        tag_match(match)
