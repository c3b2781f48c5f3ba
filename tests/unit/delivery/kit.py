"""Topics, stamped frames, places and rings without a daemon."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.fakedisk import FakeDisk
from topicd import paths
from topicd.clock import ManualClock
from topicd.config import Settings
from topicd.errors import StorageFailed, TopicdError
from topicd.frames import FrameType, control_body, core, parse_header
from topicd.ipc import ring
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.ring import RingConsumer, RingProducer
from topicd.ipc.shardboot import DELIVERY, ShardBoot
from topicd.model import TopicConfig
from topicd.paths import DataDir, RunDir
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.damage import DamageLog
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.entry import Entry
from topicd.shards.delivery.writing.outlet import Outlet

ROOT = Path("/data")
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


def make_topic(name: str = "orders", topic_id: int = TOPIC_ID, **config: Any) -> Topic:
    return Topic(topic_id, name, TopicConfig.from_fields(config), 0, TS)


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
        self.reader = Reader(place, segments, self.live, self.retention, DamageLog(self.counters))
        self.deletion = Deletion(log, segments, self.live, self.retention, self.backlog, self.counters, self.pulse)


def make_place(fs: Any = None, *, index: int = 0, shards: int = 1, power_lost: bool = False, **settings: Any) -> Place:
    """Where a shard is, without a process: a disk in memory unless one is given."""
    given = {"data_dir": ROOT, "run_dir": Path("/run"), **settings}
    boot = ShardBoot(
        kind=DELIVERY,
        index=index,
        instance="test",
        run=1,
        wal_shards=1,
        delivery_shards=shards,
        bell_fds={},
        wal_seed=1,
        power_lost=power_lost,
    )
    shard: Any = SimpleNamespace(
        boot=boot,
        clock=ManualClock(TS),
        settings=Settings(**given),
        fs=fs if fs is not None else make_disk(),
        data=DataDir(ROOT),
        run=RunDir(Path("/run")),
    )
    return Place(shard)


def make_disk() -> FakeDisk:
    return FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])


class Note(Entry):
    """An entry that writes down what it is told."""

    __slots__ = ("_story", "name")

    def __init__(self, name: str, need: Need, story: list[str]) -> None:
        super().__init__(need)
        self.name = name
        self._story = story

    def committed(self) -> None:
        self._story.append(self.name)

    def failed(self, error: TopicdError) -> None:
        assert isinstance(error, StorageFailed)
        self._story.append(f"{self.name} failed")


class Wal:
    """The other end of a ring: a WAL shard that does as the test says. Notes whether it would ring, as Committer
    does."""

    def __init__(self, instance: str, index: int = 0) -> None:
        self.ring = RingConsumer.attach(paths.ring_shm(instance, index, 0), instance)
        self.log = b""
        self.written = 0

    @property
    def pending(self) -> int:
        return self.ring.head - self.written

    def write(self, up_to: int | None = None) -> bool:
        """Take what is there; would it ring the bell of whoever waits?"""
        start, end = self.written, self.ring.head if up_to is None else up_to
        self.log += b"".join(bytes(view) for view in self.ring.views(start, end))
        self.written = end
        self.ring.set_written(end)
        return self.ring.write_wanted_pos > start

    def sync(self) -> None:
        self.ring.set_synced(self.written)

    def fail(self, position: int, code: int = errno.EIO) -> None:
        """As Committer._fail: the epoch first, then the space."""
        self.ring.fail(position, code)
        self.ring.set_written(self.ring.head)

    def resume(self) -> None:
        """Drop everything up to where the producer says that valid bytes begin again."""
        epoch, position = self.ring.resync
        assert epoch == self.ring.failed_epoch
        self.written = position
        self.ring.set_written(position)
        self.ring.set_synced(position)

    def frames(self) -> list[tuple[FrameType, Any]]:
        """What the log holds: the type of each frame, and the body of a control frame."""
        found, at = [], 0
        while at < len(self.log):
            header = parse_header(self.log, at)
            kind = FrameType(header.type)
            plain = kind in (FrameType.APPEND, FrameType.PRODUCER, FrameType.DIRECT)
            found.append((kind, None if plain else control_body(self.log, at, at + header.size)))
            at += header.size
        return found


def make_outlet(instance: str, bell: Doorbell, capacity: int, index: int = 0) -> tuple[Outlet, Wal]:
    """A real ring in shared memory and its two ends."""
    name = paths.ring_shm(instance, index, 0)
    ring.create(name, capacity, instance).close()
    outlet = Outlet(index, RingProducer.attach(name, instance), bell)
    outlet.open()
    return outlet, Wal(instance, index)
