"""The documentation speaks of what is there: generated parts are current, links lead somewhere, cited names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from docs import generate
from topicd.cli.main import root_command
from topicd.errors import ERRORS
from topicd.ipc.protocol.messages import REQUESTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
OURS = [DOCS / name for name in ("overview.md", "data-path.md", "guarantees.md", "tuning.md", "formats.md")]
OURS += sorted((DOCS / "adr").glob("*.md"))
_LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)[^)]*\)")
_CITED_FILE = re.compile(r"`((?:topicd|ipc|shards|cli|tests|docs|systemd)/[\w./-]+)`")
_CITED_SYMBOL = re.compile(r"`([A-Z]\w+)\.(_?[a-z]\w+)`")
# In backquotes or at the beginning of a line; options before the verb, if they have values, are written --option=value.
_VERB = re.compile(r"(?:`|^ *(?:\$ )?)topicctl ((?!-)[a-z][a-z-]*)(?: ((?!-)[a-z][a-z-]*)(?=[ `\n]))?", re.MULTILINE)
_SOURCE = "\n".join(
    path.read_text() for folder in ("topicd", "ipc", "shards", "cli") for path in (ROOT / folder).rglob("*.py")
)


def test_generated_parts_are_current() -> None:
    stale = [str(path.relative_to(ROOT)) for path in generate.stale()]
    assert stale == [], "run `make docs`"


def test_the_generator_checks_without_writing() -> None:
    command = [sys.executable, "-m", "docs.generate", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_a_page_out_of_date_is_noticed_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    (tmp_path / "settings.md").write_text("old")
    sources = ("ipc/protocol/messages/", "ipc/protocol/chat.py", "topicd/errors.py")
    places = "".join(f"{generate.BEGIN.format(source)}\nold\n{generate.END}\n" for source in sources)
    (tmp_path / "protocol.md").write_text(f"before\n{places}after\n")
    found = generate.stale()
    pages = ["client-reference.md", "protocol.md", "settings.md", "topic-fields.md"]
    assert sorted(path.name for path in found) == pages
    page = found[tmp_path / "protocol.md"]
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert all(f"`{code}`" in page for code in ERRORS)
    assert all(f"| {request.OP.name} |" in page for request in REQUESTS.values())
    for path, wanted in found.items():
        path.write_text(wanted)
    assert generate.stale() == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_cited_files_exist(page: Path) -> None:
    cited = [name for name in _CITED_FILE.findall(page.read_text()) if "*" not in name and "NN" not in name]
    assert [name for name in cited if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", OURS, ids=lambda page: str(page.relative_to(ROOT)))
def test_cited_symbols_exist(page: Path) -> None:
    missing = []
    for owner, member in _CITED_SYMBOL.findall(page.read_text()):
        defined = re.search(rf"^class {owner}\b", _SOURCE, re.M) and re.search(rf"\bdef {member}\b", _SOURCE)
        if not defined:
            missing.append(f"{owner}.{member}")
    assert missing == []


@pytest.mark.parametrize("page", sorted((DOCS / "adr").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_has_context_decision_and_consequences_on_one_page(page: Path) -> None:
    text = page.read_text()
    number = int(page.name[:4])
    assert text.startswith(f"# {number}. ")
    assert re.findall(r"^## (.+)$", text, re.M) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= 70


def test_the_tables_of_the_readme_name_every_page_once() -> None:
    _, _, tables = (ROOT / "README.md").read_text().partition("## Where to read on")
    named = re.findall(r"\]\(docs/([\w-]+\.md)\)", tables)
    assert sorted(named) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    assert len(named) == len(set(named))


def test_every_verb_that_pages_and_help_speak_of_exists() -> None:
    root = root_command()
    context = click.Context(root)
    wrong = []
    for path in [*PAGES, *(ROOT / "cli").rglob("*.py"), *(ROOT / "topicd").rglob("*.py")]:
        for verb, following in _VERB.findall(path.read_text()):
            found = root.get_command(context, verb)
            if isinstance(found, click.Group) and following:
                found = found.get_command(context, following)
            if found is None:
                wrong.append(f"{path.relative_to(ROOT)}: topicctl {verb} {following}")
    assert wrong == []
