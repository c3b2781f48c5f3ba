"""Log lines, the same in every process: level, process, subject, then key=value. They go to stderr.

Code logs a subject with its facts in `extra`: log.info("segment sealed", extra={"shard": 2, "segment": 7}).
Under the journal a line begins with its priority (<6>) and has no time, for the journal keeps it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
KEPT = 4  # warnings that a process remembers: they stand on its stats page
KEPT_CHARS = 200
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def setup(process: str, level: str = "info", format: str = "text") -> None:
    """Take over the root logger of this process. May be called again."""
    handler = logging.StreamHandler(sys.stderr)
    journal = on_journal()
    handler.setFormatter(JsonFormatter(process, journal) if format == "json" else TextFormatter(process, journal))
    root = logging.getLogger()
    root.handlers[:] = [handler, _RECENT]
    set_level(level)


def recent() -> list[list[Any]]:
    """The last warnings and errors of this process, oldest first: ms, level, text."""
    return list(_RECENT.rows)


class _Recent(logging.Handler):
    """Keeps what an operator may have missed: the last KEPT warnings, each cut to KEPT_CHARS."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.rows: deque[list[Any]] = deque(maxlen=KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        pairs = (f"{key}={_quoted(value)}" for key, value in facts(record).items())
        text = " ".join([record.getMessage(), *pairs])
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        self.rows.append([int(record.created * 1000), record.levelname.lower(), text[:KEPT_CHARS]])


def set_level(level: str) -> None:
    logging.getLogger().setLevel(LEVELS[level])


def on_journal() -> bool:
    """Is stderr the journal's stream? systemd names its device and inode in JOURNAL_STREAM."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def facts(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave in `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _OWN}


class TextFormatter(logging.Formatter):
    def __init__(self, process: str, journal: bool) -> None:
        super().__init__()
        self._process = process
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        head = f"{record.levelname:<7} {self._process}: {record.getMessage()}"
        line = " ".join([head, *(f"{key}={_quoted(value)}" for key, value in facts(record).items())])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if self._journal:
            return _prefixed(record, line)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock}.{int(record.msecs):03d} {line}"


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str, journal: bool) -> None:
        super().__init__()
        self._process = process
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        import json

        body: dict[str, Any] = {
            "ts_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "process": self._process,
            "subject": record.getMessage(),
            **facts(record),
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        line = json.dumps(body, default=str, ensure_ascii=False)
        return _prefixed(record, line) if self._journal else line


def _prefixed(record: logging.LogRecord, text: str) -> str:
    # Every line of a traceback needs its own prefix: the journal stores line by line.
    prefix = f"<{_PRIORITY.get(record.levelno, 6)}>"
    return "\n".join(prefix + line for line in text.splitlines() or [""])


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text and not any(c.isspace() or c in '"=' or not c.isprintable() for c in text)
    if plain:
        return text
    import json

    return json.dumps(text, ensure_ascii=False)


_RECENT = _Recent()
