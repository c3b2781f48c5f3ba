"""Questions before something is gone for good."""

from __future__ import annotations

import sys

import click

from topicd.cli.exits import CliError, Exit


def confirm(question: str, yes: bool) -> None:
    """Returns when it may be done. Without a terminal nobody can answer, so --yes is asked for."""
    if yes:
        return
    if not can_answer():
        raise CliError("not done: this needs a confirmation", Exit.USAGE, "--yes gives it")
    if not click.confirm(question, err=True):
        raise CliError("not done", Exit.REFUSED)


def can_answer() -> bool:
    return sys.stdin.isatty()
