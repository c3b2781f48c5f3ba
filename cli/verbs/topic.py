"""`topicctl topic`: the topics themselves."""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import islice
from typing import Any

import click

from topicd.cli.app import FIELD_VALUES, App, Verb, pass_app
from topicd.cli.ask import confirm
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group, did_you_mean
from topicd.cli.show.human import count, local_time, records_word, size
from topicd.cli.show.render import Column
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.errors import TopicNotFound
from topicd.limits import MAX_SEQ
from topicd.model import TopicConfig
from topicd.topic_fields import ALIASES, HELP, plain_name, typed_value
from topicd.values import format_ms, format_size
from topicd.words import counted

topic = Group("topic", help="List, show, create, configure, copy and delete topics.", no_args_is_help=True)
_ROUTERS_TOLD = 5  # by name, when they go with their topic


class FieldsVerb(Verb):
    """A verb whose help ends with the table of topic fields."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Fields (times like 90s, 15m, 1d and sizes like 64MiB are understood)"):
            formatter.write_dl([(field_text(f), HELP[f.name]) for f in fields(TopicConfig)])


def field_text(field: Any) -> str:
    shown = "none" if field.default is None else str(field.default).lower()
    name = field.name.removesuffix("_ms") if field.name.endswith("_ms") else field.name
    if field.name.endswith("_ms"):
        shown = format_ms(field.default)
    return f"{name}={shown}"


def complete_fields(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """FIELD= with what it means, then the values of those that are a choice."""
    from click.shell_completion import CompletionItem

    name, equals, begun = incomplete.partition("=")
    known = {f.name: f for f in fields(TopicConfig)}
    if equals:
        field = known.get(plain_name(name))
        truth = ("true", "false") if field is not None and field.type == "bool" else ()
        choices = () if field is None else field.metadata.get("choice", truth)
        return [CompletionItem(f"{name}={value}") for value in choices if value.startswith(begun)]
    names = [n.removesuffix("_ms") for n in known]
    return [CompletionItem(f"{n}=", help=HELP[plain_name(n)]) for n in names if n.startswith(name)]


def _setting_arguments(function: Any) -> Any:
    return click.argument("settings", nargs=-1, metavar=FIELD_VALUES, shell_complete=complete_fields)(function)


@topic.verb(
    "list",
    examples="""
    topicctl topic list
    topicctl topic list orders. --limit 20
    topicctl topic list --json | jq -r '.[].topic'
    """,
)
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N topics.")
@click.option("--all", "internal", is_flag=True, help="Topicd's own, too.")
@pass_app
def list_topics(app: App, prefix: str, limit: int | None, internal: bool) -> None:
    """List topics, those that begin with PREFIX if given, sorted by name."""
    with app.connect() as client:
        found = list(islice(client.topics(prefix, internal=internal), limit))
    if app.json:
        app.out.document([asdict(info) for info in found])
    elif not found:
        app.out.text("no topics" + (f" that begin with {prefix!r}" if prefix else ""))
    else:
        columns = [
            Column("topic", shrink=True),
            Column("records", right=True),
            Column("bytes", right=True),
            Column("earliest", right=True),
            Column("head", right=True),
            Column("durability"),
            Column("priority", right=True, rank=1),
        ]
        rows = [
            (
                *(t.topic, count(t.count), size(t.bytes), count(t.earliest_seq), count(t.head_seq), t.durability),
                f"{t.effective_priority:,.0f}",
            )
            for t in found
        ]
        app.out.table(columns, rows)


def _compacted(done: dict[str, int]) -> str:
    gone, left = records_word(done["deleted"]), counted(done["left"], "seq")
    return f"through {done['through_seq']}, {gone} deleted, {left} to go"


@topic.verb("show", examples="topicctl topic show orders")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@pass_app
def show(app: App, name: str) -> None:
    """Show what TOPIC holds and how it is configured."""
    with app.connect() as client, known_topic(client, name):
        state = client.state(name, touch=False)
        routers = client.routers.of(name)
    if app.json:
        app.out.document({**asdict(state), "routers_from": routers.leaving, "routers_to": routers.reaching})
        return
    app.out.fields(
        [
            ("topic", state.topic),
            ("id", str(state.topic_id)),
            ("records", count(state.count)),
            ("bytes", size(state.bytes)),
            ("seqs", f"{state.earliest_seq} to {state.head_seq}" if state.count else f"none, next is {state.next_seq}"),
            ("evicted below", str(state.evict_floor)),
            *([("compacted", _compacted(state.compacted))] if state.compacted else []),
            *([("half a commit", f"above {state.settled_seq}")] if state.open_commits else []),
            *([("power loss", ", ".join(f"{first} to {last}" for first, last in state.lost))] if state.lost else []),
            *([("copied by", ", ".join(routers.leaving))] if routers.leaving else []),
            *([("fed by", ", ".join(routers.reaching))] if routers.reaching else []),
            ("last write", local_time(state.last_write_ts)),
            ("last read", local_time(state.last_read_ts)),
            ("priority", f"{state.effective_priority:,.0f}"),
        ]
    )
    app.out.text("")
    _show_config(app, state.config)


@topic.verb(
    "create",
    examples="""
    topicctl topic create orders
    topicctl topic create orders durability=fsync ttl=7d cap_bytes=10GiB
    """,
    cls=FieldsVerb,
)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@_setting_arguments
@click.option("--if-missing", is_flag=True, help="Leave a topic that exists as it is.")
@pass_app
def create(app: App, name: str, settings: tuple[str, ...], if_missing: bool) -> None:
    """Create TOPIC. Publishing creates topics too; this is for a configuration from the start."""
    given = parse_config(settings)
    with app.connect() as client:
        try:
            client.state(name, touch=False)
        except TopicNotFound:
            config = client.configure(name, **given)
            _configured(app, name, config, created=True)
            return
        if not if_missing:
            raise CliError(f"topic {name!r} exists already", Exit.REFUSED, "`topicctl topic config` changes it")
        _configured(app, name, client.state(name, touch=False).config, created=False)


@topic.verb(
    "config",
    examples="""
    topicctl topic config orders
    topicctl topic config orders ttl=1d cap_bytes=1GiB
    """,
    cls=FieldsVerb,
)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@_setting_arguments
@pass_app
def config(app: App, name: str, settings: tuple[str, ...]) -> None:
    """Show the configuration of TOPIC, or change the fields given."""
    given = parse_config(settings)
    with app.connect() as client, known_topic(client, name):
        found = client.state(name, touch=False).config
        if given:
            found = client.configure(name, **given)
    _configured(app, name, found, created=False)


@topic.verb("forgive", examples="topicctl topic forgive orders --gap 1025-2048")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--gap", metavar="FIRST-LAST", required=True, help="Seqs, as the reader was told them, or `all`.")
@pass_app
def forgive(app: App, name: str, gap: str) -> None:
    """Let readers go on behind what a loss of power may have taken of TOPIC.

    They are told of it until then, and those that must not miss anything stop there. `topicctl topic show` lists it.
    """
    first, last = _parse_gap(gap)
    with app.connect() as client, known_topic(client, name):
        forgiven = client.forgive(name, first, last)
    app.out.either(
        {"topic": name, "forgiven": forgiven},
        f"forgiven: seqs {', '.join(f'{a} to {b}' for a, b in forgiven)} of {name}",
    )


def _parse_gap(text: str) -> tuple[int, int]:
    if text == "all":
        return 1, MAX_SEQ
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()) or not 1 <= int(first) <= int(last or first) <= MAX_SEQ:
        raise click.BadParameter(f"{text!r} is not FIRST-LAST, one seq or all", param_hint="--gap")
    return int(first), int(last or first)


@topic.verb("delete", examples="topicctl topic delete orders --yes")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--if-empty", is_flag=True, help="Refuse when it holds records.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def delete(app: App, name: str, if_empty: bool, yes: bool) -> None:
    """Delete TOPIC with everything in it."""
    with app.connect() as client, known_topic(client, name):
        state = client.state(name, touch=False)
        known = client.routers.of(name)
        routers = [*known.leaving, *known.reaching]  # they go with it
        also = _named(routers)
        confirm(f"delete topic {name!r} with {records_word(state.count)}{also}?", yes)
        topic_id = client.delete_topic(name, if_empty=if_empty)
    app.out.either(
        {"topic": name, "topic_id": topic_id, "deleted": True, "count": state.count, "routers": routers},
        f"deleted {name} and {records_word(state.count)}{also}",
    )


def _named(routers: list[str]) -> str:
    if not routers:
        return ""
    told = ", ".join(routers[:_ROUTERS_TOLD]) + (", …" if len(routers) > _ROUTERS_TOLD else "")
    return f" and {counted(len(routers), 'router')} ({told})"


def parse_config(pairs: tuple[str, ...]) -> dict[str, Any]:
    """FIELD=VALUE as the configuration's own types; times like 1d and sizes like 1GiB are understood."""
    known = {f.name: f for f in fields(TopicConfig)}
    found: dict[str, Any] = {}
    for pair in pairs:
        said, equals, text = pair.partition("=")
        name = plain_name(said)
        if not equals:
            raise click.UsageError(f"{pair!r} is not FIELD=VALUE")
        if name not in known and name != "durable":
            words = [*known, *ALIASES]
            near = did_you_mean(said, words) or f"; there are {', '.join(known)}"
            raise click.UsageError(f"there is no field {said!r}{near}")
        if name in found:
            raise click.UsageError(f"{said} is given twice")
        try:
            found[name] = typed_value(name, text, _kind(name, known))
        except ValueError as exc:
            raise click.UsageError(f"{said} {exc}, not {text!r}") from None
    return found


KINDS = ("choice", "range", "real", "schema")


def _kind(name: str, known: dict[str, Any]) -> str:
    rule = known[name].metadata if name in known else {}
    return "topic" if name == "dead_letter" else next((k for k in KINDS if k in rule), "flag")


def _configured(app: App, name: str, config: TopicConfig, *, created: bool) -> None:
    if app.json:
        app.out.document({"topic": name, "created": created, "config": asdict(config)})
        return
    if created:
        app.out.text(f"created {name}")
    _show_config(app, config)


def _show_config(app: App, config: TopicConfig) -> None:
    plain = TopicConfig()
    pairs = []
    for name, value in asdict(config).items():
        text = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if name.endswith("_ms") and value:
            text = f"{value} ({format_ms(value)})"
        elif name.endswith("_bytes") and value:
            text = f"{value} ({format_size(value)})" if format_size(value) != str(value) else text
        changed = value != getattr(plain, name)
        pairs.append((name, app.out.styled(text, "yellow") if changed else text))
    app.out.fields(pairs)
