"""Files for web pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicd.gateway.static import StaticFiles
from topicd.gateway.web.messages import Head


def head(**headers: str) -> Head:
    return Head("GET", b"/", {name.encode(): value.encode() for name, value in headers.items()}, "1.1", "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "static"
    (root / "ui").mkdir(parents=True)
    (root / "ui" / "index.html").write_text("<p>here</p>")
    (root / "ui" / "app.js").write_text("1")
    (root / ".hidden").write_text("secret")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("secret")
    (tmp_path / "outside.txt").write_text("secret")
    return root


def test_a_folder_is_its_index_and_every_file_has_type_and_policy(root: Path) -> None:
    files = StaticFiles(root)
    for segments in (["ui", ""], ["ui", "index.html"]):
        answer = files.answer(segments, head())
        assert (answer.status, answer.body, answer.content_type) == (200, b"<p>here</p>", b"text/html; charset=utf-8")
    headers = dict(files.answer(["ui", "app.js"], head()).headers)
    assert b"default-src 'none'" in headers[b"Content-Security-Policy"]
    assert headers[b"X-Content-Type-Options"] == b"nosniff"


def test_what_a_page_has_already_is_not_sent_again(root: Path) -> None:
    files = StaticFiles(root)
    tag = dict(files.answer(["ui", ""], head()).headers)[b"ETag"].decode()
    again = files.answer(["ui", ""], head(**{"if-none-match": tag}))
    assert (again.status, again.body) == (304, b"")
    assert files.answer(["ui", ""], head(**{"if-none-match": '"other"'})).status == 200


@pytest.mark.parametrize(
    "segments",
    [["..", "outside.txt"], ["ui", "..", "..", "outside.txt"], [".hidden"], [".git", "config"], ["ui"], [""], []],
)
def test_nothing_else_is_served(root: Path, segments: list[str]) -> None:
    assert not StaticFiles(root).has(segments)


def test_answers_do_not_share_their_headers(root: Path) -> None:
    files = StaticFiles(root)
    files.answer(["ui", ""], head()).headers.append((b"Vary", b"Origin"))
    assert (b"Vary", b"Origin") not in files.answer(["ui", ""], head()).headers


def test_files_that_come_later_or_go_change_nothing(root: Path) -> None:
    files = StaticFiles(root)
    (root / "late.js").write_text("2")
    (root / "ui" / "app.js").unlink()
    assert not files.has(["late.js"])
    assert files.answer(["ui", "app.js"], head()).body == b"1"


def test_a_folder_that_is_not_there_is_no_files(tmp_path: Path) -> None:
    assert len(StaticFiles(tmp_path / "none")) == 0
