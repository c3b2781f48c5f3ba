"""`topicctl debug`: what tests ask of a daemon that runs on their clock (the setting test_clock)."""

from __future__ import annotations

import click

from topicd.cli.app import App, pass_app
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.show.pressure import pressure_line

debug = Group("debug", help="Make a test daemon do what it seldom does (the setting test_clock).")


@debug.verb("pressure", examples="topicctl debug pressure 0.9\ntopicctl debug pressure off")
@click.argument("value")
@pass_app
def pressure(app: App, value: str) -> None:
    """Say that the pressure is VALUE, 0 to 1, until `off` lets it be what it is."""
    from topicd.client.core import requests

    with app.connect() as client:
        found = client._caller.ask(requests.force_pressure(_wanted(value)))
    app.out.either(found, f"pressure {pressure_line(found)}")


def _wanted(value: str) -> float | None:
    if value == "off":
        return None
    try:
        wanted = float(value)
    except ValueError:
        wanted = -1.0
    if not 0 <= wanted <= 1:
        raise CliError(f"the pressure is a number from 0 to 1, or off, not {value!r}", Exit.USAGE)
    return wanted
