"""topicctl in this process, answers to STATUS, and screens to compare with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tests.support.fakeserver import FakeServer, Request
from topicd.cli.main import main
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, map_message

GOLDEN = Path(__file__).parent / "golden"
CLEARED = ("TOPICD_SOCKET", "COLUMNS", "NO_COLOR", "TOPICCTL_DEBUG", "XDG_RUNTIME_DIR")

Ctl = Callable[..., Result]


class Topicctl:
    """What CliRunner wants to see of a command: the whole program, its errors and exit codes included."""

    name = "topicctl"

    def main(self, args: Any = (), prog_name: str = "", **extra: Any) -> None:
        main(list(args))


def run(*args: str, input: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    program: Any = Topicctl()
    return CliRunner().invoke(program, args, input=input, env={**dict.fromkeys(CLEARED), **(env or {})})


def answer_status(server: FakeServer, *statuses: dict[str, Any]) -> None:
    """The answers to STATUS, one after the other; the last one stays."""
    left = list(statuses)

    def fault(request: Request) -> bytes | None:
        if request.op != Op.STATUS:
            return None
        status = left.pop(0) if len(left) > 1 else left[0]
        return map_message(Op.STATUS | ANSWER, request.request_id, status)

    server.fault = fault


def when_asked(server: FakeServer, op: Op, action: Callable[[], object]) -> None:
    """Runs the action beside the server as soon as the first such request has come; it is answered before."""
    started: list[threading.Thread] = []

    def fault(request: Request) -> None:
        if request.op == op and not started:
            started.append(threading.Thread(target=action))
            started[0].start()

    server.fault = fault


def compare_with_golden(name: str, text: str) -> None:
    """UPDATE_GOLDEN=1 takes the text as right; look at the difference before you commit it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
