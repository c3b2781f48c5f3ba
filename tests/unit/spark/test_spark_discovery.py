"""Spark finds the source by the name of a module, and that module never stands in the way of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIND = "import pkgutil; print('pyspark_topicd' in {found.name for found in pkgutil.iter_modules()})"
IMPORT = "import pyspark_topicd; print(hasattr(pyspark_topicd, 'DefaultSource'))"


def said(code: str, cwd: Path) -> str:
    run = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    return run.stdout.strip() + run.stderr.strip()


def test_an_installed_tree_shows_the_module(tmp_path: Path) -> None:
    """As Spark's workers look: on the path, wherever they were started."""
    assert said(FIND, tmp_path) == "True"


def test_the_module_is_the_source(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    assert said(IMPORT, tmp_path) == "True"


@pytest.mark.parametrize("missing", ["pyspark", "pyspark.sql.datasource", "topicd.spark.source"])
def test_without_spark_the_module_offers_nothing_and_raises_nothing(tmp_path: Path, missing: str) -> None:
    found = said(f"import sys; sys.modules[{missing!r}] = None; {IMPORT}", tmp_path)
    assert found.startswith("False")
    assert 'format("topicd") is not available' in found


def test_filters_are_never_pushed_into_a_read() -> None:
    datasource = pytest.importorskip("pyspark.sql.datasource")
    from topicd.spark.reader import BatchReader

    assert BatchReader.pushFilters is datasource.DataSourceReader.pushFilters
