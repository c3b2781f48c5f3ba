"""Machine code is used only if it was made from the sources that lie beside it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topicd import compiled

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns("__pycache__")
LOOK = "from topicd import compiled; from topicd.ipc import ring; print(compiled.why_not_used, '|', ring.__file__)"
BUILT = (ROOT / "topicd/_native/compiled.crc").exists()


def look(root: Path, **environment: str) -> tuple[str, str]:
    """Why a process whose modules lie in root does not use machine code, and from where it took one of them."""
    env = {**os.environ, "PYTHONPATH": str(root), **environment}
    done = subprocess.run([sys.executable, "-c", LOOK], env=env, cwd=root, capture_output=True, text=True, check=True)
    why, _, file = done.stdout.strip().partition("|")
    return why.strip(), Path(file.strip()).name


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("topicd", "ipc", "shards"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=IGNORED)
    for group in ROOT.glob(f"{compiled.GROUP}*.so"):
        shutil.copy(group, tmp_path)
    return tmp_path


def test_every_listed_module_is_there() -> None:
    assert [name for name in compiled.MODULES if not compiled.source_of(name).is_file()] == []


def test_whoever_asks_for_the_sources_gets_them(tree: Path) -> None:
    assert look(tree, TOPICD_COMPILED="0") == ("TOPICD_COMPILED=0 is set", "ring.py")
    assert look(tree, TOPICD_PURE="1") == ("TOPICD_PURE=1 is set", "ring.py")


def test_without_a_note_of_what_it_was_made_from_machine_code_is_not_used(tree: Path) -> None:
    (tree / "topicd/_native/compiled.crc").unlink(missing_ok=True)
    assert look(tree) == ("nothing was compiled", "ring.py")


@pytest.mark.skipif(not BUILT, reason="nothing was compiled")
def test_machine_code_is_used_until_one_source_changes(tree: Path) -> None:
    why, file = look(tree)
    assert not why
    assert file.endswith(".so")
    with (tree / "ipc/doorbell.py").open("a") as source:
        source.write("# changed\n")
    assert look(tree) == ("the sources have changed since they were compiled", "ring.py")
    compiled.note_built(tree)
    assert not look(tree)[0]


def test_this_process_tests_the_sources() -> None:
    assert compiled.why_not_used


def test_no_interpreted_class_stands_on_a_compiled_one() -> None:
    """It could be imported, and not made."""
    wrong = []
    for path in sorted((ROOT / "shards").rglob("*.py")):
        tree = ast.parse(path.read_text())
        module = ".".join(("topicd", *path.relative_to(ROOT).with_suffix("").parts))
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and module not in compiled.MODULES:
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                wrong += [f"{module}.{node.name}({base})" for base in bases if imported.get(base) in compiled.MODULES]
    assert wrong == []
