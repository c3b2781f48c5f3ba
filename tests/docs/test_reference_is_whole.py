"""The client reference has every public name, and every class that a public method returns."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import topicd
import topicd.aio

PAGE = (Path(__file__).parents[2] / "docs/client-reference.md").read_text()
HEADINGS = set(re.findall(r"^## (\S+)", PAGE, re.MULTILINE))
ELSEWHERE = {"Any", "Iterator", "AsyncIterator", "Event", "Future", "Caller", "AioCaller", "None"}


@pytest.mark.parametrize("module", [topicd, topicd.aio], ids=["topicd", "topicd.aio"])
def test_every_public_name_has_its_section(module: Any) -> None:
    things = {name: getattr(module, name) for name in module.__all__}
    names = [name for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)]
    missing = [name for name in names if not {f"topicd.{name}", f"topicd.aio.{name}"} & HEADINGS]
    assert len(names) > 10 and not missing


@pytest.mark.parametrize("cls", [topicd.Client, topicd.aio.AsyncClient])
def test_what_a_client_returns_is_public(cls: type[Any]) -> None:
    known = {heading.rpartition(".")[2] for heading in HEADINGS}
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_"):
            returned = set(re.findall(r"\b[A-Z]\w+", str(inspect.signature(method).return_annotation)))
            assert returned - ELSEWHERE <= known, name
