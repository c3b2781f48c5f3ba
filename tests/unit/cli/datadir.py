"""Data directories made by hand, so that tests can damage them by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from topicd import paths
from topicd.disk import envelope, identity
from topicd.disk.fs import RealFs
from topicd.frames import FrameType, control_frame, core
from topicd.model import TopicConfig
from topicd.paths import DataDir
from topicd.shards.storage import walfile
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.names import DATA, IDX
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.seal import seal_segment
from topicd.shards.storage.snapshot import SnapshotStore

SEED = 7
TS = 1_700_000_000_000
WAL_BYTES = 64 * 1024


def frames(topic_id: int, first_seq: int, datas: list[bytes], tag: bytes | None = None) -> bytes:
    batch = core.encode_batch(datas, tag, None, None)
    core.stamp_frames(batch, 0, len(batch), topic_id, first_seq, TS + first_seq, False)
    return bytes(batch)


class Built:
    def __init__(self, root: Path) -> None:
        self.data = DataDir(root)
        self.fs = RealFs()
        root.mkdir(parents=True)
        self.data.format.write_text(json.dumps({"version": 1, "created_ms": TS, "wal_seed": SEED}))
        self.data.meta.mkdir()
        body = {"run": 1, "next_id": 1025, "live": None, "undrained": None, "garbage": []}
        envelope.save(self.fs, self.data.identity, identity.MAGIC, identity.VERSION, body)

    # ---- segments ----

    def segment(
        self, topic_id: int, first_seq: int, count: int, *, sealed: bool = True, tag: bytes | None = None
    ) -> Path:
        """Records `record <seq>`; the path of .data."""
        directory = self.data.topic(topic_id)
        directory.mkdir(parents=True, exist_ok=True)
        datas = [b"record %d" % seq for seq in range(first_seq, first_seq + count)]
        content = frames(topic_id, first_seq, datas, tag)
        path = resolve(directory, first_seq).file(DATA)
        path.write_bytes(content)
        resolve(directory, first_seq).file(IDX).write_bytes(core.index_entries(content, 0, len(content), 0))
        if sealed:
            seal_segment(self.fs, directory, first_seq)
        return path

    def marks(self, topic_id: int, first_seq: int, *ranges: tuple[int, int]) -> Path:
        directory = self.data.topic(topic_id)
        append_marks(self.fs, directory, first_seq, ranges)
        return resolve(directory, first_seq).file("del")

    def damage_record(self, data: Path, text: bytes) -> None:
        """Flip a byte of the record with that data."""
        content = bytearray(data.read_bytes())
        at = content.index(text)
        content[at] ^= 0xFF
        data.write_bytes(content)

    # ---- metadata ----

    def snapshot(self, *topics: tuple[int, str], shard: int = 0, **fields: Any) -> Path:
        entries = [entry(topic_id, name, **fields) for topic_id, name in topics]
        directory = self.data.snapshots(shard)
        number = SnapshotStore(self.fs, directory).save({"run": 1, "shard": shard, "shards": 1, "topics": entries})
        return directory / paths.snapshot_name(number)

    # ---- WAL ----

    def wal(self, *groups: bytes, shard: int = 0, synced: bool = True) -> Path:
        """One file with these groups; each says that what lies before it was synced."""
        directory = self.data.wal_shard(shard)
        directory.mkdir(parents=True, exist_ok=True)
        content, lsn = bytearray(), 0
        for group in groups:
            content += walfile.group_header(len(group), lsn, lsn if synced else 0, 1, SEED) + group
            lsn = len(content)
        path = directory / paths.wal_file_name(0)
        path.write_bytes(content.ljust(WAL_BYTES, b"\0"))
        return path


def create_frame(topic_id: int, name: str) -> bytes:
    body = {"name": name, "config": TopicConfig().to_fields(), "created_ms": TS, "reserved": 0}
    return control_frame(FrameType.TOPIC_CREATE, topic_id, 0, TS, body)


def entry(topic_id: int, name: str, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": topic_id,
        "name": name,
        "config": TopicConfig().to_fields(),
        "created_ms": TS,
        "earliest": 1,
        "evict_floor": 1,
        "losses": [],
        "delete_below": 0,
        "reserved": 0,
        "gone": [],
        "lost": [],
        "head": 10,
        "last_ts": TS,
        "damaged": [],
        "producers": [],
        "consumers": [],
    }
    return {**made, **fields}
