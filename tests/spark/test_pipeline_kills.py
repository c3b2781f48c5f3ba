"""Archive and restore, killed at every step and run again: the outcome is that of one run that was left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark import pipeline_victim
from tests.support.daemon import Daemon, drain_topic
from tests.support.inlinespark import InlineSpark
from topicd.client.blocking.client import Client
from topicd.client.blocking.numbered_writer import NumberedWriter
from topicd.client.core.records import Record
from topicd.errors import StorageCorrupt
from topicd.shards.delivery.topic.producers import PRODUCERS_KEPT
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import archive, inputs, restore, verify
from topicd.spark.pipelines.journal import JOURNAL, Journal
from topicd.spark.pipelines.manifest import KIND, VERSION, Manifest
from topicd.spark.pipelines.parts import checksum
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.store import LOCK, MANIFEST, Store

ROOT = Path(__file__).parents[2]
RECORDS = 1000

INLINE: Any = InlineSpark()


@pytest.fixture(scope="module")
def where(socket: str) -> ConnectionOptions:
    return connection_options(socket, 30.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "TASK_MIN", 300)
    monkeypatch.setattr(archive, "TASK_MAX", 300)
    monkeypatch.setattr(inputs, "BATCH_RECORDS", pipeline_victim.BATCH_RECORDS)


def fill(client: Client, topic: str, count: int = RECORDS) -> None:
    client.publish_many(topic, [Record(b"%d" % n, tag=f"t{n % 3}", meta={"n": n}) for n in range(count)])


def raws(client: Client, topic: str) -> list[Any]:
    return [record.raw for record in drain_topic(client, topic)]


def killed(kind: str, socket: str, directory: Path, topic: str, target: str, point: str, passing: int) -> bool:
    """False: it never came to that point."""
    command = [kind, socket, str(directory), topic, target, point, str(passing)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.pipeline_victim", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def contents(directory: Path) -> Manifest:
    body = Store(directory, KIND, VERSION).load()
    assert body is not None
    return Manifest.from_json(body)


def check_archive(directory: Path, sent: list[Any]) -> None:
    """The manifest, the files and what is in them agree, and nothing else lies about."""
    manifest = contents(directory)
    (found,) = manifest.topics
    assert (found.first_seq, found.last_seq, found.count) == (1, len(sent), len(sent))
    on_disk = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert on_disk == {*manifest.paths(), MANIFEST, LOCK}
    rows = [row for part in found.parts for row in inputs.read_rows(directory / part.path)]
    assert [row[0] for row in rows] == list(range(1, len(sent) + 1))
    assert [(data, tag, node, meta) for _, _, node, tag, meta, data in rows] == sent


@pytest.mark.parametrize(
    ("point", "passing"),
    [
        ("before-staged", 1),
        ("after-staged", 3),
        ("before-moving", 1),
        ("after-moving", 2),
        ("after-moved", 1),
        ("before-manifest", 1),
        ("after-manifest", 1),
        ("before-verified", 1),
        ("before-deleted", 1),
        ("after-deleted", 1),
    ],
)
def test_an_archive_that_was_killed_ends_like_any_other(
    where: ConnectionOptions, socket: str, client: Client, topic: str, tmp_path: Path, point: str, passing: int
) -> None:
    fill(client, topic)
    sent = raws(client, topic)
    assert killed("archive", socket, tmp_path / "a", topic, "", point, passing)
    archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))
    check_archive(tmp_path / "a", sent)
    before = (tmp_path / "a" / MANIFEST).read_bytes()
    archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a", then_delete=True))
    assert (tmp_path / "a" / MANIFEST).read_bytes() == before
    assert client.state(topic).count == 0
    check_archive(tmp_path / "a", sent)


@pytest.mark.parametrize(
    ("point", "passing"),
    [
        ("before-begun", 1),
        ("after-begun", 1),
        ("before-sent", 1),
        ("after-sent", 1),
        ("before-sent", 4),
        ("after-sent", 5),
        ("after-noted", 3),
        ("after-sent", 10),
        ("before-trimmed", 1),
        ("after-trimmed", 1),
    ],
)
def test_a_restore_that_was_killed_stores_each_record_once_and_in_order(
    where: ConnectionOptions, socket: str, client: Client, topic: str, tmp_path: Path, point: str, passing: int
) -> None:
    fill(client, topic)
    archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))
    target = f"{topic}.r"
    assert killed("restore", socket, tmp_path / "a", topic, target, point, passing)
    options = restore.Options(where, tmp_path / "a", ((topic, target),))
    restore.run(INLINE, options)
    assert raws(client, target) == raws(client, topic)
    assert client.state(target).head_seq == RECORDS
    assert restore.run(INLINE, options).totals["stored"] == 0
    topic_id = client.state(target).topic_id
    entries = [record for record in drain_topic(client, JOURNAL) if record.json()["topic_id"] == topic_id]
    assert len(entries) == 1, "old entries of the journal are cleared away"


@pytest.mark.parametrize("passing", [5, 6], ids=["between files", "within a file"])
def test_a_restore_goes_on_when_the_topic_has_forgotten_its_producer(
    where: ConnectionOptions, socket: str, client: Client, topic: str, tmp_path: Path, passing: int
) -> None:
    fill(client, topic)
    archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))
    target = f"{topic}.r"
    assert killed("restore", socket, tmp_path / "a", topic, target, "after-noted", passing)
    already = client.state(target).head_seq
    assert 0 < already < RECORDS
    topic_id = client.state(target).topic_id
    for number in range(1, PRODUCERS_KEPT + 2):
        NumberedWriter(client, target, topic_id, number).send(1, [(b"between", None, None, None)])
    restore.run(INLINE, restore.Options(where, tmp_path / "a", ((topic, target),)))
    found = [data for data, *_ in raws(client, target) if data != b"between"]
    assert found == [data for data, *_ in raws(client, topic)]


def test_a_restore_survives_restarts_of_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon:
        client = daemon.client()
        where = connection_options(str(daemon.run.socket), 30.0)
        fill(client, "orders")
        archive.run(INLINE, archive.Options(where, ("orders",), tmp_path / "a"))
        original = NumberedWriter.send
        sent = 0

        def send(self: NumberedWriter, number: int, records: Any) -> Any:
            nonlocal sent
            sent += 1
            outcome = original(self, number, records)
            if sent in (3, 7):
                daemon.kill_all()
                daemon.start()
            return outcome

        monkeypatch.setattr(NumberedWriter, "send", send)
        restore.run(INLINE, restore.Options(where, tmp_path / "a", (("orders", "copy"),)))
        assert raws(client, "copy") == raws(client, "orders")
        # Sent again from the first batch on, as if the journal had been lost: the topic knows them all.
        monkeypatch.setattr(Journal, "last", lambda self: None)
        again = restore.Options(where, tmp_path / "a", (("orders", "copy"),), append=True)
        assert restore.run(INLINE, again).totals["stored"] == 0
        assert client.state("copy").head_seq == RECORDS


@pytest.mark.parametrize("lost", [False, True], ids=["another record", "a record too few"])
def test_nothing_is_deleted_that_the_archive_does_not_hold_as_it_is(
    where: ConnectionOptions, client: Client, topic: str, tmp_path: Path, lost: bool
) -> None:
    """A file that is whole by its checksum and wrong in its content."""
    import pyarrow.parquet as pq

    fill(client, topic, 10)
    archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))
    (part,) = contents(tmp_path / "a").topics[0].parts
    path = tmp_path / "a" / part.path
    rows = pq.read_table(path, partitioning=None)
    kept = rows.slice(0, 4).to_pylist() + rows.slice(5).to_pylist()
    changed = [{**row, "data": b"?"} if row["seq"] == 5 else row for row in rows.to_pylist()]
    pq.write_table(rows.from_pylist(kept if lost else changed, schema=rows.schema), path)
    manifest = tmp_path / "a" / MANIFEST
    size, digest = checksum(path)
    text = manifest.read_text().replace(part.sha256, digest).replace(f'"bytes": {part.bytes}', f'"bytes": {size}')
    manifest.write_text(text)
    with pytest.raises(StorageCorrupt, match=r"record 5 of topic .* is not in the archive as it is in the topic"):
        archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a", then_delete=True))
    assert client.state(topic).count == 10


def test_nothing_is_deleted_while_an_older_file_of_the_topic_is_missing_or_cut(
    where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    deleting = archive.Options(where, (topic,), tmp_path / "a", then_delete=True)
    fill(client, topic, 10)
    archive.run(INLINE, deleting)
    fill(client, topic, 10)
    path = tmp_path / "a" / contents(tmp_path / "a").topics[0].parts[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(StorageCorrupt, match=r"has \d+ bytes, the archive's manifest says"):
        archive.run(INLINE, deleting)
    path.unlink()
    with pytest.raises(StorageCorrupt, match="is missing, but the archive's manifest lists it"):
        archive.run(INLINE, deleting)
    assert client.state(topic).count == 10
    path.write_bytes(whole)
    assert archive.run(INLINE, deleting).totals["deleted"] == 10


@pytest.mark.parametrize("field", ["count", "first_seq"])
def test_nothing_is_deleted_if_a_file_has_other_records_than_the_manifest_says(
    where: ConnectionOptions, client: Client, topic: str, tmp_path: Path, field: str
) -> None:
    fill(client, topic, 10)
    archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))
    manifest = tmp_path / "a" / MANIFEST
    body = json.loads(manifest.read_text())
    body["topics"][0]["parts"][0][field] += 1
    manifest.write_text(json.dumps(body))
    client.delete(topic, before_seq=3)
    with pytest.raises(StorageCorrupt, match="has 10 records, seqs 1 to 10; the archive's manifest says"):
        archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a", then_delete=True))
    assert client.state(topic).count == 8


def test_nothing_is_deleted_that_the_topic_counts_and_does_not_serve(
    where: ConnectionOptions, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, topic, 10)
    served = verify.live_rows
    monkeypatch.setattr(verify, "live_rows", lambda batches: (row for row in served(batches) if row[0] != 5))
    with pytest.raises(StorageCorrupt, match=r"has 10 records up to seq 10 by the daemon's count, but serves 9"):
        archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a", then_delete=True))
    assert client.state(topic).count == 10


def test_two_runs_on_one_archive_exclude_each_other(
    where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 10)
    with Store(tmp_path / "a", KIND, VERSION), pytest.raises(archive.Conflict, match="another run"):
        archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))


def test_an_archive_of_another_daemon_is_refused(
    where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 10)
    archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))
    path = tmp_path / "a" / MANIFEST
    body = json.loads(path.read_text())
    for field, value in (("last_ts", 5), ("last_seq", 11)):
        changed = json.loads(json.dumps(body))
        changed["topics"][0][field] = value
        path.write_text(json.dumps(changed))
        with pytest.raises(archive.Conflict, match="is not the one in this archive"):
            archive.run(INLINE, archive.Options(where, (topic,), tmp_path / "a"))
