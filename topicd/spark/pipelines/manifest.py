"""What an archive holds, topic by topic. Promise: a topic is known by its id, so one that was made anew under an old
name is another; the files of a topic hold disjoint ranges of seqs in ascending order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from topicd.errors import FormatError

KIND, VERSION = "topicd-archive", 1


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file; its records are of one topic and one day, ordered by seq."""

    path: str  # below the archive's root
    day: str  # UTC
    first_seq: int
    last_seq: int
    count: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """Every seq from first_seq to last_seq was examined; `count` of them were there and are in `parts`."""

    topic: str
    topic_id: int
    first_seq: int
    last_seq: int
    last_ts: int  # ms, of the newest record here; 0 without records
    count: int
    config: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    @property
    def absent(self) -> int:
        """Seqs that were examined and had no record: deleted, or removed by cap or TTL before the archive came."""
        return self.last_seq - self.first_seq + 1 - self.count

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def extended(self, last_seq: int, last_ts: int, config: dict[str, Any], parts: list[Part]) -> ArchivedTopic:
        return replace(
            self,
            last_seq=last_seq,
            last_ts=max(last_ts, self.last_ts),
            count=self.count + sum(part.count for part in parts),
            config=config,
            parts=(*self.parts, *sorted(parts, key=lambda part: part.first_seq)),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    archive_id: str
    topics: tuple[ArchivedTopic, ...] = ()

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(16))

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        try:
            return cls(str(body["archive_id"]), tuple(_topic(entry) for entry in body["topics"]))
        except (KeyError, TypeError, ValueError) as exc:
            raise FormatError(f"the archive's manifest is malformed: {exc!r:.200}") from None

    def to_json(self) -> dict[str, Any]:
        return {"archive_id": self.archive_id, "topics": [asdict(topic) for topic in self.topics]}

    def find(self, topic_id: int, name: str) -> ArchivedTopic | None:
        return next((t for t in self.topics if (t.topic_id, t.topic) == (topic_id, name)), None)

    def named(self, name: str) -> list[ArchivedTopic]:
        """All that ever had the name, oldest first."""
        return [topic for topic in self.topics if topic.topic == name]

    def with_topics(self, changed: list[ArchivedTopic]) -> Manifest:
        """Those known stay in their places, new ones come last."""
        by_key = {(topic.topic_id, topic.topic): topic for topic in changed}
        kept = [by_key.pop((topic.topic_id, topic.topic), topic) for topic in self.topics]
        return replace(self, topics=(*kept, *by_key.values()))

    def paths(self) -> Iterator[str]:
        return (part.path for topic in self.topics for part in topic.parts)


def _topic(entry: dict[str, Any]) -> ArchivedTopic:
    known = {f.name for f in fields(ArchivedTopic)}
    parts = tuple(Part(**part) for part in entry["parts"])
    return ArchivedTopic(**{**{k: v for k, v in entry.items() if k in known}, "parts": parts})
