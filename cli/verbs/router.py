"""`topicctl router`: topics that feed topics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from topicd.cli.app import App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group, did_you_mean
from topicd.cli.show import graph as drawing
from topicd.cli.show.human import count, records_word
from topicd.cli.show.render import Column
from topicd.cli.topic_names import complete_topics
from topicd.errors import RouterCycle, RouterNotFound

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client
    from topicd.client.core.answers import RouterInfo
    from topicd.client.core.routing import Skipped

router = Group("router", help="Create, list, show, delete and draw routers.", no_args_is_help=True)

_PATIENCE_S = 10.0
_LOOK_S = 0.1

_NAME = click.argument("name", metavar="ROUTER")
COLUMNS = [
    Column("router", shrink=True),
    Column("from", shrink=True),
    Column("to", shrink=True),
    Column("filter", rank=2),
    Column("copies", right=True),
    Column("lag", right=True),
    Column("waiting", rank=1),
]


class Sample(click.ParamType[int]):
    name = "1/N"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"1/([1-9][0-9]{0,9})", value)
        if found is None:
            self.fail(f"{value!r} is no sample: 1/100 is one record in a hundred", param, ctx)
        return int(found[1])


@router.verb(
    "create",
    examples="""
    topicctl router create orders-audit --from orders --to audit
    topicctl router create eu --from orders --to orders.eu --filter 'eu:*' --set-tag 'copy:{tag}'
    topicctl router create probe --from orders --to probe --sample 1/100
    """,
    apart=("--set-tag --drop-tag", "--set-node --drop-node"),
)
@_NAME
@click.option("--from", "source", required=True, metavar="TOPIC", shell_complete=complete_topics, help="Copied from.")
@click.option("--to", "dest", required=True, metavar="TOPIC", shell_complete=complete_topics, help="Copied into.")
@click.option("--filter", "match", metavar="TAG", help="Only this tag, or this prefix with a star behind it.")
@click.option("--sample", type=Sample(), default=1, metavar="1/N", help="Only one record in N, chosen by a hash.")
@click.option("--set-tag", metavar="TEXT", help="Tag of the copies, with {tag}, {node} and {source}.")
@click.option("--set-node", metavar="TEXT", help="Node of the copies, likewise.")
@click.option("--drop-tag", is_flag=True, help="Copies have no tag.")
@click.option("--drop-node", is_flag=True, help="Copies have no node.")
@click.option("--exactly-once", is_flag=True, help="Write into each copy's meta whose copy it is.")
@click.option("--allow-cycle", is_flag=True, help="Records may come back; they go on 8 times at most.")
@click.option("--no-create", is_flag=True, help="Refuse if the topic that is copied into does not exist.")
@pass_app
def create(
    app: App,
    name: str,
    source: str,
    dest: str,
    match: str | None,
    sample: int,
    set_tag: str | None,
    set_node: str | None,
    drop_tag: bool,
    drop_node: bool,
    exactly_once: bool,
    allow_cycle: bool,
    no_create: bool,
) -> None:
    """Copy every record that comes from now on. The same name again changes the options, not the topics."""
    with app.connect() as client, _explained():
        made = client.routers.create(
            *(name, source, dest),
            create_dest=not no_create,
            preserve_node=not drop_node,
            preserve_tag=not drop_tag,
            filter=match,
            allow_cycle=allow_cycle,
            exactly_once=exactly_once,
            sample=sample,
            set_tag=set_tag,
            set_node=set_node,
        )
    done = "created" if made.created else "has other options now" if made.changed else "is there"
    app.out.either(
        {"created": made.created, "changed": made.changed, **asdict(made.router)},
        f"router {name} {done}: {source} -> {dest}",
    )


@router.verb("list", examples="topicctl router list\ntopicctl router list --from orders --json")
@click.argument("prefix", default="")
@click.option("--from", "source", metavar="TOPIC", shell_complete=complete_topics, help="Only those from this topic.")
@click.option("--to", "dest", metavar="TOPIC", shell_complete=complete_topics, help="Only those into this topic.")
@pass_app
def list_routers(app: App, prefix: str, source: str | None, dest: str | None) -> None:
    """List routers, all or those whose name begins with PREFIX."""
    with app.connect() as client:
        found = list(client.routers.list(prefix, source=source, dest=dest))
    if app.json:
        app.out.document([asdict(one) for one in found])
    elif not found:
        app.out.text("no routers")
    else:
        app.out.table(COLUMNS, [_row(one) for one in found])


def _row(one: RouterInfo) -> tuple[str, ...]:
    match = one.filter[2] if one.filter else ""
    return (one.router, one.source, one.dest, match, _known(one.forwarded_total), _known(one.lag), one.waiting or "")


def _kind(one: RouterInfo) -> str:
    if one.kind == "derived":
        return "derived: copies are made again after a crash, and not logged"
    return "not decided yet" if one.kind is None else f"logged: {one.why}"


def _unreadable(one: RouterInfo) -> str:
    if one.unreadable is None:
        return "nothing"
    first, last = one.unreadable
    return f"seqs {first} to {last} of {one.source}: mend them, or give them up with `topicctl router skip`"


def _known(value: int | None) -> str:
    return "?" if value is None else count(value)


@router.verb("show", examples="topicctl router show orders-audit")
@_NAME
@pass_app
def show(app: App, name: str) -> None:
    """Show what ROUTER does, how far it is and why it waits, if it does."""
    with app.connect() as client, _known_router(client, name):
        one = client.routers.get(name)
    if app.json:
        app.out.document(asdict(one))
        return
    behind = records_word(one.lag or 0)
    if one.lag_ms:
        behind += f", for {one.lag_ms / 1000:.1f} s"
    app.out.fields(
        [
            ("router", one.router),
            ("from", one.source),
            ("to", one.dest),
            ("copies", _known(one.forwarded_total)),
            ("cursor", str(one.cursor)),
            ("lag", behind),
            ("waiting", one.waiting or "no"),
            ("unreadable", _unreadable(one)),
            ("destination", _kind(one)),
            ("filter", one.filter[2] if one.filter else "all records"),
            ("sample", f"1/{one.sample}"),
            ("tag", one.set_tag if one.set_tag is not None else "kept" if one.preserve_tag else "dropped"),
            ("node", one.set_node if one.set_node is not None else "kept" if one.preserve_node else "dropped"),
            ("guarantee", one.guarantee),
            ("cycle", "allowed" if one.allow_cycle else "refused"),
        ]
    )


@router.verb("delete", examples="topicctl router delete orders-audit")
@_NAME
@pass_app
def delete(app: App, name: str) -> None:
    """Delete ROUTER. Copies that are made stay."""
    with app.connect() as client, _known_router(client, name):
        if not client.routers.delete(name):
            raise RouterNotFound(f"no router named {name!r}", router=name)
    app.out.either({"router": name, "deleted": True}, f"router {name} deleted")


@router.verb(
    "skip", examples="topicctl router skip orders-audit        # asks\ntopicctl router skip orders-audit --all --yes"
)
@_NAME
@click.option("--all", "every", is_flag=True, help="All such places, until it can go on.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def skip(app: App, name: str, every: bool, yes: bool) -> None:
    """Give up records that cannot be read, where ROUTER stands because of them.

    It goes on behind them. What it copies into has a gap there, and its readers are told. The daemon logs it.
    """
    done: list[Skipped] = []
    with app.connect() as client, _known_router(client, name):
        while (every or not done) and (one := client.routers.get(name)).unreadable is not None:
            first, last = one.unreadable
            confirm(f"give up seqs {first} to {last} of {one.source}, which cannot be read?", yes)
            done.append(client.routers.skip(name, last))
            if every:
                _wait_until_it_goes_on_or_stands(client, name, last)
    if not done:
        raise CliError(
            f"router {name} does not stand at records that cannot be read",
            Exit.REFUSED,
            f"`topicctl router show {name}` says how far it is",
        )
    if app.json:
        app.out.document([part._asdict() for part in done])
        return
    for part in done:
        (first, last), hole = part
        gap = f"seqs {hole[0]} to {hole[1]} of {one.dest} are a gap" if hole else f"nothing is missing in {one.dest}"
        app.out.text(f"router {name} gave up seqs {first} to {last} of {one.source}: {gap}")


def _wait_until_it_goes_on_or_stands(client: Client, name: str, behind: int) -> None:
    """The next place shows when it gets there."""
    ends = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends:
        one = client.routers.get(name)
        if (one.unreadable is not None and one.unreadable[0] > behind) or not one.lag:
            return
        time.sleep(_LOOK_S)


@router.verb(
    "graph",
    examples="topicctl router graph\ntopicctl router graph --dot | dot -Tsvg > routers.svg",
    apart=("--dot --mermaid --json",),
)
@click.option("--dot", "form", flag_value="dot", help="For Graphviz.")
@click.option("--mermaid", "form", flag_value="mermaid", help="For Markdown.")
@pass_app
def graph(app: App, form: str | None) -> None:
    """Draw which topics feed which."""
    with app.connect() as client:
        edges = [drawing.Edge(one.router, one.source, one.dest, _note(one)) for one in client.routers.list()]
    if app.json:
        app.out.document([edge._asdict() for edge in edges])
    elif form == "dot":
        app.out.text("\n".join(drawing.dot(edges)))
    elif form == "mermaid":
        app.out.text("\n".join(drawing.mermaid(edges)))
    elif not edges:
        app.out.text("no routers")
    else:
        app.out.text("\n".join(drawing.tree(edges)))


def _note(one: RouterInfo) -> str:
    """What is peculiar about it."""
    said = [one.filter[2]] if one.filter else []
    said += [f"1/{one.sample}"] if one.sample > 1 else []
    said += [f"waits: {one.waiting}"] if one.waiting else []
    return ", ".join(said)


@contextmanager
def _known_router(client: Client, name: str) -> Iterator[None]:
    try:
        yield
    except RouterNotFound as exc:
        near = did_you_mean(name, [one.router for one in client.routers.list()])
        hint = "`topicctl router list`"
        raise CliError(f"there is no router {name!r}{near}", Exit.NOT_FOUND, hint, exc.code) from None


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RouterCycle as exc:
        raise CliError(exc.message, Exit.REFUSED, "--allow-cycle permits it; records go on 8 times at most") from None
