"""docs/http.md by copy and paste, and its example for Node, which survives whatever is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.docs.snippets import snippets
from tests.process.conftest import SETTINGS
from tests.process.web.conftest import ENVIRON
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_line_works(web1: Web) -> None:
    found = snippets(DOCS / "http.md")
    assert len(found) >= 4
    for snippet in found:
        code = snippet.code.replace("localhost:4000", f"127.0.0.1:{web1.port}")
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, f"{snippet.where}\n{code}\n{ran.stdout}\n{ran.stderr}"


def has_lines(out: Path, count: int) -> bool:
    return len(out.read_text().splitlines()) >= count


def is_ready(web: Web) -> bool:
    return web("GET", "/readyz").status == 200


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_the_example_for_node_gets_every_record_once_whatever_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Daemon(tmp_path / "d", env=ENVIRON, **SETTINGS) as daemon:
        web = Web(daemon)
        base = web.base
        # The port of a gateway that is started anew is the same: the supervisor holds it.
        web.write("ledger", "first")
        with out.open("wb") as file:
            line = ["node", os.fspath(DOCS / "examples" / "watch.mjs"), base, "ledger"]
            node = subprocess.Popen(line, stdout=file, stderr=subprocess.DEVNULL)
        try:
            written = 1
            for victim in ("gateway-00", "dlv-00", "dlv-01", "gateway-00"):
                wait_until(partial(has_lines, out, written), "the records so far")
                daemon.wait_replaced(victim, daemon.kill(victim))
                fresh = Web(daemon)
                for _ in range(20):
                    wait_until(partial(is_ready, fresh), "the daemon to be ready")
                    fresh.write("ledger", written)
                    written += 1
                fresh.close()
            wait_until(partial(has_lines, out, written), "all records")
        finally:
            node.kill()
            node.wait()
            web.close()
    assert [int(line.split()[0]) for line in out.read_text().splitlines()] == list(range(1, written + 1))
