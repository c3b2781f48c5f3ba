"""Topics and stamped frames without a daemon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from topicd.clock import ManualClock
from topicd.frames import core
from topicd.model import TopicConfig
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic

TOPIC_ID = 7
TS = 1_700_000_000_000


def stamped(
    datas: Sequence[bytes],
    first_seq: int = 1,
    ts: int = TS,
    tags: Sequence[bytes | None] | bytes | None = None,
    nodes: Sequence[bytes | None] | bytes | None = None,
    metas: Sequence[bytes | None] | None = None,
) -> Blob:
    """A batch as it leaves the appender: stamped frames and where each of them begins."""
    frames = core.encode_batch(datas, tags, nodes, metas)
    packed = core.stamp_frames(frames, 0, len(frames), TOPIC_ID, first_seq, ts, False)
    return Blob(frames, 0, len(frames), first_seq, memoryview(packed).cast("I"), ts, ts)


def make_topic(**config: Any) -> Topic:
    return Topic(TOPIC_ID, "orders", TopicConfig.from_fields(config), 0, TS)


def publish(topic: Topic, datas: Sequence[bytes], ts: int = TS, **names: Any) -> Blob:
    """Make records visible, as if they had been through the WAL."""
    blob = stamped(datas, topic.head + 1, ts, **names)
    topic.tail.append(blob)
    topic.head = topic.visible = topic.head + len(datas)
    topic.last_ts = ts
    topic.count += len(datas)
    topic.bytes += sum(len(data) for data in datas)
    return blob


def seqs_of(blobs: Iterable[Blob]) -> list[int]:
    found: list[int] = []
    for blob in blobs:
        found += [row[0] for row in core.decode_frames(blob.data, blob.start, blob.end)]
    return found


@dataclass
class FakeActor:
    """What retention and reading ask of the shard, for topics whose records are all in memory."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(TS))
    logged: list[bytes] = field(default_factory=list)
    reclaimable: list[str] = field(default_factory=list)
    evicted_total: int = 0

    def __post_init__(self) -> None:
        self.retention = Retention(self)  # type: ignore[arg-type]
        self.reader = Reader(self)  # type: ignore[arg-type]

    def ts_of(self, topic: Topic, seq: int) -> int:
        for blob in topic.tail.from_seq(seq):
            rows = core.decode_frames(blob.data, blob.start, blob.end)
            return next(row[1] for row in rows if row[0] >= seq)
        return topic.last_ts

    def show_life(self) -> None:
        pass

    def submit_control(self, topic: Topic, frame: bytes, entry: object) -> None:
        self.logged.append(frame)

    def note_reclaimable(self, topic: Topic) -> None:
        self.reclaimable.append(topic.name)
