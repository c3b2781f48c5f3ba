"""Groups of verbs that load a verb's module only when it is called, and know what a typo was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import click

from topicd.cli.app import Verb, verb


class Lazy(NamedTuple):
    where: str  # module:attribute
    help: str  # one line, shown without loading the module


class Group(click.Group):
    """Subcommands are those registered, plus those that `lazy` names."""

    def __init__(self, *args: Any, lazy: dict[str, Lazy] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *(name for name in self.commands if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy and cmd_name not in self.commands:
            module, _, attribute = self.lazy[cmd_name].where.partition(":")
            self.commands[cmd_name] = getattr(import_module(module), attribute)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"there is no command {name!r}{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            # Its first sentence, whole: the list wraps it.
            text = self.lazy[name].help if name in self.lazy else self.commands[name].get_short_help_str(400)
            rows.append((name, text))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def verb(
        self,
        name: str,
        *,
        examples: str,
        online: bool = True,
        apart: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        cls: type[Verb] = Verb,
    ) -> Callable[[Callable[..., Any]], Verb]:
        """Declares a verb of this group."""

        def declare(function: Callable[..., Any]) -> Verb:
            made = verb(name, examples=examples, online=online, apart=apart, needs=needs, cls=cls)(function)
            self.add_command(made)
            return made

        return declare


def did_you_mean(word: str, known: list[str]) -> str:
    """`; did you mean …?` or nothing."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""
