"""How log lines look."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator

import pytest

from topicd import telemetry
from topicd.telemetry import JsonFormatter, TextFormatter


def record(level: int = logging.INFO, text: str = "segment sealed", **facts: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"levelno": level, "levelname": logging.getLevelName(level), "msg": text, **facts})
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def with_trace(made: logging.LogRecord) -> logging.LogRecord:
    try:
        raise RuntimeError("no luck")
    except RuntimeError:
        made.exc_info = sys.exc_info()
    return made


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_has_time_level_process_subject_and_facts() -> None:
    line = TextFormatter("wal-00", journal=False).format(record(shard=2, path="/a b", empty="", quote='x"y'))
    clock, rest = line.split(" ", 1)
    assert clock.endswith(".250")
    assert rest == 'INFO    wal-00: segment sealed shard=2 path="/a b" empty="" quote="x\\"y"'


def test_a_fact_with_a_newline_stays_on_the_line() -> None:
    assert "\n" not in TextFormatter("wal-00", journal=False).format(record(error="two\nlines"))


def test_journal_lines_have_a_priority_and_no_time() -> None:
    format = TextFormatter("wal-00", journal=True).format
    assert format(record()) == "<6>INFO    wal-00: segment sealed"
    assert format(record(logging.ERROR)).startswith("<3>ERROR")
    assert format(record(logging.WARNING)).startswith("<4>WARNING")
    assert format(record(logging.DEBUG)).startswith("<7>DEBUG")


def test_every_line_of_a_trace_has_the_priority() -> None:
    lines = TextFormatter("wal-00", journal=True).format(with_trace(record(logging.ERROR))).splitlines()
    assert len(lines) > 2
    assert all(line.startswith("<3>") for line in lines)


def test_json_has_the_same_content() -> None:
    body = json.loads(JsonFormatter("dlv-01", journal=False).format(with_trace(record(shard=2, where=os.curdir))))
    assert "no luck" in body.pop("exception")
    assert body == {
        "ts_ms": 1_700_000_000_250,
        "level": "info",
        "process": "dlv-01",
        "subject": "segment sealed",
        "shard": 2,
        "where": ".",
    }


def test_setup_replaces_handlers_and_sets_the_level(root_logger: logging.Logger) -> None:
    telemetry.setup("wal-00", "warning", "json")
    telemetry.setup("wal-00", "debug", "text")
    assert len(root_logger.handlers) == 2  # stderr, and the memory of the last warnings
    assert root_logger.level == logging.DEBUG
    telemetry.set_level("error")
    assert root_logger.level == logging.ERROR


def test_journal_is_recognised_by_device_and_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read):
        found = os.fstat(stream.fileno())
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert telemetry.on_journal()
        monkeypatch.setenv("JOURNAL_STREAM", "1:1")
        assert not telemetry.on_journal()


def test_the_last_warnings_are_remembered_and_cut(root_logger: logging.Logger) -> None:
    telemetry.setup("wal-00", "info", "text")
    log = logging.getLogger("test")
    log.info("nothing to remember")
    for number in range(telemetry.KEPT + 2):
        log.warning("disk slow", extra={"number": number, "text": "x" * 500})
    rows = telemetry.recent()
    assert len(rows) == telemetry.KEPT
    assert rows[-1][1] == "warning" and rows[-1][2].startswith(f"disk slow number={telemetry.KEPT + 1} ")
    assert all(len(text) <= telemetry.KEPT_CHARS for _, _, text in rows)
