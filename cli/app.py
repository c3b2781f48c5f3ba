"""What every verb shares: where the daemon is, how long to wait, how to print, and how verbs are declared."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

import click

from topicd.cli.show.render import Output

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client

DEFAULT_TIMEOUT_S = 10.0


class Where(TypedDict, total=False):
    target: str | None
    token: str | None
    ca_file: str | None


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

        return topicd.connect(**self.where(), timeout=self.timeout)

    def where(self) -> Where:
        """The daemon that is meant, for `connect`."""
        if self.socket is not None and self.context is not None:
            raise click.UsageError("--socket and --context exclude each other")
        if self.socket is None:
            from topicd.cli.contexts import Contexts

            chosen = Contexts.load().chosen(self.context)
            if chosen is not None:
                return {"target": chosen.target, "token": chosen.token(), "ca_file": chosen.ca_file or None}
        return {"target": self.socket}

    @property
    def remote(self) -> bool:
        """Is that daemon on another machine?"""
        from topicd.client.core.address import is_remote

        return is_remote(str(self.where().get("target") or os.environ.get("TOPICD_SOCKET", "")))


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


# What a verb calls its argument of settings.
FIELD_VALUES = "[FIELD=VALUE]..."


class Verb(click.Command):
    """A command with the shared options and with examples at the end of its help. Promise: no option that was typed is
    silently ignored because of another one: those that exclude each other (`apart`) and those that mean nothing alone
    (`needs`, the first of each goes only with one of the others) are refused before anything is done.
    """

    def __init__(
        self,
        *args: Any,
        examples: str = "",
        online: bool = True,
        apart: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.apart = [words.split() for words in apart]
        self.needs = [words.split() for words in needs]
        self.params.extend(shared_options(online=online))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            if not any(param.metavar == FIELD_VALUES for param in self.params):
                raise
            word = exc.option_name.lstrip("-").replace("-", "_")
            raise click.UsageError(f"there is no option {exc.option_name}; fields are given as {word}=VALUE") from None
        if (self.apart or self.needs) and not ctx.resilient_parsing:
            self._check_together(self._typed(ctx, typed))
        return rest

    def _typed(self, ctx: click.Context, args: list[str]) -> set[str]:
        """Options as they are spelled in full, arguments by their names."""
        values, _, order = self.make_parser(ctx).parse_args(args=args)
        found = {max(param.opts, key=len) for param in order if isinstance(param, click.Option)}
        words = {p: values.get(p.name or "") for p in order if isinstance(p, click.Argument)}
        # One that was left out is None or a marker of click's; of a list, no element.
        found |= {argument_name(p) for p, value in words.items() if isinstance(value, str | tuple | list) and value}
        app = ctx.find_object(App)
        return found | {"--json"} if app is not None and app.json else found

    def _check_together(self, typed: set[str]) -> None:
        for names in self.apart:
            both = [name for name in names if name in typed]
            if len(both) > 1:
                raise click.UsageError(f"{both[0]} and {both[1]} exclude each other")
        for name, *others in self.needs:
            if name in typed and typed.isdisjoint(others):
                raise click.UsageError(f"{name} goes only with {' or '.join(others)}")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [line.strip() for line in self.examples.strip().splitlines()]
        if lines:
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def argument_name(argument: click.Parameter) -> str:
    """`[SEQ]...` -> SEQ"""
    return (argument.metavar or argument.name or "").upper().strip("[].")


def verb(
    name: str,
    *,
    examples: str,
    online: bool = True,
    apart: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    cls: type[Verb] = Verb,
) -> Callable[[Callable[..., Any]], Verb]:
    return click.command(name, cls=cls, examples=examples, online=online, apart=apart, needs=needs)
