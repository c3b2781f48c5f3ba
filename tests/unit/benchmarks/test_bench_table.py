from __future__ import annotations

import json

from benchmarks import report, table
from benchmarks.bars import BARS, judge
from benchmarks.cases import select
from benchmarks.model import Key, Results

CASE = select(["C"], quick=True)[0]


def a_run() -> report.Run:
    results = Results()
    for rate in (90.0, 100.0, 110.0):
        results.add(Key(CASE.id, "redis", "Lua"), {"rate": rate, "mb_s": rate / 10, "cpu_m": 2.0})
        results.add(Key(CASE.id, "topicd", "publish_many"), {"rate": 7.5 * rate, "mb_s": rate})
    results.fail(Key(CASE.id, "nats", "publish_async"), "TimeoutError: a | b\nc")
    bars = [judge(bar, results, {}) for bar in BARS if bar.test == "C"]
    peers = {"redis": {"version": "Redis 7", "settings": "always", "sync": "syncs"}}
    skipped = {"nats": "nats-server not installed"}
    return report.Run({"CPU": "one"}, peers, skipped, [CASE], results, bars, quick=True)


def test_numbers_have_three_digits_and_thousands():
    shown = [table.number(x) for x in (None, 0.0123456, 1.2345, 99.96, 317.2, 1234.5, 1_234_567.0, 999_999.0)]
    assert shown == ["-", "0.0123", "1.23", "100", "317", "1,230", "1,230,000", "1,000,000"]


def test_report_shows_medians_spread_and_how_much_better_ours_is():
    text = table.render(a_run())
    row = next(line for line in text.splitlines() if "Lua" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "redis",
        "Lua",
        "100",
        "10",
        "2",
        "-",
        "±10 %",
        "7.50 x",
    ]


def test_report_shows_bars_with_ratio_and_verdict():
    text = table.render(a_run())
    redis = next(line for line in text.splitlines() if "against the best of Redis" in line)
    assert "| 7.50 x" in redis
    assert "| ≥ 6 x" in redis
    assert redis.rstrip(" |").endswith("met")
    sqlite = next(line for line in text.splitlines() if "100 B, against SQLite" in line)
    assert "not measured: no figure of sqlite" in sqlite


def test_skipped_peers_and_failures_are_told():
    text = table.render(a_run())
    assert "nats-server not installed: skipped (make bench-deps)" in text
    assert "failed: TimeoutError: a \\| b c" in text
    assert "the bars are an indication only" in text


def test_tables_are_rectangular():
    lines = table.table(["a", "long head"], [["1", "2"], ["longer", ""]])
    assert len({len(line) for line in lines}) == 1


def test_document_holds_every_round_and_is_json():
    document = json.loads(json.dumps(report.as_document(a_run())))
    rows = {row["peer"]: row for row in document["cases"][0]["results"]}
    assert rows["redis"]["figures"]["rate"] == {"median": 100.0, "low": 90.0, "high": 110.0}
    assert len(rows["redis"]["rounds"]) == 3
    assert document["bars"][1]["verdict"] == "met"
    assert document["skipped"] == {"nats": "nats-server not installed"}
