"""What a test may do to a daemon with the test clock: move its time, force checkpoints and snapshots.

daemon = Daemon(tmp_path, env=ENVIRON)
warp = Warp(daemon)
warp.advance(60_001)
warp.settle()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.process.wire import Wire
from tests.support.daemon import Daemon, wait_until
from topicd.ipc.protocol.messages import Op

ENVIRON = {"TOPICD_TEST_CLOCK": "true"}
PATIENCE_S = 60.0


class Warp:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    @contextmanager
    def _shards(self) -> Iterator[list[Wire]]:
        sockets = sorted(self.daemon.run.root.glob("dlv-[0-9][0-9].sock"))
        wires = [Wire(path, timeout=PATIENCE_S) for path in sockets]
        try:
            yield wires
        finally:
            for wire in wires:
                wire.close()

    def now_ms(self) -> int:
        """Of the shard whose clock is behind the others."""
        with self._shards() as wires:
            return min(wire.ask(Op.DEBUG)["now_ms"] for wire in wires)

    def advance(self, ms: int) -> None:
        with self._shards() as wires:
            for wire in wires:
                wire.ask(Op.DEBUG, {"advance_ms": ms})

    def set(self, now_ms: int) -> None:
        with self._shards() as wires:
            for wire in wires:
                wire.ask(Op.DEBUG, {"set_ms": now_ms})

    def checkpoint(self) -> None:
        """Everything written so far is in segments."""
        with self._shards() as wires:
            for wire in wires:
                # One that was under way may have begun too early.
                run_once(wire, "checkpoint", "checkpoints")
                run_once(wire, "checkpoint", "checkpoints")

    def snapshot(self) -> None:
        """Metadata is on disk; whole dead segments are dropped, half-dead ones rewritten."""
        with self._shards() as wires:
            for wire in wires:
                run_once(wire, "snapshot", "snapshots")

    def settle(self) -> None:
        self.checkpoint()
        self.snapshot()
        self.snapshot()

    def damage(self) -> int:
        with self._shards() as wires:
            return sum(wire.ask(Op.DEBUG)["damage"] for wire in wires)


def run_once(wire: Wire, what: str, counter: str) -> dict[str, Any]:
    """Ask for it until one more was done; the counters then."""
    before = wire.ask(Op.DEBUG)[counter]

    def done() -> dict[str, Any] | None:
        # Again and again: a request is passed over while one is under way that began too early.
        found = wire.ask(Op.DEBUG, {what: True})
        return found if found[counter] > before else None

    found = wait_until(done, what, PATIENCE_S)
    assert found is not None
    return found


def segment_files(daemon: Daemon, topic_id: int, suffix: str = "data") -> list[Path]:
    """Files of a topic's segments, oldest first."""
    return sorted(daemon.data.topic(topic_id).glob(f"seg-*.{suffix}"))
