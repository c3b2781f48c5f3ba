"""How far a topic is compacted. Not in the log: a start that knows less looks again, and finds nothing to delete."""

from __future__ import annotations

from typing import Any, ClassVar

from topicd.shards.delivery.topic.part import TopicPart


class Compacted(TopicPart):
    KEY: ClassVar[str] = "compacted"

    def __init__(self) -> None:
        self.through = 0  # of tags up to this seq no older record is left
        self.deleted = 0  # so many records were

    def to_snapshot(self, visible: int) -> list[int]:
        return [self.through, self.deleted]

    def restore(self, body: Any) -> None:
        self.through, self.deleted = (int(number) for number in body)
