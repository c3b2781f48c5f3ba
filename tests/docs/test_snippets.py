"""README and docs by copy and paste: each page in order, against a daemon of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.docs.snippets import Snippet, matches, snippets
from tests.support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TIMEOUT_S = 60
# Each is one long session; tests/unit/client/test_client_docs.py, tests/spark/test_spark_docs.py and
# tests/process/web/test_http_docs.py run them as such.
ELSEWHERE = {"client.md", "spark.md", "http.md"}
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.name not in ELSEWHERE and snippets(page)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_works_by_copy_and_paste(page: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    env = {"TOPICD_CHAT": "true"} if page.name == "chat.md" else {}
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=2, env=env) as daemon:
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOPICD_")},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(work),
            "TOPICD_SOCKET": str(daemon.run.socket),
            "COLUMNS": "100",
        }
        for snippet in snippets(page):
            run(snippet, work, environ)


def run(snippet: Snippet, work: Path, environ: dict[str, str]) -> None:
    command = ["bash", "-euo", "pipefail", "-c"] if snippet.language == "sh" else [sys.executable, "-c"]
    process = subprocess.Popen(
        [*command, snippet.code],
        cwd=work,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        # Whatever a snippet that failed left in the background.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    said = f"{snippet.where}\n{snippet.code}\n---- printed:\n{printed}\n---- errors:\n{errors}"
    assert process.returncode == 0, f"exit code {process.returncode}: {said}"
    if snippet.expected is not None:
        assert matches(snippet.expected, printed), f"expected:\n{snippet.expected}\n---- {said}"


# ---- the reader of pages ----


def test_blocks_are_found_in_order_with_their_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\na\n```\n\n```text\nout\n```\n\n<!-- not run: no network -->\n```sh\nb\n```\n```text\nx\n```\n"
        "```python\nc\n```\nwords\n```text\nno output\n```\n```toml\nd = 1\n```\n"
    )
    found = [(s.language, s.code, s.expected, s.line) for s in snippets(page)]
    assert found == [("sh", "a\n", "out\n", 1), ("python", "c\n", None, 16)]


@pytest.mark.parametrize("text", ["```sh\nnever ends\n", "<!-- not run -->\n```sh\na\n```\n"])
def test_a_page_that_is_wrong_is_told(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"page.md:1: "):
        snippets(page)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a b d\n", False),
        ("a\n…\nz\n", "a\nz\n", True),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\n", "b\na\n", False),
        ("a.b\n", "axb\n", False),
        ("a\n", "a  \n", True),
    ],
)
def test_three_dots_stand_for_anything(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same
