"""Every mutant still finds the one place that it changes, and the tests that must kill it exist."""

from __future__ import annotations

import pytest

from tests import mutants
from tests.unit.storage import mutants as storage_mutants

ROOT = storage_mutants.ROOT
ALL = {f"{mutant.file}: {mutant.name}": mutant for mutant in (*mutants.MUTANTS, *storage_mutants.MUTANTS)}


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_changes_one_place(name: str) -> None:
    mutant = ALL[name]
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_of_a_mutant_exist(mutant: mutants.Mutant) -> None:
    for argument in mutant.tests:
        if argument.startswith("tests/"):
            assert (ROOT / argument.partition("::")[0]).exists()
