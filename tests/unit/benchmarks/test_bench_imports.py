"""Benchmarks that nobody imports rot."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks
from benchmarks import peers
from benchmarks.peers.sqlite import Sqlite
from benchmarks.synccheck import check

MODULES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", MODULES)
def test_module_imports(name):
    importlib.import_module(name)


@pytest.mark.parametrize("name", peers.MODULES)
def test_peer_is_found_by_name(name):
    assert peers.load(name).name == name


def test_sqlite_peer_appends_reads_and_tails(tmp_path):
    with Sqlite(tmp_path / "sqlite") as peer:
        topic = peer.dataset(10, 25)
        with peer.connect(True) as session:
            assert session.count(topic) == 25
            first, cursor = session.fetch(topic, None, 20)
            rest, _ = session.fetch(topic, cursor, 20)
            assert (len(first), len(rest)) == (20, 5)
            got: list[bytes] = []

            def handler(data: bytes) -> bool:
                got.append(data)
                return len(got) < 2

            session.tail(topic, lambda: session.append_many(topic, [b"a", b"b"]), handler)
            assert got == [b"a", b"b"]
    assert not (tmp_path / "sqlite").exists()


def test_sync_check_never_finds_a_sync_where_there_is_none(tmp_path):
    class Careless(Sqlite):
        def address(self, durable):
            return super().address(False)

    with Careless(tmp_path / "sqlite") as peer:
        found = check(peer, tmp_path)
    if found.how == "strace":
        assert str(found).startswith("does not sync")
