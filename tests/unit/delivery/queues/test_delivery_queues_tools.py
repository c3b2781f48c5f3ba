"""What every queue of a shard uses: that of the shard."""

from __future__ import annotations

from tests.unit.delivery.desk import Desk


def test_they_are_those_of_the_shard(desk: Desk) -> None:
    tools, parts = desk.parts.queues.tools, desk.parts
    assert tools.log is parts.log and tools.reader is parts.reader and tools.deadlines is parts.deadlines
    assert tools.clock is desk.clock and not tools.draining
