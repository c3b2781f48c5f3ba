"""The diff in docs/contributing.md fits the tree of today, and what it adds works as somebody would use it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FILES_MAX = 7
IGNORED = shutil.ignore_patterns(".git", ".venv", "var", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")

# As the page says: asked for by both clients, refused when too long, back from the log and from a snapshot alone.
USE = """
import asyncio, sys
from pathlib import Path
import topicd
from topicd import aio
from topicd.errors import TopicdError
from tests.support.daemon import Daemon

async def ask(target):
    async with aio.connect(target) as client:
        return await client.label("orders")

with Daemon(Path(sys.argv[1]), wal_shards=1, delivery_shards=1) as daemon:
    client = daemon.client()
    client.publish("orders", b"x")
    assert client.label("orders") == ""
    assert client.set_label("orders", "all orders") == "all orders"
    try:
        client.set_label("orders", "x" * 65)
        raise SystemExit("a label of 65 bytes was taken")
    except TopicdError as exc:
        assert "label" in str(exc), exc
    assert asyncio.run(ask(str(daemon.run.root))) == "all orders"
    daemon.kill_all()
    daemon.start().wait_ready()
    assert daemon.client().label("orders") == "all orders"
    assert daemon.stop().code == 0
    logs = list((daemon.data.root / "wal").rglob("wal-*.log"))
    assert logs
    for path in logs:
        path.unlink()
    daemon.start().wait_ready()
    assert daemon.client().label("orders") == "all orders"
"""


def proof() -> str:
    page = (ROOT / "docs" / "contributing.md").read_text()
    found = re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def fitted(tree: Path) -> Path:
    """A copy of the source with the diff applied as `git apply` does it: lines may have moved, not changed."""
    shutil.copytree(ROOT, tree, symlinks=True, ignore=IGNORED)
    patch = tree / "proof.diff"
    patch.write_text(proof())
    # The copy belongs to no repository.
    done = run(tree, ["git", "apply", "--verbose", patch.name], GIT_CEILING_DIRECTORIES=str(tree.parent))
    assert done.returncode == 0, f"the diff in docs/contributing.md no longer fits:\n{done.stderr}"
    return tree


def run(tree: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), **variables}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def test_the_diff_is_small_and_says_how_small() -> None:
    files = re.findall(r"^diff --git a/(\S+)", proof(), re.MULTILINE)
    assert len(files) == len(set(files)) <= SOURCE_FILES_MAX
    added = len(re.findall(r"^\+(?!\+\+ )", proof(), re.MULTILINE))
    assert f"Seven source files, {added} lines" in (ROOT / "docs" / "contributing.md").read_text()


def test_what_it_adds_is_known_to_clients_the_log_and_snapshots(tmp_path: Path) -> None:
    tree = fitted(tmp_path / "tree")
    done = run(tree, [sys.executable, "-c", USE, str(tmp_path / "daemon")])
    assert done.returncode == 0, done.stderr


def test_its_pages_follow_by_themselves(tmp_path: Path) -> None:
    tree = fitted(tmp_path / "tree")
    done = run(tree, [sys.executable, "-m", "docs.generate"])
    assert done.returncode == 0, done.stderr
    assert "| SET_LABEL |" in (tree / "docs" / "protocol.md").read_text()
    assert "set_label" in (tree / "docs" / "client-reference.md").read_text()
