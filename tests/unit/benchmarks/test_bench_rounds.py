from __future__ import annotations

import pytest

from benchmarks.__main__ import arguments
from benchmarks.cases import TESTS, all_cases, select
from benchmarks.model import Case, Figure, Results
from benchmarks.peers.base import Peer
from benchmarks.rounds import run_case
from benchmarks.synccheck import Span, SyncCheck, parse, waited
from topicd.bench.load import Load

CASE = Case("X", "X", "a test", (Figure("rate", "/s", True),), Load(), Load())


def peer(name, calls, tmp_path, fails=False):
    def driver(given, load):
        calls.append(name)
        if fails:
            raise RuntimeError("broken")
        return {"rate": 1.0}

    class Fake(Peer):
        @classmethod
        def missing(cls):
            return None

        def drivers(self, test, load):
            return {"": driver}

        def facts(self):
            return {}

        def address(self, durable):
            raise NotImplementedError

    Fake.name = name
    return Fake(tmp_path / name)


def test_rounds_are_interleaved(tmp_path):
    calls: list[str] = []
    found = Results()
    run_case(CASE, Load(), [peer("a", calls, tmp_path), peer("b", calls, tmp_path)], 3, found)
    assert calls == ["a", "b"] * 3
    assert [len(rounds) for rounds in found.rounds.values()] == [3, 3]


def test_failing_peer_is_reported_once_and_stops_nobody(tmp_path):
    calls: list[str] = []
    found = Results()
    run_case(CASE, Load(), [peer("a", calls, tmp_path, fails=True), peer("b", calls, tmp_path)], 2, found)
    assert calls == ["a", "b", "b"]
    assert list(found.failures.values()) == ["RuntimeError: broken"]


def test_case_ids_are_unique_and_every_test_has_a_quick_one():
    ids = [case.id for case in all_cases()]
    assert len(set(ids)) == len(ids)
    assert {case.test for case in select([], quick=True)} == set(TESTS)


def test_only_takes_tests_in_any_case_and_refuses_others():
    assert {case.test for case in select(["a", "GROWTH"], quick=False)} == {"A", "growth"}
    with pytest.raises(ValueError, match="unknown test z"):
        select(["z"], quick=False)


def test_arguments():
    found = arguments(["--quick", "--only", "A, C", "--peers", "redis"])
    assert (found.quick, found.only, found.peers) == (True, ["A", "C"], ["redis"])
    queues = ["persist-file", "persist-default", "persist-sqlite", "litequeue", "diskcache", "sqlite-queue"]
    assert arguments([]).peers == ["redis", "nats", "sqlite", "beanstalkd", "postgres", "parquet", *queues]
    for wrong in (["--peers", "kafka"], ["--only", "Q"]):
        with pytest.raises(SystemExit):
            arguments(wrong)


def test_sync_check_tells_what_it_saw():
    assert str(SyncCheck(50, 49, "strace")).startswith("syncs: 49 of 50")
    few = SyncCheck(50, 3, "strace")
    assert str(few) == "does not sync: 3 of 50 acknowledged appends waited for a sync (strace)"
    assert few.syncs_each is False
    assert SyncCheck(50, None, "no tool").syncs_each is None
    assert str(SyncCheck(50, None, "no tool")) == "not checked: no tool"


def test_trace_lines_become_the_times_when_calls_began():
    lines = [
        "4711 1700000000.100000 fdatasync(7) = 0 (DELAYED)",
        "4711 1700000000.200000 fdatasync(7 <unfinished ...>",
        "4711 1700000000.200300 <... fdatasync resumed>) = 0 (DELAYED)",
        "4711 +++ exited with 0 +++",
    ]
    assert parse(lines) == [1700000000.1, 1700000000.2]


def test_append_that_is_acknowledged_before_its_sync_can_have_returned_does_not_count():
    in_time, too_fast, of_another = Span(1.0, 1.012), Span(2.0, 2.005), Span(3.0, 3.012)
    assert waited([in_time, too_fast, of_another], [1.001, 2.001, 2.999]) == 1
