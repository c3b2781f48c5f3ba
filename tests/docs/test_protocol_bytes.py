"""The bytes that the protocol page shows are those that a client sends."""

from __future__ import annotations

import re
from pathlib import Path

from topicd.ipc.protocol.codec import packed
from topicd.ipc.protocol.wire import OP_HELLO, OP_PING, PROTOCOL_VERSION, message

PAGE = (Path(__file__).parents[2] / "docs/protocol.md").read_text()


def test_the_example_is_true() -> None:
    block = PAGE.partition("byte by byte")[2].partition("```text\n")[2].partition("```")[0]
    shown = [bytes.fromhex(line) for line in block.splitlines() if re.fullmatch(r"[0-9a-f ]+", line)]
    hello = message(OP_HELLO, 1, packed({"version": PROTOCOL_VERSION, "client": "me"}))
    assert shown == [hello, message(OP_PING, 2, packed({}))]
