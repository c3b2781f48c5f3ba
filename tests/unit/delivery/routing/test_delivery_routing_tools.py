"""The workshop has what a router needs."""

from __future__ import annotations

import inspect

from topicd.shards.delivery.routing.tools import Tools
from topicd.shards.delivery.routing.workshop import Workshop


def test_the_workshop_has_every_tool() -> None:
    wanted = [name for name, _ in inspect.getmembers(Tools, inspect.isfunction) if not name.startswith("_")]
    assert {"feed", "forward", "note", "made_hole"} <= set(wanted)
    for name in wanted:
        assert list(inspect.signature(getattr(Workshop, name)).parameters) == list(
            inspect.signature(getattr(Tools, name)).parameters
        )
