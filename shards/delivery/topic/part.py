"""State that hangs on a topic: its frames in the log, its replay, its place in snapshots and its figures, in one file.

A part is named once, in Topic.PARTS; recovery, snapshots and the stats page find it there.
"""

from __future__ import annotations

from typing import Any, ClassVar

from topicd.frames import FrameType


class TopicPart:
    KEY: ClassVar[str]  # of its entry in snapshots
    FRAMES: ClassVar[frozenset[FrameType]] = frozenset()  # control frames that are its own

    def replay(self, kind: FrameType, body: dict[str, Any], ts: int) -> None:
        """A change of it, from the log; the same that was done when it was first stored."""
        raise NotImplementedError

    def to_snapshot(self, visible: int) -> Any:
        """What msgpack can hold. Records above `visible` may yet be lost."""
        raise NotImplementedError

    def restore(self, body: Any) -> None:
        """What to_snapshot gave, into a new part."""
        raise NotImplementedError

    def figures(self, visible: int, earliest: int) -> tuple[int, ...]:
        """Its numbers on the stats page, behind those of the parts before it; topicd.metrics.TOPIC names them."""
        return ()
