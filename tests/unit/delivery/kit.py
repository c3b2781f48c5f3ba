"""Topics and stamped frames without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from topicd.clock import ManualClock
from topicd.config import Settings
from topicd.errors import TopicdError
from topicd.frames import FrameType, core
from topicd.model import TopicConfig
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need

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
    blob = stamped(datas, topic.seqs.head + 1, ts, **names)
    topic.seqs.give_out(len(datas), ts)
    topic.seqs.commit(topic.seqs.head)
    topic.contents.add(blob, len(datas), sum(len(data) for data in datas), untagged=False)
    return blob


def seqs_of(blobs: Iterable[Blob]) -> list[int]:
    found: list[int] = []
    for blob in blobs:
        found += [row[0] for row in core.decode_frames(blob.data, blob.start, blob.end)]
    return found


class FakeLog:
    """Takes every change and, unless told to hold it, applies it at once."""

    def __init__(self) -> None:
        self.changes: list[tuple[FrameType, dict[str, Any], int, Need]] = []

    def change(
        self,
        topic: Topic,
        kind: FrameType,
        body: dict[str, Any],
        *,
        seq: int,
        need: Need,
        applied: Callable[[], None] | None = None,
        refused: Callable[[TopicdError], None] | None = None,
        numbered: bool = False,
    ) -> None:
        self.changes.append((kind, body, seq, need))
        if applied is not None:
            applied()


class Rooms:
    """Reading and removing over topics whose records are all in memory: the real modules, without log and disk."""

    def __init__(self) -> None:
        self.clock = ManualClock(TS)
        self.settings = Settings()
        place: Any = SimpleNamespace(clock=self.clock, settings=self.settings)
        self.log = FakeLog()
        log: Any = self.log
        segments: Any = None
        self.counters = Counters()
        self.backlog = Backlog()
        self.pulse = Pulse(lambda: None)
        self.live = LiveRecords(segments, self.pulse)
        self.retention = Retention(place, self.live, log, self.counters, self.backlog)
        self.reader = Reader(place, segments, self.live, self.retention, self.counters)
        self.deletion = Deletion(log, segments, self.live, self.retention, self.backlog, self.counters, self.pulse)
