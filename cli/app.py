"""What every verb shares: where the daemon is, how long to wait, how to print, and how verbs are declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.show.render import Output

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client

DEFAULT_TIMEOUT_S = 10.0


@dataclass
class App:
    """One run of topicctl. Made by the root command; options of a verb refine it."""

    socket: str | None = None
    timeout: float = DEFAULT_TIMEOUT_S
    json: bool = False
    context: str | None = None

    @cached_property
    def out(self) -> Output:
        return Output(json_mode=self.json)

    def connect(self) -> Client:
        import topicd

        if self.socket is None:
            from topicd.cli.contexts import Contexts

            chosen = Contexts.load().chosen(self.context)
            if chosen is not None:
                return topicd.connect(
                    chosen.target, timeout=self.timeout, token=chosen.token(), ca_file=chosen.ca_file or None
                )
        return topicd.connect(self.socket, timeout=self.timeout)


pass_app = click.make_pass_decorator(App, ensure=True)


def shared_options(*, online: bool) -> list[click.Option]:
    found = [
        click.Option(["--json"], is_flag=True, expose_value=False, callback=_set_json, help="Print JSON."),
    ]
    if online:
        found += [
            click.Option(
                ["-s", "--socket"],
                metavar="PATH",
                expose_value=False,
                callback=_set_socket,
                help="Socket, run directory or URL of the daemon (TOPICD_SOCKET).",
            ),
            click.Option(
                ["--context"],
                metavar="NAME",
                expose_value=False,
                callback=_set_context,
                help="The daemon of that name; see `topicctl context`.",
            ),
            click.Option(
                ["--timeout"],
                type=click.FloatRange(min=0.1),
                metavar="SECONDS",
                expose_value=False,
                callback=_set_timeout,
                help=f"How long a request may take [default: {DEFAULT_TIMEOUT_S:g}].",
            ),
        ]
    return found


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(App).json = True


def _set_socket(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        ctx.ensure_object(App).socket = value


def _set_context(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        ctx.ensure_object(App).context = value


def _set_timeout(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    if value is not None:
        ctx.ensure_object(App).timeout = value


class Verb(click.Command):
    """A command with the shared options and with examples at the end of its help."""

    def __init__(self, *args: Any, examples: str = "", online: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.extend(shared_options(online=online))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [line.strip() for line in self.examples.strip().splitlines()]
        if lines:
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def verb(
    name: str, *, examples: str, online: bool = True, cls: type[Verb] = Verb
) -> Callable[[Callable[..., Any]], Verb]:
    return click.command(name, cls=cls, examples=examples, online=online)
