"""A real daemon over a bad sector (mounted where that is permitted, and by calls that refuse), and over files that
somebody cuts off: an error for whoever asks for those records; every process lives, and everything else is served.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.cli_kit import run_ctl
from tests.support.badsector import PAGE, BadSector, NotPermitted
from tests.support.daemon import LIVELY, Daemon, wait_until
from tests.support.refusing import Refusals
from topicd.client.blocking.client import Client
from topicd.errors import StorageCorrupt

RECORDS = 1_200  # two sealed segments and an active one
SMALL = {"wal_shards": 1, "delivery_shards": 1, **LIVELY}


def data_of(n: int) -> bytes:
    return b"record %06d " % n + bytes([n % 251]) * 80


def fill(daemon: Daemon, client: Client, topic: str, count: int = RECORDS) -> Path:
    """Its directory; all but the active segment are sealed."""
    for at in range(1, count + 1, 100):
        client.publish_many(topic, [data_of(n) for n in range(at, at + 100)])
    folder = daemon.data.topic(client.state(topic).topic_id)
    wait_until(lambda: len(list(folder.glob("*.tags"))) >= count // 500, "sealed segments")
    return folder


def read_around(client: Client, topic: str) -> tuple[dict[int, bytes], list[StorageCorrupt]]:
    found: dict[int, bytes] = {}
    errors: list[StorageCorrupt] = []
    at, head = 0, client.state(topic).head_seq
    while at < head:
        try:
            batch = client.fetch(topic, at, limit=1000)
        except StorageCorrupt as exc:
            errors.append(exc)
            at = int(exc.detail["last_seq"])
            continue
        found.update({record.seq: record.data for record in batch})
        at = batch.next_from_seq
    return found, errors


@pytest.mark.fault("RDF-06")
def test_a_file_that_is_cut_off_under_the_daemon_is_an_error_of_its_records(tmp_path: Path) -> None:
    with Daemon(tmp_path, **SMALL) as daemon:
        client = daemon.client()
        folder = fill(daemon, client, "orders")
        fill(daemon, client, "other")
        assert len(read_around(client, "orders")[0]) == RECORDS  # its readers are open
        before = daemon.pids()
        data = min(folder.glob("*.tags")).with_suffix(".data")
        os.truncate(data, data.stat().st_size // 2)
        found, errors = read_around(client, "orders")
        assert all(found[seq] == data_of(seq) for seq in found)
        assert [error.detail["segment"] for error in errors] == [str(data)]
        lost = set(range(errors[0].detail["first_seq"], errors[0].detail["last_seq"] + 1))
        assert found.keys() | lost == set(range(1, RECORDS + 1)) and not found.keys() & lost
        assert 200 < len(lost) < 300
        with pytest.raises(StorageCorrupt) as caught:
            list(client.history("orders"))
        assert caught.value.detail["first_seq"] == min(lost)
        assert len(read_around(client, "other")[0]) == RECORDS
        client.publish("orders", b"on it goes")
        assert daemon.pids() == before
        assert daemon.log.count("storage is damaged") == 1
        wait_until(lambda: daemon.stats("dlv-00")["damage"] == 1, "the count of damaged places")


def test_history_in_the_hands_of_a_client_is_cut_off_without_harm(tmp_path: Path) -> None:
    with Daemon(tmp_path, **SMALL) as daemon:
        client = daemon.client()
        folder = fill(daemon, client, "orders")
        batches = client.history("orders")
        found = list(next(batches))
        found += list(next(batches))  # of a descriptor
        for tags in folder.glob("*.tags"):
            os.truncate(tags.with_suffix(".data"), 100)
        with pytest.raises(StorageCorrupt):
            for batch in batches:
                found += list(batch)
        assert [(record.seq, record.data) for record in found] == [(n, data_of(n)) for n in range(1, len(found) + 1)]


def sealed(daemon: Daemon, folder: Path) -> Path:
    return min(folder.glob("*.tags")).with_suffix(".data")


def active(daemon: Daemon, folder: Path) -> Path:
    return max(folder.glob("*.data"))


def active_index(daemon: Daemon, folder: Path) -> Path:
    return max(folder.glob("*.idx"))


def log_file(daemon: Daemon, folder: Path) -> Path:
    return min(path for path in daemon.data.wal_shard(0).glob("wal-*.log"))


@contextmanager
def preloaded(path: Path, page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    refusals = Refusals(tmp_path)
    refusals.bad(path, page * PAGE, (page + 1) * PAGE)
    with monkeypatch.context() as patch:
        for name, value in refusals.environment.items():
            patch.setenv(name, value)
        yield


@pytest.mark.fault("RDF-07")
@pytest.mark.parametrize("how", ["mounted", "preloaded"])
@pytest.mark.parametrize("which", [sealed, active, active_index, log_file])
def test_one_bad_sector_costs_the_records_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: Callable[[Daemon, Path], Path], how: str
) -> None:
    with Daemon(tmp_path / "d", **SMALL) as daemon:
        client = daemon.client()
        folder = fill(daemon, client, "orders", 1_400)
        fill(daemon, client, "other")
        daemon.kill_all()
        path = which(daemon, folder)
        size = path.stat().st_size
        assert size > PAGE, path
        try:
            with BadSector(path, 1) if how == "mounted" else preloaded(path, 1, tmp_path, monkeypatch):
                one_bad_page(daemon, client, path, size, loses=which in {sealed, active})
        except NotPermitted as exc:
            pytest.skip(f"mounting a filesystem is not permitted here: {exc}")


def one_bad_page(daemon: Daemon, client: Client, path: Path, size: int, *, loses: bool) -> None:
    fsck = json.loads(run_ctl(daemon, "fsck", "--data-dir", str(daemon.data.root), "--json", code=1).stdout)
    named = [row["what"] for row in fsck["findings"] if row["path"] == str(path)]
    assert f"bytes {PAGE} to {min(2 * PAGE, size) - 1} cannot be read (Input/output error)" in named
    daemon.start().wait_ready()
    pids = daemon.pids()
    found, errors = read_around(client, "orders")
    assert all(found[seq] == data_of(seq) for seq in found)
    lost = {n for e in errors for n in range(e.detail["first_seq"], e.detail["last_seq"] + 1)}
    assert found.keys() | lost == set(range(1, 1_401)) and len(lost) <= 2 * PAGE // len(data_of(1))
    assert lost or not loses
    assert len(read_around(client, "other")[0]) == RECORDS
    assert client.publish("orders", b"later") == 1_401
    assert daemon.pids() == pids
    if lost:
        assert "storage is damaged" in daemon.log
    daemon.stop()
