"""bench: what is asked for, what is shown, and that nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fakeserver import FakeServer
from tests.unit.cli.kit import Ctl, answer_status
from tests.unit.cli.samples import status
from topicd.bench import judge, machine
from topicd.bench.plan import TESTS, Line
from topicd.cli.verbs import bench

QUICK = ("--seconds", "0.02")


@pytest.fixture(autouse=True)
def answers(server: FakeServer) -> None:
    answer_status(server, status())


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders for temporary files are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_bench_measures_and_cleans_up(ctl: Ctl, server: FakeServer, scratch: Path) -> None:
    done = ctl("bench", "--only", "a,C,D", *QUICK, "--size", "8", "--batch", "50", "--json")
    document = json.loads(done.stdout)
    found = document["results"]
    assert [(result["test"], result["name"]) for result in found] == [
        ("A", "single appends, ephemeral"),
        ("A", "single appends, memory"),
        ("A", "single appends, disk"),
        ("A", "single appends, fsync"),
        ("C", "batches of 50"),
        ("D", "reading"),
        ("D", "history"),
        ("D", "100 from a cursor"),
    ]
    assert all(result["records_per_s"] > 0 for result in found)
    assert found[0]["p999_us"] >= found[0]["p99_us"] >= found[0]["p50_us"] > 0
    assert {"CPU", "memory", "kernel", "filesystem", "python", "machine code"} <= document["machine"].keys()
    assert document["sync_us"]["p99"] >= document["sync_us"]["p50"] > 0
    assert document["failed"] == []
    assert server.topics == {}
    assert list(scratch.iterdir()) == []


def test_one_class_is_measured_if_it_is_named(ctl: Ctl, server: FakeServer) -> None:
    found = json.loads(ctl("bench", "--only", "A", *QUICK, "--durability", "fsync", "--json").stdout)
    assert [result["name"] for result in found["results"]] == ["single appends, fsync"]


def test_bench_keeps_a_topic_that_was_named(ctl: Ctl, server: FakeServer) -> None:
    args = ("--only", "C", *QUICK, "--topic", "mine", "--durability", "memory")
    assert ctl("bench", *args).exit_code == 0
    assert "batches of 1,000" in ctl("bench", *args).stdout
    assert server.topics["mine"].head >= 2000
    assert set(server.topics) == {"mine"}


def test_reading_needs_no_other_test(ctl: Ctl, server: FakeServer) -> None:
    found = json.loads(ctl("bench", "--only", "D", *QUICK, "--json").stdout)
    assert {result["test"] for result in found["results"]} == {"D"}


def test_bench_says_which_tests_there_are(ctl: Ctl, server: FakeServer) -> None:
    done = ctl("bench", "--only", "A,X")
    assert done.exit_code == 2
    assert f"tests are {', '.join(TESTS)}, not X" in done.stderr


@pytest.mark.parametrize("given", ["0", "1,x", "", "1,-5", "10000000"])
def test_numbers_of_watchers_are_numbers(ctl: Ctl, server: FakeServer, given: str) -> None:
    done = ctl("bench", "--watchers", given)
    assert done.exit_code == 2
    assert "numbers from 1 to" in done.stderr


def test_records_must_fit_the_disk(ctl: Ctl, server: FakeServer, scratch: Path) -> None:
    done = ctl("bench", "--only", "recovery", "--records", "100000000", "--size", "1000000")
    assert done.exit_code == 2
    assert "give fewer --records, or another --dir" in done.stderr
    assert list(scratch.iterdir()) == []


def test_what_cannot_be_measured_is_said_and_the_others_go_on(
    ctl: Ctl, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no batches today")

    monkeypatch.setattr("topicd.bench.loops.batched", broken)
    done = ctl("bench", "--only", "A,C", *QUICK, "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 1
    assert document["failed"] == [{"test": "C", "error": "no batches today", "code": "RuntimeError"}]
    assert {result["test"] for result in document["results"]} == {"A"}
    assert server.topics == {}
    assert "C was not measured: no batches today" in ctl("bench", "--only", "A,C", *QUICK).stderr


def test_each_figure_of_a_line_is_shown() -> None:
    line = Line("fanout", "9 watchers", None, None, 12.34, 1234.5, 20_000.4, last_p50_us=50.0, last_p99_us=60.0)
    assert bench.row(line) == ["fanout", "9 watchers", "-", "-", "12.34", "1,234", "20,000", "the last one 50 / 60"]
    line = Line("eviction", "at its cap", 1_000_000.0, 100.0, ratio=0.914)
    assert bench.row(line)[2:] == ["1,000,000", "100", "-", "-", "-", "0.91 of that without"]
    assert bench.row(Line("recovery", "from segments", seconds=0.2345))[-1] == "0.234 s"
    line = Line("bytes", "in the log", bytes_per_record=147.2, ratio=1.472)
    assert bench.row(line)[-1] == "147 bytes a record; 1.47 of the data"


# ---- what is said about the figures ----


def test_nothing_is_said_of_good_figures() -> None:
    lines = [Line("E", "push", p99_us=900.0), Line("eviction", "at its cap", ratio=0.95), Line("A", "single appends")]
    assert judge.of_lines(lines) == []
    assert judge.of_sync({"p50": 200.0}) == []


def test_slow_pushes_caps_and_disks_are_named() -> None:
    lines = [Line("router", "through a router", p99_us=7_500.0), Line("eviction", "at its cap", ratio=0.31)]
    slow, dear = judge.of_lines(lines)
    assert "through a router: 7.5 ms at p99" in slow
    assert "at its cap: 0.31 of the rate without a cap" in dear
    assert "a sync of this disk takes 12,000 µs" in judge.of_sync({"p50": 12_000.0})[0]


def test_a_folder_in_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "filesystem", lambda path: ("none", "tmpfs", "rw"))
    monkeypatch.setattr(machine, "is_busy", lambda: False)
    assert "where a sync costs nothing" in judge.of_machine(tmp_path)[0]


def test_work_of_others_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (100.0, 0.0, 0.0))
    assert "other programs are at work" in judge.of_machine(tmp_path)[0]
