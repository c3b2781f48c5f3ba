"""The changelog opens with what is not released yet, and knows the present version."""

from __future__ import annotations

import re
from pathlib import Path

import topicd

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "CHANGELOG.md").read_text().splitlines()
HEADINGS = [line.removeprefix("## ") for line in LINES if line.startswith("## ")]


def test_unreleased_stands_on_top() -> None:
    assert LINES[0] == "# Changelog"
    assert HEADINGS[0] == "Unreleased"


def test_releases_have_a_version_and_a_date_and_stand_newest_first() -> None:
    versions = []
    for heading in HEADINGS[1:]:
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \(\d{4}-\d\d-\d\d\)", heading)
        assert found, heading
        versions.append(tuple(int(part) for part in found.groups()))
    assert versions == sorted(versions, reverse=True)


def test_every_section_says_something() -> None:
    for heading in HEADINGS:
        at = LINES.index(f"## {heading}")
        following = next((i for i in range(at + 1, len(LINES)) if LINES[i].startswith("## ")), len(LINES))
        assert any(line.startswith("- ") for line in LINES[at:following]), heading


def test_the_package_and_the_metadata_agree_on_the_version() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{topicd.__version__}"' in project
