"""A few thousand hostile streams; `make fuzz` plays a hundred thousand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.process.fuzz import Broken, Fuzzer, fuzz
from tests.process.fuzz_cases import DELIVERY, STRATEGIES, SUPERVISOR, Requests, Stream, World, foresee
from tests.process.wire import packed
from tests.support.daemon import Daemon
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import HEADER

CASES = 3000
GROWTH_MIB = 20


def test_hostile_bytes_harm_nobody(tmp_path: Path) -> None:
    report = fuzz(tmp_path, CASES, seed=7)
    assert report.cases == CASES
    assert report.growth_mib < GROWTH_MIB, report
    assert report.healthy_published > 50, report
    assert set(STRATEGIES[DELIVERY]) - set(report.by_strategy) <= {"huge", "flood"}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in (DELIVERY, SUPERVISOR) for name in STRATEGIES[kind]]
)
def test_every_strategy_follows_from_its_seed(kind: str, name: str) -> None:
    play = STRATEGIES[kind][name][0]
    streams = [play(Requests(random.Random(3), World(kind, [("fuzz-1", 5)], ["fuzz-2"]))) for _ in range(2)]
    assert streams[0] == streams[1]
    assert streams[0].data


def test_the_forecast_knows_whole_broken_and_endless_streams() -> None:
    ping = packed(Op.PING, 7, {})
    assert foresee(ping * 2, DELIVERY) == (frozenset({7}), False, 0)
    assert foresee(ping[:-1], DELIVERY) == (frozenset(), False, len(ping) - 1)
    assert foresee(HEADER.pack(2**32 - 1, Op.APPEND, 0, 7), DELIVERY).broken
    assert foresee(packed(Op.CREDIT, 7, bytes(8)), DELIVERY).ids == frozenset()
    assert foresee(packed(Op.CREDIT, 7, bytes(7)), DELIVERY).ids == frozenset({7})


def test_a_missing_answer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself: a request that nobody answers breaks the run."""
    monkeypatch.setattr("tests.process.fuzz.ANSWER_S", 0.5)
    monkeypatch.setitem(STRATEGIES[DELIVERY], "valid", (lambda r: Stream(r.message(Op.CREDIT, bytes(8))), 1e9))
    monkeypatch.setattr("tests.process.fuzz_cases._may_be_silent", lambda op, flags, body: False)
    with Daemon(tmp_path, wal_shards=2, delivery_shards=2) as daemon, pytest.raises(Broken):
        Fuzzer(daemon, 1).run(50)
