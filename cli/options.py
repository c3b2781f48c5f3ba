"""Options that several verbs share: where to begin, what to leave out, in which form to print, which data directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from topicd.cli.show.human import parse_age

_TIMES = "a time like 2026-01-31T12:00, or an age like 15m, 2h, 1d"
PLACE_RULE = f"a seq (records above it), earliest, latest, {_TIMES}"


class PlaceType(click.ParamType[int | str | datetime]):
    """`--from`: where to begin reading, as one types it."""

    name = "place"

    def __init__(self, rule: str = PLACE_RULE, words: tuple[str, ...] = ("earliest", "latest")) -> None:
        self._rule = rule
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str | datetime:
        if not isinstance(value, str):
            found: int | str | datetime = value
            return found
        if value in self._words:
            return value
        if value.isdecimal():
            return int(value)
        age = parse_age(value)
        if age is not None:
            return datetime.now().astimezone() - age
        try:
            return datetime.fromisoformat(value).astimezone()
        except ValueError:
            self.fail(f"{value!r} is not {self._rule}", param, ctx)


PLACE = PlaceType()
# Where history ends: `restore --until`.
END = PlaceType(f"a seq, {_TIMES}", ())


class MomentType(click.ParamType[datetime]):
    """A time of day and date, local unless it has a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(value).astimezone()
        except ValueError:
            self.fail(f"{value!r} is not a time like 2026-01-31T12:00", param, ctx)


MOMENT = MomentType()


# What the options below exclude, for the verbs that have them.
FILTERS_APART = "--tag --tag-prefix"
FORMS_APART = "--data --raw --format --json"
FORMS_NEED = "--parse --json"


def match_of(tag: str | None, tag_prefix: str | None) -> Any:
    if tag_prefix is not None:
        return ["tag", "Glob", tag_prefix + "*"]
    return None if tag is None else ["tag", "Eq", tag]


def filter_options(function: Any) -> Any:
    """--tag, --tag-prefix, --exclude-node."""
    for option in (
        click.option("--exclude-node", "nodes", multiple=True, metavar="NODE", help="Leave out that origin's records."),
        click.option("--tag-prefix", metavar="TEXT", help="Only records whose tag begins so."),
        click.option("--tag", metavar="TAG", help="Only records with that tag."),
    ):
        function = option(function)
    return function


FIELDS = "{topic} {seq} {time} {ts} {tag} {node} {meta} {data}"


def layout_options(function: Any) -> Any:
    """--grep, --format."""
    for option in (
        click.option("--format", "layout", metavar="TEXT", help=f"A line for each record, of {FIELDS}."),
        click.option("--grep", metavar="REGEX", help="Only records whose data matches."),
    ):
        function = option(function)
    return function


def form_options(function: Any) -> Any:
    """--data, --raw, --parse."""
    for option in (
        click.option("--parse", is_flag=True, help="With --json: data that is JSON is printed as JSON."),
        click.option("--raw", "form", flag_value="raw", help="Print data only, nothing between."),
        click.option("--data", "form", flag_value="data", help="Print data only, one per line."),
    ):
        function = option(function)
    return function


def meta_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--meta, as the object it makes or None."""
    return click.option(
        "--meta",
        multiple=True,
        callback=_meta,
        metavar="KEY=TEXT|JSON",
        help="Stored beside the data: KEY=TEXT, as often as wanted, or a JSON object.",
    )(function)


def _meta(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for text in given:
        for key, value in _meta_of(text).items():
            if key in found:
                raise click.BadParameter(f"{key!r} is given twice")
            found[key] = value
    return found if given else None


def _meta_of(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r:.60} is neither KEY=TEXT nor a JSON object")
        return {key: value}
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as exc:
        raise click.BadParameter(f"not JSON: {exc}") from None
    return found


class SpanType(click.ParamType[int]):
    """A length of time, in ms: `500ms`, `30s`, `5m`, `2h`, `1d`; a number alone is ms."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if str(value).isdecimal():
            return int(value)
        age = parse_age(str(value))
        if age is None:
            self.fail(f"{value!r} is not a time like 500ms, 30s, 5m, 2h or 1d", param, ctx)
        return round(age.total_seconds() * 1000)


SPAN = SpanType()


data_dir_option = click.option(
    "--data-dir",
    "-d",
    metavar="DIR",
    help="The daemon's data directory [default: as its settings say].",
)
