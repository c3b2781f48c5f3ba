"""`python -m docs.generate [--check]`: the parts of the documentation that follow from the code.

docs/settings.md is made whole from the declaration of the settings, docs/client-reference.md from the docstrings of
the client; in docs/protocol.md the tables between markers are made from the declared messages and the error classes.
With --check nothing is written and a page that is out of date is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from docs import reference
from topicd.config import render_settings_markdown
from topicd.errors import ERRORS
from topicd.ipc.protocol.fields import Rule
from topicd.ipc.protocol.messages import REQUESTS

DOCS = Path(__file__).parent
BEGIN = "<!-- made by docs/generate.py from {} -->"
END = "<!-- end of what was made -->"


def error_table() -> str:
    rows = ["| code | HTTP status | retriable | meaning |", "|---|---|---|---|"]
    for error in ERRORS.values():
        retriable = "yes" if error.retriable else "no"
        rows.append(f"| `{error.code}` | {error.status} | {retriable} | {error.summary} |")
    return "\n".join(rows)


def request_table() -> str:
    rows = ["| op | name | right | request | answer |", "|---|---|---|---|---|"]
    for op, request in sorted(REQUESTS.items()):
        right = " or ".join(request.RIGHT)
        fields = "; ".join(_field(name, rule) for name, rule in request.RULES.items()) or "`{}`"
        rows.append(f"| 0x{op:02x} | {request.OP.name} | {right} | {fields} | `{request.ANSWER}` |")
    return "\n".join(rows)


def _field(name: str, rule: Rule) -> str:
    default = "" if rule.needed or rule.default in (None, (), "") else f", default {str(rule.default).lower()}"
    meaning = f": {rule.help}" if rule.help else ""
    return f"`{name}`{'' if rule.needed else '?'} ({rule.kind}{default}){meaning}"


def protocol(text: str) -> str:
    text = filled(text, "ipc/protocol/messages.py", request_table())
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
