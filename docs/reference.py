"""The client reference, made from the docstrings and signatures of the public API."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any

import topicd
from topicd import aio
from topicd.client.core.operations import Declared

HEAD = """# Client reference

Made by `python -m docs.generate` from the docstrings. For a guided tour see [client.md](client.md).
"""
FIRST = (
    "Client",
    "Producer",
    "Delivery",
    "Deliveries",
    "Pipeline",
    "Watch",
    "Consumer",
    "Batch",
    "ReadResult",
    "Record",
)
AIO_FIRST = ("AsyncClient", "AsyncProducer", "AsyncDelivery", "AsyncPipeline", "AsyncWatch", "AsyncConsumer")


def classes(module: Any, first: tuple[str, ...]) -> list[str]:
    """Every public class, the most important ones first."""
    public = [name for name in module.__all__ if inspect.isclass(getattr(module, name))]
    return [*first, *(name for name in sorted(public) if name not in first)]


def functions(module: Any) -> list[str]:
    return [name for name in sorted(module.__all__) if inspect.isfunction(getattr(module, name))]


def render() -> str:
    parts = [HEAD, _function("topicd.connect", topicd.connect)]
    parts += [_class(f"topicd.{name}", getattr(topicd, name)) for name in classes(topicd, FIRST)]
    parts += [_function(f"topicd.{name}", getattr(topicd, name)) for name in functions(topicd) if name != "connect"]
    parts.append(_function("topicd.aio.connect", aio.connect))
    own = [name for name in classes(aio, AIO_FIRST) if not hasattr(topicd, name)]
    parts += [_class(f"topicd.aio.{name}", getattr(aio, name)) for name in own]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _class(name: str, cls: type[Any]) -> str:
    parts = [f"## {name}\n\n{_text(cls)}"]
    if is_dataclass(cls):
        kinds = {field.name: str(field.type).replace("|", "\\|") for field in fields(cls)}
        parts.append("\n".join(["| field | type |", "|---|---|", *(f"| `{n}` | `{k}` |" for n, k in kinds.items())]))
    for member, value in _members(cls).items():
        if member.startswith("_") or not inspect.getdoc(value):
            continue
        if isinstance(value, property):
            parts.append(f"### {name.rpartition('.')[2]}.{member}\n\n{_text(value)}")
        elif inspect.isfunction(value):
            parts.append(_function(f"{name.rpartition('.')[2]}.{member}", value, level="###"))
    return "\n\n".join(part.rstrip() for part in parts)


def _members(cls: type[Any]) -> dict[str, Any]:
    """Its own and those it inherits from classes of ours, which are listed nowhere else."""
    # What is declared for both faces is a method of each: see give_methods.
    own = (base for base in reversed(cls.__mro__) if base is not Declared)
    ours = [base for base in own if base.__module__.startswith("topicd.client.")]
    return {member: value for base in ours or [cls] for member, value in vars(base).items()}


def _function(name: str, function: Any, level: str = "##") -> str:
    signature = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)  # annotations are kept as text
    return f"{level} {name}\n\n```text\n{name}{signature}\n```\n\n{_text(function)}"


def _text(thing: Any) -> str:
    """A docstring as Markdown: examples in the doctest style become blocks."""
    out: list[str] = []
    for block in (inspect.getdoc(thing) or "").split("\n\n"):
        out.append(f"```text\n{block}\n```" if block.lstrip().startswith(">>>") else textwrap.dedent(block))
    return "\n\n".join(out)
