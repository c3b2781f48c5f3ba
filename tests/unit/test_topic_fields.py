"""Topic fields: each is explained, and may be written as people do."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import click
import pytest

from topicd.cli.verbs.topic import complete_fields, parse_config
from topicd.errors import InvalidRequest
from topicd.model import TopicConfig
from topicd.topic_fields import ALIASES, HELP, TopicFields


def test_every_field_has_its_help_and_its_type() -> None:
    names = [f.name for f in fields(TopicConfig)]
    assert sorted(HELP) == sorted(names)
    assert set(get_type_hints(TopicFields)) == {*names, *ALIASES, "durable"}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"ttl": "1d"}, {"ttl_ms": 86_400_000}),
        ({"ttl_ms": "90s"}, {"ttl_ms": 90_000}),
        ({"ttl": 250}, {"ttl_ms": 250}),
        ({"ttl": "1.5h"}, {"ttl_ms": 5_400_000}),
        ({"cap_bytes": "1GiB"}, {"cap_bytes": 1 << 30}),
        ({"idempotency_window": "10m"}, {"idempotency_window_ms": 600_000}),
    ],
)
def test_values_with_units(given: dict[str, Any], meant: dict[str, int]) -> None:
    config = TopicConfig.from_fields(given)
    assert {name: getattr(config, name) for name in meant} == meant
    pairs = tuple(f"{name}={value}" for name, value in given.items())
    assert parse_config(pairs) == meant


@pytest.mark.parametrize(
    "given", [{"ttl": "soon"}, {"cap_bytes": "much"}, {"ttl": "1d", "ttl_ms": 5}, {"idempotency_window": "2d"}]
)
def test_values_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        TopicConfig.from_fields(given)


@pytest.mark.parametrize("pairs", [("ttl=soon",), ("cap_bytes=much",), ("tll=1d",), ("ttl",), ("ttl=1d", "ttl_ms=5")])
def test_the_command_line_refuses_them_too(pairs: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        parse_config(pairs)


def test_the_shell_completes_fields_and_their_choices() -> None:
    ctx: Any = None
    found = complete_fields(ctx, ctx, "dur")
    assert [item.value for item in found] == ["durability="] and found[0].help == HELP["durability"]
    assert [item.value for item in complete_fields(ctx, ctx, "durability=f")] == ["durability=fsync"]
    assert [item.value for item in complete_fields(ctx, ctx, "auto_create=")] == [
        "auto_create=true",
        "auto_create=false",
    ]
