"""`python -m docs.generate [--check]`: the parts of the documentation that follow from the code.

docs/settings.md is made whole from the declaration of the settings, docs/client-reference.md from the docstrings of
the client; in docs/protocol.md the tables between markers are made from the declared messages and the error classes.
With --check nothing is written and a page that is out of date is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from docs import reference
from topicd.config import render_settings_markdown
from topicd.errors import ERRORS
from topicd.ipc.protocol.chat import CHAT_REQUESTS, ChatRequest
from topicd.ipc.protocol.fields import Rule
from topicd.ipc.protocol.messages import REQUESTS, Request
from topicd.model import TopicConfig
from topicd.topic_fields import HELP, unit_of
from topicd.values import format_ms

DOCS = Path(__file__).parent
BEGIN = "<!-- made by docs/generate.py from {} -->"
END = "<!-- end of what was made -->"


def error_table() -> str:
    rows = ["| code | HTTP status | retriable | meaning |", "|---|---|---|---|"]
    for error in ERRORS.values():
        retriable = "yes" if error.retriable else "no"
        rows.append(f"| `{error.code}` | {error.status} | {retriable} | {error.summary} |")
    return "\n".join(rows)


def request_table(requests: Mapping[int, type[Request] | type[ChatRequest]]) -> str:
    rows = ["| op | name | right | request | answer |", "|---|---|---|---|---|"]
    for op, request in sorted(requests.items()):
        right = " or ".join(request.RIGHT)
        fields = "; ".join(_field(name, rule) for name, rule in request.RULES.items()) or "`{}`"
        rows.append(f"| 0x{op:02x} | {request.OP.name} | {right} | {fields} | `{request.ANSWER}` |")
    return "\n".join(rows)


def _field(name: str, rule: Rule) -> str:
    default = "" if rule.needed or rule.default in (None, (), "") else f", default {str(rule.default).lower()}"
    meaning = f": {rule.help}" if rule.help else ""
    return f"`{name}`{'' if rule.needed else '?'} ({rule.kind}{default}){meaning}"


def topic_fields(text: str) -> str:
    rows = ["| field | default | may be | meaning |", "|---|---|---|---|"]
    for f in fields(TopicConfig):
        rows.append(f"| `{f.name}` | `{_shown(f.name, f.default)}` | {_allowed(f)} | {HELP[f.name]} |")
    return TOPIC_FIELDS_HEAD + "\n".join(rows) + "\n"


TOPIC_FIELDS_HEAD = """# Topic fields

What can be said about a topic: `topicctl topic create TOPIC FIELD=VALUE…`, `topicctl topic config`,
`client.configure(topic, field=value)`, the CONFIGURE request. Made by `python -m docs.generate` from the declaration.

A time is a number of milliseconds or has a unit (`250ms`, `90s`, `15m`, `2h`, `1d`, `1w`); its field may be written
without `_ms`: `ttl=1d`. A size is a number of bytes or has a unit (`64MiB`, `1.5GiB`, powers of 1024). The HTTP API
takes plain numbers only.

```sh
topicctl topic create readings ttl=7d cap_bytes=1GiB durability=disk
```

`durable=true` is `durability=fsync`. Fields of queues (`lease_ms` and below) count for topics of `type=queue`.

"""


def _shown(name: str, default: Any) -> str:
    if default is None:
        return "none"
    if name.endswith("_ms"):
        return format_ms(default)
    return str(default).lower() if isinstance(default, bool) else str(default)


def _allowed(f: Any) -> str:
    rule = f.metadata
    if "choice" in rule:
        return ", ".join(f"`{word}`" for word in rule["choice"])
    if "schema" in rule:
        return "a JSON Schema, `none`"
    if f.name == "dead_letter":
        return "a topic, `none`"
    if "range" not in rule and "real" not in rule:
        return "`true`, `false`"
    low, high = rule.get("range") or rule["real"]
    what = unit_of(f.name) and ("a time" if f.name.endswith("_ms") else "a size")
    text = f"{what} " if what else ""
    if high >= 2**62:
        return f"{text}from {low}"
    return f"{text}from {_shown(f.name, low)} to {_shown(f.name, high)}" + (", `none`" if f.name == "priority" else "")


def protocol(text: str) -> str:
    text = filled(text, "ipc/protocol/messages/", request_table(REQUESTS))
    text = filled(text, "ipc/protocol/chat.py", request_table(CHAT_REQUESTS))
    return filled(text, "topicd/errors.py", error_table())


def filled(text: str, source: str, table: str) -> str:
    begin = BEGIN.format(source)
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"docs/protocol.md lacks the markers {begin} and {END}")
    return f"{before}{begin}\n\n{table}\n\n{END}{after}"


PAGES: dict[str, Callable[[str], str]] = {
    "client-reference.md": lambda text: reference.render(),
    "settings.md": lambda text: render_settings_markdown(),
    "protocol.md": protocol,
    "topic-fields.md": topic_fields,
}


def stale() -> dict[Path, str]:
    """Pages that are not as they should be, and what they should be."""
    found = {}
    for name, render in PAGES.items():
        path = DOCS / name
        text = path.read_text() if path.exists() else ""
        if (wanted := render(text)) != text:
            found[path] = wanted
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.generate")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    check = parser.parse_args().check
    pages = stale()
    for path, wanted in pages.items():
        sys.stdout.write(f"{path.relative_to(DOCS.parent)} {'is out of date' if check else 'written'}\n")
        if not check:
            path.write_text(wanted)
    return 1 if check and pages else 0


if __name__ == "__main__":
    sys.exit(main())
