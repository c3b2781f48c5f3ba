"""Old segments in the cold directory of a real daemon: packed, read, deleted, brought back, and a disk that is gone or
does not answer."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.cli_kit import run_ctl
from tests.support.badsector import NotPermitted, SilentDirectory, SilentFile
from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from topicd.client.blocking.client import Client
from topicd.errors import ColdUnavailable, InvalidRequest, TopicdError

SETTINGS: dict[str, Any] = {
    **LIVELY,
    "segment_max_records": 100,
    "wal_shards": 1,
    "delivery_shards": 1,
    "hot_retain_segments": 2,
}


def text(n: int) -> bytes:
    return json.dumps({"n": n, "level": "info", "path": f"/api/v1/things/{n}", "message": "request served"}).encode()


def fill(client: Client, topic: str, first: int, last: int) -> None:
    for start in range(first, last + 1, 25):
        end = min(start + 25, last + 1)
        client.publish_many(topic, [text(n) for n in range(start, end)], tag="most" if start // 25 % 4 else "few")


def read_all(client: Client, topic: str) -> list[int]:
    return [json.loads(record.data)["n"] for record in drain_topic(client, topic)]


def settled(client: Client, topic: str, **segments: int) -> dict[str, Any]:
    """Where they lie when nothing waits any more."""

    def look() -> dict[str, Any] | None:
        row = client.tier_state(topic)
        return row if not row["waiting"] and row["segments"] | segments == row["segments"] else None

    client.tier_now(topic)
    return wait_until(look, f"{topic}: {segments}", 20)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "cold").mkdir()
    with Daemon(tmp_path, **SETTINGS, cold_dir=tmp_path / "cold", compress="zstd") as running:
        yield running


def cold_files(daemon: Daemon) -> list[Path]:
    return sorted((daemon.root / "cold").glob("topics/*/seg-*"))


def test_history_moves_is_read_deleted_and_comes_back(daemon: Daemon) -> None:
    client = daemon.client()
    fill(client, "logs", 1, 1_000)
    row = settled(client, "logs", cold_packed=8)
    assert row["segments"]["hot"] in (2, 3) and row["file_bytes"]["cold_packed"] < row["bytes"]["cold_packed"] / 2
    assert len(cold_files(daemon)) == 8 and not list(daemon.data.topics.glob("*/seg-*1.data.z"))
    assert read_all(client, "logs") == list(range(1, 1_001))
    # One record, a pushed history, and what the answer says of it.
    assert json.loads(client.fetch("logs", 449, limit=1).records[0].data)["n"] == 450
    with client.watch("logs", "earliest") as watch:
        pushed = [json.loads(next(watch).data)["n"] for _ in range(1_000)]
    assert pushed == list(range(1, 1_001))
    # Deletes need no data of the segments; half-dead ones are fetched, rewritten and go out again.
    client.delete("logs", match="most")
    left = [n for n in range(1, 1_001) if (n - 1) // 25 % 4 == 0]
    assert read_all(client, "logs") == left
    wait_until(
        lambda: client.tier_state("logs")["bytes"]["cold_packed"] < row["bytes"]["cold_packed"] * 0.5, "rewrites", 20
    )
    settled(client, "logs", cold_packed=8)
    assert read_all(client, "logs") == left
    # A start asks the cold disk nothing, and finds everything.
    daemon.restart()
    client = daemon.client()
    assert read_all(client, "logs") == left
    assert json.loads(run_ctl(daemon, "tier", "recall", "logs", "--json").stdout)["segments"]["cold_packed"] == 0
    assert cold_files(daemon) == []
    assert read_all(client, "logs") == left
    # Whole segments go in either place.
    client.configure("logs", hot_retain_segments=None, hot_retain_bytes=None)
    settled(client, "logs", cold_packed=8)
    client.delete("logs", 501)
    wait_until(lambda: len(cold_files(daemon)) <= 3, "dropped segments")
    assert read_all(client, "logs") == [n for n in left if n > 500]
    client.delete_topic("logs")
    daemon.stop()
    daemon.restart()
    wait_until(lambda: not cold_files(daemon) and not list(daemon.data.topics.iterdir()), "a deleted topic", 90)


def test_topics_override_and_queues_refuse(daemon: Daemon) -> None:
    client = daemon.client()
    client.configure("kept", hot_retain_segments=0)
    client.configure("plain", compress="none", hot_retain_bytes=1)
    for topic in ("kept", "plain"):
        fill(client, topic, 1, 500)
    assert settled(client, "plain", cold=5)["segments"]["hot"] == 0
    assert settled(client, "kept")["segments"] == {"hot": 5, "packed": 0, "cold": 0, "cold_packed": 0}
    with pytest.raises(InvalidRequest, match="for logs"):
        client.configure("jobs", type="queue", compress="zstd")
    rows = json.loads(run_ctl(daemon, "tier", "status", "--json").stdout)
    assert {row["topic"]: row["segments"]["cold"] for row in rows} == {"kept": 0, "plain": 5}
    assert "kept" in run_ctl(daemon, "tier", "status").stdout


def test_without_a_cold_directory_segments_are_packed_where_they_are(tmp_path: Path) -> None:
    with Daemon(tmp_path, **SETTINGS, compress="zstd") as daemon:
        client = daemon.client()
        fill(client, "logs", 1, 600)
        settled(client, "logs", packed=4)
        assert len(list(daemon.data.topics.glob("*/seg-*.data.z"))) == 4
        daemon.kill_all()
        daemon.restart()
        assert read_all(daemon.client(), "logs") == list(range(1, 601))


@pytest.mark.fault("TIR-04")
def test_a_missing_cold_disk_costs_its_history_only(daemon: Daemon) -> None:
    client, cold = daemon.client(), daemon.root / "cold"
    fill(client, "logs", 1, 600)
    settled(client, "logs", cold_packed=4)
    daemon.stop()
    cold.rename(daemon.root / "unmounted")
    cold.mkdir()  # as an empty mount point
    daemon.restart()
    client = daemon.client(timeout=5)
    with pytest.raises(ColdUnavailable, match="mounted"):
        client.fetch("logs", 0)
    assert [json.loads(r.data)["n"] for r in client.fetch("logs", 450, limit=10).records] == list(range(451, 461))
    fill(client, "logs", 601, 1_000)
    client.tier_now("logs")
    wait_until(lambda: client.tier_state("logs")["trouble"], "trouble")
    assert "mounted" in run_ctl(daemon, "tier", "status", code=1).stdout
    wait_until(lambda: daemon.stats("dlv-00")["cold_failing"] == 1, "the metric")
    assert list(cold.iterdir()) == []  # nothing is written to what is not the cold disk
    cold.rmdir()
    (daemon.root / "unmounted").rename(cold)
    settled(client, "logs", cold_packed=8)
    assert read_all(client, "logs") == list(range(1, 1_001))
    wait_until(lambda: daemon.stats("dlv-00")["cold_failing"] == 0, "the metric")


@pytest.mark.fault("TIR-05")
def test_a_cold_disk_that_does_not_answer_holds_up_nobody_else(daemon: Daemon) -> None:
    client = daemon.client()
    client.configure("live", hot_retain_segments=0)
    fill(client, "logs", 1, 600)
    settled(client, "logs", cold_packed=4)
    daemon.restart()  # nothing of it is in memory
    try:
        with SilentFile(cold_files(daemon)[0]) as silent:
            a_silent_disk(daemon, silent)
    except NotPermitted as exc:
        pytest.skip(f"mounting a filesystem is not permitted here: {exc}")


def a_silent_disk(daemon: Daemon, silent: SilentFile) -> None:
    answers: list[TopicdError | int] = []

    def ask() -> None:
        try:
            answers.append(daemon.client(timeout=12).fetch("logs", 0, limit=1).records[0].seq)
        except TopicdError as error:
            answers.append(error)

    reader = threading.Thread(target=ask)
    reader.start()
    client, slowest = daemon.client(timeout=2), 0.0
    until = time.monotonic() + 4
    while time.monotonic() < until:
        began = time.monotonic()
        client.publish("live", text(0))
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1.0 and not answers  # the loop was never held up; the reader waits
    assert client.fetch("logs", 450, limit=1).records[0].seq == 451
    with pytest.raises(ColdUnavailable, match="has not answered"):
        client.fetch("logs", 120, limit=1)
    wait_until(lambda: daemon.stats("dlv-00")["cold_stalled_s"] > 0, "the metric")
    reader.join(30)
    assert isinstance(answers[0], ColdUnavailable)
    silent.answers.set()

    def readable() -> bool:
        try:
            return read_all(client, "logs") == list(range(1, 601))
        except TopicdError:
            return False

    wait_until(readable, "an answer", 10)
    assert client.tier_state("logs")["trouble"] == ""
    daemon.stop()  # it holds the file open


@pytest.mark.fault("TIR-05")
def test_a_cold_directory_that_does_not_answer_at_all_keeps_nothing_else_from_its_work(daemon: Daemon) -> None:
    client = daemon.client()
    fill(client, "logs", 1, 600)
    fill(client, "gone", 1, 300)
    settled(client, "logs", cold_packed=4)
    settled(client, "gone", cold_packed=1)
    daemon.stop()
    try:
        with SilentDirectory(daemon.root / "cold") as silent:
            daemon.start().wait_ready()
            client = daemon.client(timeout=12)
            with pytest.raises(ColdUnavailable):
                client.fetch("logs", 0, limit=1)
            fill(client, "logs", 601, 1_000)  # what is sealed has nowhere to go
            assert client.fetch("logs", 950, limit=1).records[0].seq == 951
            assert client.delete("logs", 150).deleted == 149
            client.delete_topic("gone")
            client.tier_now("logs")
            shelf = str(daemon.root / "backups")
            assert "has not answered for 10 s" in run_ctl(daemon, "backup", "create", shelf, code=1).stderr
            wait_until(lambda: "has not answered" in client.tier_state("logs")["trouble"], "trouble", 20)
            wait_until(lambda: daemon.stats("dlv-00")["cold_failing"] == 1, "the metric")
            silent.answers.set()
    except NotPermitted as exc:
        pytest.skip(f"mounting a filesystem is not permitted here: {exc}")
    settled(client, "logs", cold_packed=7)
    assert read_all(client, "logs") == list(range(150, 1_001))
    wait_until(lambda: len(cold_files(daemon)) == 7, "what the deleted topic had there is gone", 90)
    assert client.tier_state("logs")["trouble"] == ""


def test_a_cold_directory_is_not_taken_twice_and_a_wrong_one_is_refused(daemon: Daemon) -> None:
    client = daemon.client()
    fill(client, "logs", 1, 600)
    settled(client, "logs", cold_packed=4)
    daemon.stop()
    (daemon.root / "other").mkdir()
    daemon.settings["cold_dir"] = daemon.root / "other"
    daemon.start()
    assert wait_until(lambda: not daemon.running, "a refusal") and "cold_dir" in daemon.log
    # A copy elsewhere is as good; without the setting what is there can still be read.
    shutil.rmtree(daemon.root / "other")
    shutil.copytree(daemon.root / "cold", daemon.root / "other")
    shutil.rmtree(daemon.root / "cold")
    daemon.start().wait_ready()
    assert read_all(daemon.client(), "logs") == list(range(1, 601))
    del daemon.settings["cold_dir"]
    daemon.restart()
    assert read_all(daemon.client(), "logs") == list(range(1, 601))


@pytest.mark.fault("TIR-08")
def test_fsck_verify_and_backups_see_all_tiers(daemon: Daemon) -> None:
    client = daemon.client()
    fill(client, "logs", 1, 600)
    settled(client, "logs", cold_packed=4)
    run_ctl(daemon, "backup", "create", str(daemon.root / "backups"))
    daemon.stop()
    data = ("--data-dir", str(daemon.data.root))
    found = json.loads(run_ctl(daemon, "fsck", *data, "--json").stdout)
    assert found["damaged"] is False and found["segments"] >= 6
    assert [one for one in found["findings"] if one["severity"] == "unknown"] == []
    dumped = run_ctl(daemon, "segment", "dump", "logs", *data, "--json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in dumped] == list(range(1, 601))
    # A backup is whole without the cold directory.
    restored = daemon.root / "restored"
    run_ctl(daemon, "backup", "restore", str(daemon.root / "backups"), str(restored))
    with Daemon(daemon.root / "second", **SETTINGS) as second:
        second.stop()
        shutil.rmtree(second.data.root)
        shutil.move(restored, second.data.root)
        second.start().wait_ready()
        assert read_all(second.client(), "logs") == list(range(1, 601))
    # A bit in the cold directory: named by all of them.
    path = cold_files(daemon)[1]
    raw = bytearray(path.read_bytes())
    raw[-40] ^= 1
    path.write_bytes(raw)
    found = json.loads(run_ctl(daemon, "fsck", *data, "--json", code=1).stdout)
    named = [one for one in found["findings"] if one["severity"] == "damage" and one["first_seq"]]
    assert named and all(101 <= one["first_seq"] <= one["last_seq"] <= 200 for one in named)
    assert {one["path"] for one in found["findings"] if one["severity"] == "damage"} == {str(path)}
    assert str(path) in run_ctl(daemon, "segment", "verify", "logs", *data, "--json", code=1).stdout
    daemon.start().wait_ready()
    client = daemon.client(timeout=2)
    assert client.fetch("logs", 0, limit=100).records[-1].seq == 100
    with pytest.raises(TopicdError, match=r"cannot be read|checksum"):
        client.fetch("logs", 150, limit=10)
    assert client.fetch("logs", 200, limit=1).records[0].seq == 201
    wait_until(lambda: daemon.stats("dlv-00")["damage"] == 1, "the count of damaged places")
    assert f"  topic logs: {path}: records 151.." in run_ctl(daemon, "status", code=1).stdout
    recalled = run_ctl(daemon, "tier", "recall", "logs").stdout
    assert "logs: damaged, and left where it is: 1 segment\n" in recalled and "trouble" not in recalled
    assert client.tier_state("logs")["segments"]["cold_packed"] == 1


def test_what_the_cold_directory_has_lost_is_named_and_the_rest_is_backed_up(daemon: Daemon) -> None:
    client = daemon.client()
    fill(client, "logs", 1, 600)
    settled(client, "logs", cold_packed=4)
    lost, shelf = cold_files(daemon)[1], daemon.root / "backups"
    lost.unlink()
    made = json.loads(run_ctl(daemon, "backup", "create", str(shelf), "--json", code=1).stdout)
    assert made["lost"] == [str(lost)]
    report = json.loads(run_ctl(daemon, "backup", "verify", str(shelf), "--json", code=1).stdout)
    assert any("(seqs 101 to 200)" in line for line in report["problems"])
    with Daemon(daemon.root / "second", **SETTINGS) as second:
        second.stop()
        shutil.rmtree(second.data.root)
        run_ctl(daemon, "backup", "restore", str(shelf), str(second.data.root))
        second.start().wait_ready()
        back = second.client(timeout=2)
        assert [record.seq for record in back.fetch("logs", 0, limit=100).records] == list(range(1, 101))
        with pytest.raises(TopicdError, match="00000101"):
            back.fetch("logs", 150, limit=10)
        assert [record.seq for record in back.fetch("logs", 200, limit=100).records] == list(range(201, 301))
    # Without the cold disk there is no backup that would pass for one of everything.
    (daemon.root / "cold").rename(daemon.root / "away")
    assert "TOPICD-COLD" in run_ctl(daemon, "backup", "create", str(shelf), code=1).stderr
    assert len(json.loads(run_ctl(daemon, "backup", "list", str(shelf), "--json").stdout)) == 1
    daemon.stop()
    found = json.loads(run_ctl(daemon, "fsck", "--data-dir", str(daemon.data.root), "--json").stdout)["findings"]
    assert [one["what"] for one in found if "cold" in one["what"]] == [
        f"the cold directory is not there: {daemon.root / 'cold'}: has no TOPICD-COLD: is its disk mounted?; "
        "4 segments there not checked"
    ]


def test_kills_while_segments_move_lose_nothing(daemon: Daemon) -> None:
    client, total = daemon.client(), 0
    for _ in range(4):
        fill(client, "logs", total + 1, total + 400)
        total += 400
        client.tier_now("logs")
        while not client.tier_state("logs")["segments"]["cold_packed"]:
            time.sleep(0.01)
        daemon.kill_all()
        daemon.restart()
        client = daemon.client()
        assert read_all(client, "logs") == list(range(1, total + 1))
    settled(client, "logs")
    segments = client.tier_state("logs")["segments"]
    assert len(cold_files(daemon)) == segments["cold_packed"]
    assert len(list(daemon.data.topics.glob("*/seg-*.data"))) == segments["hot"]
