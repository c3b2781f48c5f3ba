"""The errors of the contract: codes, policy, the way over the wire."""

from __future__ import annotations

import pytest

from topicd import errors
from topicd.errors import ERRORS, Internal, Throttled, TopicdError, from_wire


def subclasses(cls: type[TopicdError]) -> set[type[TopicdError]]:
    return {cls, *(found for sub in cls.__subclasses__() for found in subclasses(sub))}


def test_every_error_is_in_the_table_under_its_code() -> None:
    ours = {cls for cls in subclasses(TopicdError) if cls.__module__ == errors.__name__}
    assert ours - {TopicdError} == set(ERRORS.values())
    assert all(cls.code == code for code, cls in ERRORS.items())


@pytest.mark.parametrize("cls", ERRORS.values())
def test_every_error_says_what_it_means_and_what_to_do(cls: type[TopicdError]) -> None:
    assert cls.code == cls.code.lower()
    assert cls.code.replace("_", "").isalpha()
    assert 400 <= cls.status < 600
    assert len(cls.summary) > 10
    assert "|" not in cls.summary  # it stands in a table


@pytest.mark.parametrize("cls", ERRORS.values())
def test_an_error_survives_the_way_over_the_wire(cls: type[TopicdError]) -> None:
    found = from_wire(cls("what happened", limit="x", n=5).to_wire())
    assert type(found) is cls
    assert (found.message, found.detail) == ("what happened", {"limit": "x", "n": 5})
    assert str(found) == "what happened"


def test_policy_travels_with_the_error() -> None:
    assert Throttled("slow down").to_wire() == {
        "code": "throttled",
        "message": "slow down",
        "detail": {},
        "retriable": True,
    }


@pytest.mark.parametrize(
    "body",
    [{}, {"code": "from_the_future", "message": "m"}, {"code": None}, {"code": ["x"], "detail": 5, "message": 7}],
)
def test_what_nobody_knows_is_still_an_error(body: dict[str, object]) -> None:
    found = from_wire(body)
    assert type(found) is TopicdError
    assert found.message == str(body.get("message", ""))
    assert found.detail == {}


def test_an_internal_error_is_not_retried_by_itself() -> None:
    assert (Internal.code, Internal.status, Internal.retriable) == ("internal", 500, False)
