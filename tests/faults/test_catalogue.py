"""docs/faults.md and the tests speak of the same fault classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([A-Z]{3,4}-\d{2}) \|", re.MULTILINE)
ID = re.compile(r"[A-Z]{3,4}-\d{2}")


def documented() -> list[str]:
    return ROW.findall((ROOT / "docs" / "faults.md").read_text())


def marked() -> Iterator[str]:
    """Every id in a pytest.mark.fault of any test."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def test_ids_are_well_formed_and_documented_once() -> None:
    found = documented()
    assert len(found) == len(set(found))
    assert all(ID.fullmatch(name) for name in marked())


def test_every_documented_fault_has_a_test_and_every_marked_one_is_documented() -> None:
    assert set(documented()) == set(marked())


def test_page_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in files}
    known |= {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    for name in set(re.findall(r"`(test_[a-z_]+)`", text)):
        assert name in known, name
