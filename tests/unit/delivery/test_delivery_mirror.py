"""The rule of the house: every module of delivery has a test file of its own name, in the same room."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parents[2] / "shards" / "delivery"
# Dunder files hold nothing that could be called here: __main__ is what the process tests start.
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if not path.stem.startswith("__"))


def names(module: Path) -> list[str]:
    """Basenames are unique among all tests, so one of two modules of the same name says its room, too."""
    room = module.parent.as_posix().replace("/", "_")
    return [f"test_delivery_{module.stem}.py", f"test_delivery_{room}_{module.stem}.py"]


def test_there_are_modules() -> None:
    assert Path("writing/log.py") in MODULES


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_it_has_a_test_of_its_own(module: Path) -> None:
    found = [name for name in names(module) if (TESTS / module.parent / name).exists()]
    assert found, f"shards/delivery/{module} has no test: tests/unit/delivery/{module.parent}/ lacks {names(module)[0]}"


def test_no_test_is_left_of_a_module_that_is_gone() -> None:
    known = {(module.parent / name).as_posix() for module in MODULES for name in names(module)}
    known.add(Path(__file__).name)
    found = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    assert found - known == set()


def test_basenames_are_unique() -> None:
    """Tests are no packages: two files of one name would hide each other."""
    found = [path.name for path in TESTS.parent.rglob("test_*.py")]
    assert sorted({name for name in found if found.count(name) > 1}) == []
