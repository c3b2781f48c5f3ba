"""The page and the docstrings say what is true: their snippets are executed."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import topicd
import topicd.client
from tests.support.fakeserver import FakeServer

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
MODULES = [module.name for module in pkgutil.walk_packages(topicd.client.__path__, "topicd.client.")]


def test_every_snippet_of_the_page_runs_in_order(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPICD_SOCKET", str(server.path))
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) > 10
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)
    assert "record_too_large" in capsys.readouterr().out


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(
    module: str, client: topicd.Client, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICD_SOCKET", str(server.path))
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in found:
        server.topics.clear()
        runner.run(doctest.DocTest(test.examples, {**test.globs, "topicd": topicd, "client": client}, *_place(test)))
    assert runner.failures == 0


def _place(test: doctest.DocTest) -> tuple[str, str | None, int | None, str | None]:
    return test.name, test.filename, test.lineno, test.docstring


def test_everything_exported_is_there_and_documented() -> None:
    for name in topicd.__all__:
        assert getattr(topicd, name) is not None
    for name in ("connect", "Client", "Record", "Gap", "Tombstone", "Producer", "Consumer"):
        assert getattr(topicd, name).__doc__
    with pytest.raises(AttributeError):
        _ = topicd.nothing
