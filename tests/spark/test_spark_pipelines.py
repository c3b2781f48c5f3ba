"""The pipelines on real Spark: what goes into an archive comes out of it, and the reports are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from topicd.channel import channel_hash
from topicd.cli.main import main
from topicd.client.blocking.client import Client
from topicd.client.core.records import Record
from topicd.errors import Conflict, InvalidRequest, StorageCorrupt, TopicNotFound
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import archive, dedup, fsck, loss_audit, membership_audit, restore, rollup
from topicd.spark.pipelines.inputs import Columns
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.session import LazySpark
from topicd.spark.pipelines.store import MANIFEST

Raws = list[tuple[bytes, bytes | None, bytes | None, bytes | None]]


@pytest.fixture(scope="session")
def lazy(spark: Any) -> LazySpark:
    return LazySpark(session=spark)


@pytest.fixture(scope="session")
def where(socket: str) -> ConnectionOptions:
    return connection_options(socket, 60.0)


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks and files for a few thousand records."""
    monkeypatch.setattr(archive, "TASK_MIN", 400)
    monkeypatch.setattr(archive, "TASK_MAX", 700)


def all_kinds(count: int) -> list[Record]:
    made = [
        Record(
            b"\x00\xff%d" % n,
            tag=None if n % 3 == 0 else f"t{n % 5}",
            node=None if n % 4 else "n1",
            meta={"n": n, "list": [1, {"deep": b"\xff"}], "x": 1.5, "none": None} if n % 2 else None,
        )
        for n in range(count)
    ]
    return [*made, Record(b""), Record(b"x" * 1_000_000, tag="läng"), Record(b"odd", tag=b"\xff\xfe", node=b"\x80")]


def raws(client: Client, topic: str) -> Raws:
    return [record.raw for record in drain_topic(client, topic)]


def head(client: Client, topic: str) -> int:
    return client.state(topic).head_seq


# ---- archive and restore ----


def test_what_is_archived_and_restored_is_identical_and_comes_once(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path, small_tasks: None
) -> None:
    other = f"{topic}:b"
    client.publish_many(topic, all_kinds(2500))
    client.publish_many(other, [b"%d" % n for n in range(10)])
    client.delete(topic, match="t2")
    to = tmp_path / "archive"
    report = archive.run(lazy, archive.Options(where, (topic, other), to))
    assert report.totals["added"] == client.state(topic).count + 10
    assert report.totals["files"] >= 4
    manifest = (to / MANIFEST).read_bytes()
    assert archive.run(lazy, archive.Options(where, (topic, other), to)).totals["added"] == 0
    assert (to / MANIFEST).read_bytes() == manifest

    renamed = ((topic, f"{topic}.r"), (other, f"{other}.r"))
    options = restore.Options(where, to, renamed)
    assert restore.run(lazy, options).totals["stored"] == report.totals["added"]
    assert raws(client, f"{topic}.r") == raws(client, topic)
    assert raws(client, f"{other}.r") == raws(client, other)
    assert restore.run(lazy, options).totals["stored"] == 0
    assert head(client, f"{topic}.r") == client.state(topic).count

    # What comes later is added to both, and nothing else.
    client.publish_many(topic, [b"later %d" % n for n in range(50)])
    assert archive.run(lazy, archive.Options(where, (topic,), to)).totals["added"] == 50
    assert restore.run(lazy, options).totals["stored"] == 50
    assert raws(client, f"{topic}.r") == raws(client, topic)


def test_an_archive_is_a_parquet_dataset_by_topic_and_day(
    spark: Any, lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, all_kinds(20))
    archive.run(lazy, archive.Options(where, (topic,), tmp_path / "a"))
    found = spark.read.parquet(str(tmp_path / "a")).orderBy("seq").collect()
    assert [bytes(row["data"]) for row in found] == [data for data, *_ in raws(client, topic)]
    first = client.fetch(topic, limit=1).records[0]
    assert (found[0]["topic"], str(found[0]["day"])) == (topic, f"{first.time:%Y-%m-%d}")


def test_a_topic_made_anew_is_archived_beside_its_predecessor(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    options = archive.Options(where, (topic,), tmp_path / "a")
    client.publish_many(topic, [b"old 1", b"old 2"])
    archive.run(lazy, options)
    client.delete_topic(topic)
    client.publish(topic, b"new")
    assert archive.run(lazy, options).totals["added"] == 1
    restore.run(lazy, restore.Options(where, tmp_path / "a", ((topic, f"{topic}.r"),)))
    assert [data for data, *_ in raws(client, f"{topic}.r")] == [b"old 1", b"old 2", b"new"]


def test_what_cap_removed_before_the_archive_came_is_told(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    client.configure(topic, cap_records=100)
    for _ in range(5):
        client.publish_many(topic, [b"x"] * 50)
    report = archive.run(lazy, archive.Options(where, (topic,), tmp_path / "a"))
    assert (report.rows[0]["added"], report.rows[0]["absent"]) == (100, 150)
    assert report.notes == [f"{topic}: cap or TTL removed seqs 1 to 150 before they could be archived"]
    restored = restore.Options(where, tmp_path / "a", ((topic, f"{topic}.r"),), with_config=True)
    restore.run(lazy, restored)
    assert client.state(f"{topic}.r").config.cap_records == 100
    assert len(raws(client, f"{topic}.r")) == 100


def test_records_older_than_their_topics_schema_are_restored(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    schema = {"type": "object"}
    client.publish(topic, b"no json")
    client.configure(topic, schema=schema)
    client.publish(topic, {})
    archive.run(lazy, archive.Options(where, (topic,), tmp_path / "a"))
    restored = restore.Options(where, tmp_path / "a", ((topic, f"{topic}.r"),), with_config=True)
    restore.run(lazy, restored)
    assert [data for data, *_ in raws(client, f"{topic}.r")] == [b"no json", b"{}"]
    assert client.state(f"{topic}.r").config.schema == client.state(topic).config.schema


def test_only_what_is_verified_in_the_archive_is_deleted(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path, small_tasks: None
) -> None:
    to = tmp_path / "a"
    client.publish_many(topic, [b"%d" % n for n in range(1500)])
    archive.run(lazy, archive.Options(where, (topic,), to))
    part = next(to.rglob("part-*.parquet"))
    whole = part.read_bytes()
    part.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    deleting = archive.Options(where, (topic,), to, then_delete=True)
    with pytest.raises(StorageCorrupt, match="fails the checksum"):
        archive.run(lazy, deleting)
    assert client.state(topic).count == 1500
    part.write_bytes(whole)
    client.publish(topic, b"one more")
    assert archive.run(lazy, deleting).totals["deleted"] == 1501
    assert client.state(topic).count == 0


def test_restore_refuses_what_it_would_mix_up(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"a", b"b"])
    archive.run(lazy, archive.Options(where, (topic,), tmp_path / "a"))
    with pytest.raises(Conflict, match="--append"):
        restore.run(lazy, restore.Options(where, tmp_path / "a"))
    assert head(client, topic) == 2
    with pytest.raises(TopicNotFound, match="has no topic"):
        restore.run(lazy, restore.Options(where, tmp_path / "a", (("nobody", "x"),)))
    restore.run(lazy, restore.Options(where, tmp_path / "a", append=True))
    assert [data for data, *_ in raws(client, topic)] == [b"a", b"b", b"a", b"b"]


def test_csv_json_and_parquet_of_others_become_records(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "x.csv").write_text("payload,kind,n\nhello,a,1\n007,,2\n")
    rows = [{"to": f"{topic}.j", "id": 1}, {"to": f"{topic}.k", "data": {"base64": "/w=="}}]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pq.write_table(pa.table({"data": [b"\xff", b"p"], "meta": ['{"a":1}', None]}), tmp_path / "x.parquet")
    runs: list[restore.Options] = [
        restore.Options(where, tmp_path / "x.csv", into=f"{topic}.c", columns=Columns(data="payload", tag="kind")),
        restore.Options(where, tmp_path / "x.jsonl", columns=Columns(topic="to")),
        restore.Options(where, tmp_path / "x.parquet", into=f"{topic}.p"),
    ]
    for _ in range(2):
        for options in runs:
            restore.run(lazy, options)
    assert raws(client, f"{topic}.c") == [(b"hello", b"a", None, None), (b"007", None, None, None)]
    assert raws(client, f"{topic}.j") == [(b'{"id":1}', None, None, None)]
    assert raws(client, f"{topic}.k") == [(b"\xff", None, None, None)]
    assert [record.meta for record in drain_topic(client, f"{topic}.p")] == [{"a": 1}, {}]
    with pytest.raises(InvalidRequest, match="--into TOPIC, or --topic-column"):
        restore.run(lazy, restore.Options(where, tmp_path / "x.csv"))


def test_a_restore_whose_process_was_killed_is_finished_by_the_next_run(
    lazy: LazySpark, where: ConnectionOptions, socket: str, client: Client, topic: str, tmp_path: Path
) -> None:
    client.publish_many(topic, [b"%d" % n for n in range(200_000)])
    archive.run(lazy, archive.Options(where, (topic,), tmp_path / "a"))
    target = f"{topic}.r"
    client.configure(target)
    command = [sys.executable, "-m", "topicd.spark.pipelines", "restore", str(tmp_path / "a"), "--master", "local[1]"]
    victim = subprocess.Popen([*command, "--socket", socket, "--topic", f"{topic}={target}"])
    wait_until(lambda: head(client, target) or victim.poll() is not None, "the first batch")
    family = psutil.Process(victim.pid).children(recursive=True)
    victim.kill()
    victim.wait()
    # The JVM ends when it notices; what its task still sends meanwhile has the same numbers as what we send.
    options = restore.Options(where, tmp_path / "a", ((topic, target),))
    restore.run(lazy, options)
    psutil.wait_procs(family, timeout=30)
    assert raws(client, target) == raws(client, topic)
    assert head(client, target) == 200_000
    assert restore.run(lazy, options).totals["stored"] == 0


# ---- rollup ----


def by_window(client: Client, topic: str, window_ms: int) -> dict[tuple[int, str | None], list[Record]]:
    found: dict[tuple[int, str | None], list[Record]] = {}
    for record in drain_topic(client, topic):
        found.setdefault((record.ts // window_ms * window_ms, record.tag), []).append(record)
    return found


def rows_of(spark: Any, path: Path) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.parquet(str(path)).collect()]


def test_a_rollup_counts_each_record_in_one_window(
    spark: Any, lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    for n in range(3):
        made = [{"sent": 1_000.0, "n": k} for k in range(40)]
        client.publish_many(topic, made, tag=f"t{n % 2}")
    client.delete(topic, before_seq=11)
    options = rollup.Options(where, (topic,), "50ms", ("tag",), "json:$.sent", tmp_path / "r")
    report = rollup.run(lazy, options)
    found = {(int(row["start"].timestamp() * 1000), row["tag"]): row for row in rows_of(spark, tmp_path / "r")}
    wanted = by_window(client, topic, 50)
    assert {key: row["records"] for key, row in found.items()} == {key: len(rs) for key, rs in wanted.items()}
    for key, records in wanted.items():
        assert found[key]["bytes"] == sum(len(record.data) for record in records)
        assert found[key]["max_ms"] == max(record.ts - 1_000_000 for record in records)
        assert (found[key]["first_seq"], found[key]["last_seq"]) == (records[0].seq, records[-1].seq)
    assert report.totals["records"] == 110
    before = (tmp_path / "r" / MANIFEST).read_bytes()
    rollup.run(lazy, options)
    assert (tmp_path / "r" / MANIFEST).read_bytes() == before
    rollup.run(lazy, rollup.Options(where, (topic,), "50ms", ("tag",), to_topic=f"{topic}.stats"))
    stats = drain_topic(client, f"{topic}.stats")
    assert sum(record.json()["records"] for record in stats) == 110
    assert {record.tag for record in stats} == {topic}


def test_a_streaming_rollup_writes_each_window_once_when_it_is_over(
    spark: Any, lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    options = rollup.Options(where, (topic,), "20ms", to=tmp_path / "r", stream=rollup.AVAILABLE)
    for _ in range(2):
        for n in range(4):
            client.publish_many(topic, [b"%d" % n] * 25)
            pass_window(client, topic, 20)
        rollup.run(lazy, options)
    everything = by_window(client, topic, 20)
    sums: dict[int, int] = {}
    for (start, _), records in everything.items():
        sums[start] = sums.get(start, 0) + len(records)
    found = [
        (int(row["start"].timestamp() * 1000), row["records"])
        for row in rows_of(spark, tmp_path / "r" / f"topic={topic}")
    ]
    assert len(found) == len(dict(found)), "a window was written twice"
    assert len(found) >= 4
    newest = max(sums)
    assert dict(found) == {start: count for start, count in sums.items() if start != newest}


def pass_window(client: Client, topic: str, window_ms: int) -> None:
    """Until a record is stored in a later window than the newest is in now."""

    def window() -> int:
        return client.fetch(topic, head(client, topic) - 1).records[-1].ts // window_ms

    now = window()
    wait_until(lambda: client.publish(topic, b"tick") and window() > now, "the next window")


# ---- dedup ----


def test_repeated_records_are_planned_and_deleted_as_far_as_the_daemon_can(
    lazy: LazySpark, where: ConnectionOptions, client: Client, topic: str, tmp_path: Path
) -> None:
    sent = [("a", 1), ("b", 2), ("a", 3), ("c", 1), ("b", 4), ("a", 5)]
    for tag, number in sent:
        client.publish(topic, {"id": number}, tag=tag)
    plan = tmp_path / "plan.ndjson"
    by_id = dedup.run(lazy, dedup.Options(where, (topic,), by="json:$.id", plan=plan))
    lines = [json.loads(line) for line in plan.read_text().splitlines()]
    assert lines[0]["topics"] == {topic: {"topic_id": client.state(topic).topic_id, "head_seq": 6}}
    assert lines[1:] == [{"topic": topic, "key": "1", "keep": 1, "delete": [4]}]
    # The only record with tag c: it can go by its tag.
    assert (by_id.rows[0]["repeated"], by_id.rows[0]["deletable"], by_id.rows[0]["deleted"]) == (1, 1, 0)
    first = dedup.run(lazy, dedup.Options(where, (topic,), by="tag", apply=True))
    assert (first.rows[0]["repeated"], first.rows[0]["deleted"]) == (3, 0)
    assert "3 of 3 repeated records cannot be deleted exactly" in first.notes[0]
    last = dedup.run(lazy, dedup.Options(where, (topic,), by="tag", keep="last", apply=True))
    assert last.rows[0]["deleted"] == 3
    assert [record.seq for record in drain_topic(client, topic)] == [4, 5, 6]


# ---- fsck and loss-audit, on a daemon that is hurt ----


@pytest.fixture
def hurt(tmp_path: Path) -> Iterator[tuple[Daemon, Callable[[], list[Path]]]]:
    """A daemon with sealed segments, and where their data is."""
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1, **LIVELY) as daemon:
        client = daemon.client()
        for _ in range(4):
            client.publish_many("orders", [b"record %d" % n for n in range(600)], tag="t")
        client.delete("orders", before_seq=50)
        folder = daemon.data.topic(client.state("orders").topic_id)
        wait_until(lambda: len(list(folder.glob("*.tags"))) >= 3, "sealed segments")
        yield daemon, lambda: sorted(path.with_suffix(".data") for path in folder.glob("*.tags"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def remove_segment(data: Path) -> None:
    for part in data.parent.glob(f"{data.stem}.*"):
        part.unlink()


def fsck_findings(daemon: Daemon, capfdbinary: Any) -> set[tuple[Any, ...]]:
    with pytest.raises(SystemExit):
        main(["fsck", "--json", "--data-dir", str(daemon.data.root)])
    found = json.loads(capfdbinary.readouterr().out)["findings"]
    return {(f["severity"], f["path"], f["first_seq"], f["last_seq"], f["what"]) for f in found}


def pipeline_findings(report: Any) -> set[tuple[Any, ...]]:
    return {tuple(row[key] for key in ("severity", "path", "first_seq", "last_seq", "what")) for row in report.rows}


def test_fsck_finds_what_topicctl_fsck_finds(lazy: LazySpark, hurt: Any, capfdbinary: Any) -> None:
    daemon, sealed = hurt
    options = fsck.Options(str(daemon.data.root))
    running = fsck.run(lazy, options)
    assert running.totals["sealed_only"] and not running.failed and running.totals["segments"] >= 3
    flip(sealed()[0])
    assert [row["path"] for row in fsck.run(lazy, options).rows if row["severity"] == "damage"] == [str(sealed()[0])]
    daemon.stop()
    sealed()[1].unlink()
    remove_segment(sealed()[2])
    report = fsck.run(lazy, options)
    assert report.failed and not report.totals["sealed_only"]
    assert pipeline_findings(report) == fsck_findings(daemon, capfdbinary)
    what = {row["what"] for row in report.rows if row["severity"] == "damage"}
    assert {"frames cannot be read", "the data file is missing", "no segment has these records"} <= what


def test_packed_segments_in_the_cold_directory_are_archived_and_checked(
    lazy: LazySpark, tmp_path: Path, small_tasks: None, capfdbinary: Any
) -> None:
    (cold := tmp_path / "cold").mkdir()
    tiers: dict[str, Any] = {**LIVELY, "cold_dir": cold, "compress": "zstd", "hot_retain_segments": 1}
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1, **tiers) as daemon:
        client = daemon.client()
        for _ in range(4):
            client.publish_many("orders", [b"record %d" % n for n in range(600)], tag="t")
        client.tier_now("orders")
        wait_until(
            lambda: client.tier_state("orders")["segments"]["cold_packed"] >= 3, "segments in the cold directory"
        )
        to = tmp_path / "archive"
        made = archive.Options(connection_options(str(daemon.run.socket), 60.0), ("orders",), to)
        assert archive.run(lazy, made).totals["added"] == 2_400
        assert lazy.session.read.parquet(str(to)).select("seq").distinct().count() == 2_400
        daemon.stop()
        options = fsck.Options(str(daemon.data.root))
        whole = fsck.run(lazy, options)
        assert not whole.failed and whole.totals["records"] == 2_400
        lost, damaged, *_ = sorted(cold.glob("topics/*/*.data.z"))
        lost.unlink()
        flip(damaged)
        report = fsck.run(lazy, options)
        assert report.failed and pipeline_findings(report) == fsck_findings(daemon, capfdbinary)
        assert {row["path"] for row in report.rows if row["severity"] == "damage"} == {str(lost), str(damaged)}


def test_loss_audit_is_empty_until_something_is_lost(lazy: LazySpark, hurt: Any) -> None:
    daemon, sealed = hurt
    options = loss_audit.Options(connection_options(str(daemon.run.socket), 60.0))
    healthy = loss_audit.run(lazy, options)
    assert not healthy.failed
    assert healthy.rows == [
        {"topic": "orders", "head_seq": 2400, "live": 2351, "deleted": 49, "removed": 0, "power_loss": 0, "lost": 0}
    ]
    daemon.stop()
    flip(sealed()[0])
    remove_segment(sealed()[1])
    daemon.start().wait_ready()
    report = loss_audit.run(lazy, options)
    assert report.failed
    row = report.rows[0]
    assert row["lost"] == 2351 - row["live"] > 500
    assert row["deleted"] == 49
    assert any("seqs 501 to 1000 are lost" in note and "missing segment" in note for note in report.notes), report.notes


# ---- the command line ----


def test_the_command_prints_a_table_and_json(
    spark: Any, socket: str, client: Client, topic: str, tmp_path: Path, capfdbinary: Any
) -> None:
    client.publish_many(topic, [b"a", b"b"])
    command = ["pipeline", "run", "archive", topic, "--to", str(tmp_path / "a"), "--socket", socket]
    for extra, wanted in (["--dry-run"], b"would add up to 2 records"), ([], b"added 2 records"), ([], b"added 0 rec"):
        with pytest.raises(SystemExit) as left:
            main([*command, *extra])
        assert left.value.code == 0
        assert wanted in capfdbinary.readouterr().out
    with pytest.raises(SystemExit) as left:
        main([*command, "--json"])
    body = json.loads(capfdbinary.readouterr().out)
    assert (left.value.code, body["pipeline"], body["rows"][0]["total"]) == (0, "archive", 2)
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(SystemExit) as left:
        main(["pipeline", "run", "dedup", topic, "--by", "nothing", "--socket", socket])
    assert left.value.code == 2
    assert b"--by must be data, tag or json:$.path" in capfdbinary.readouterr().err
    assert spark.range(3).count() == 3, "a session that was there before stays"


# ---- membership-audit ----


def test_members_of_channels_are_what_the_daemon_answers(
    lazy: LazySpark, where: ConnectionOptions, client: Client, spark_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_audit, "CHANNELS_PER_TASK", 3)  # several tasks
    names = [f"audited/{n}" for n in range(10)]
    for n, name in enumerate(names):
        for user in ("ann", *(f"user-{k}" for k in range(n))):
            client.channels.join(name, user=user)
        client.channels.set_config(name, persist=True)
    options = membership_audit.Options(where, str(spark_daemon.data.root))
    report = membership_audit.run(lazy, options)
    rows = {row["channel"]: row for row in report.rows}
    assert sorted(rows) == names
    assert [rows[name]["members"] for name in names] == [rows[name]["live"] for name in names] == list(range(1, 11))
    assert ({row["verdict"] for row in report.rows}, report.failed) == ({"same"}, False)
    bad = spark_daemon.data.channels / channel_hash(names[3]) / "metadata.bin"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (spark_daemon.data.channels / channel_hash(names[4]) / "metadata.bin").unlink()
    report = membership_audit.run(lazy, options)
    found = {row["verdict"]: row["channel"] for row in report.rows if row["verdict"] != "same"}
    assert found == {"corrupt": str(bad.parent), "not stored": names[4]}
    assert (report.failed, report.totals["different"]) == (True, 2)
    bad.write_bytes(whole)
    for name in names:
        client.channels.delete(name)
