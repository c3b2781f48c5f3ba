"""docs/spark.md by copy and paste: one session from top to bottom, against a daemon of its own."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import Snippet, matches, snippets
from tests.support.daemon import Daemon
from topicd.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def run_shell(code: str) -> None:
    """topicctl in this process, where Spark is started already; anything else in a shell."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["topicctl"]:
            subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True)
            continue
        with pytest.raises(SystemExit) as left:
            main(words[1:])
        assert left.value.code == 0, line


def run(snippet: Snippet, names: dict[str, Any], socket: str) -> None:
    if snippet.language == "sh":
        run_shell(snippet.code)
        return
    # The JVM is older than this test: it has another working directory, and another environment for its workers.
    code = snippet.code.replace('format("topicd")', f'format("topicd").option("socket", {socket!r})')
    for opening in ("OPTIONS (", "WITH ("):
        code = code.replace(opening, f"{opening}socket '{socket}', ")
    for place in ('"checkpointLocation", "', 'read.parquet("'):
        code = code.replace(place, f"{place}{Path.cwd()}/")
    exec(compile(code, snippet.where, "exec"), names)


def test_the_page_works_by_copy_and_paste(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    found = snippets(PAGE)
    assert len(found) > 12
    names: dict[str, Any] = {}
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=2) as daemon:
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        monkeypatch.setenv("TOPICD_SOCKET", str(daemon.run.socket))
        for snippet in found:
            capfdbinary.readouterr()
            run(snippet, names, str(daemon.run.socket))
            printed = capfdbinary.readouterr().out.decode().rstrip("\n")  # show() ends with an empty line
            if snippet.expected is not None:
                assert matches(snippet.expected, printed), f"{snippet.where}\n{snippet.code}\nprinted:\n{printed}"
