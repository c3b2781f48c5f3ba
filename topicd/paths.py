"""Where everything lies on disk, in the run directory and in shared memory: names are made and parsed here only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

SHM_DIR = Path("/dev/shm")

_WAL_FILE = re.compile(r"wal-([0-9a-f]{16})\.log")
_SPARE_FILE = re.compile(r"spare-(\d+)\.log")
_SHARD_DIR = re.compile(r"shard-(\d{2,})")
_SNAPSHOT = re.compile(r"snapshot-(\d+)\.bin")
_SNAPSHOT_PART = re.compile(r"snapshot-(\d+)\.part-(\d+)\.bin")
_TOPIC_DIR = re.compile(r"([0-9a-f]{16})(\.deleted)?")
_SEGMENT = re.compile(r"seg-(\d{20})\.(data\.z|data|idx|tags|del|cut|cold)")


class DataDir(NamedTuple):
    root: Path

    @property
    def restoring(self) -> DataDir:
        """The same while it is being restored."""
        return DataDir(self.root.with_name(self.root.name + RESTORING))

    @property
    def is_restoring(self) -> bool:
        return self.root.name.endswith(RESTORING)

    @property
    def lock(self) -> Path:
        return self.root / "LOCK"

    @property
    def format(self) -> Path:
        return self.root / "FORMAT"

    @property
    def meta(self) -> Path:
        return self.root / "meta"

    @property
    def identity(self) -> Path:
        """Topic-id high-water mark, run number and the instance whose rings may be left in shared memory."""
        return self.meta / "identity.bin"

    @property
    def cold(self) -> Path:
        """Which directory holds the data of segments that have left this one."""
        return self.meta / "cold.bin"

    def snapshots(self, dlv: int) -> Path:
        return self.meta / shard_dir_name(dlv)

    @property
    def wal(self) -> Path:
        return self.root / "wal"

    def wal_shard(self, shard: int) -> Path:
        return self.wal / shard_dir_name(shard)

    @property
    def topics(self) -> Path:
        return self.root / "topics"

    def topic(self, topic_id: int) -> Path:
        return self.topics / topic_dir_name(topic_id)

    @property
    def chats(self) -> Path:
        return self.root / "chat"

    def chat(self, shard: int) -> Path:
        """The store of a chat process, and the base of its log."""
        return self.chats / shard_dir_name(shard)

    @property
    def channels(self) -> Path:
        """A directory for each persistent channel, named by the hash of its handler."""
        return self.root / "channels"

    @property
    def trash(self) -> Path:
        """What nobody knows and nobody may throw away unseen."""
        return self.root / "trash"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"


RESTORING = ".restoring"  # behind the name of a data directory that is not restored yet
COLD_MARK = "TOPICD-COLD"  # in a cold directory: whose it is
METADATA_FILE = "metadata.bin"  # in each channel's directory
CURSOR_FILE = "cursor.bin"  # beside it, where a channel is a queue: what is popped next
TOPIC_NAME_FILE = "topic.bin"  # in each topic's directory: whose it is


class RunDir(NamedTuple):
    root: Path

    @property
    def socket(self) -> Path:
        return self.root / "topicd.sock"

    def delivery_socket(self, shard: int) -> Path:
        return self.root / f"dlv-{shard:02d}.sock"

    def history_socket(self, shard: int) -> Path:
        """Where a delivery shard hands out descriptors of sealed segments."""
        return self.root / f"dlv-{shard:02d}.history.sock"

    def chat_socket(self, shard: int) -> Path:
        return self.root / f"chat-{shard:02d}.sock"

    @property
    def http_socket(self) -> Path:
        return self.root / "http.sock"

    @property
    def http_port(self) -> Path:
        """A file with the port that HTTP is served on."""
        return self.root / "http.port"

    @property
    def metrics_socket(self) -> Path:
        return self.root / "metrics.sock"


def shard_dir_name(shard: int) -> str:
    return f"shard-{shard:02d}"


def parse_shard_dir(name: str) -> int | None:
    m = _SHARD_DIR.fullmatch(name)
    return int(m.group(1)) if m else None


def wal_file_name(first_lsn: int) -> str:
    return f"wal-{first_lsn:016x}.log"


def parse_wal_file(name: str) -> int | None:
    m = _WAL_FILE.fullmatch(name)
    return int(m.group(1), 16) if m else None


def spare_file_name(number: int) -> str:
    """A WAL file that waits for its use: zero-filled, or absorbed and recycled."""
    return f"spare-{number}.log"


def parse_spare_file(name: str) -> int | None:
    m = _SPARE_FILE.fullmatch(name)
    return int(m.group(1)) if m else None


def snapshot_name(number: int) -> str:
    return f"snapshot-{number}.bin"


def parse_snapshot(name: str) -> int | None:
    m = _SNAPSHOT.fullmatch(name)
    return int(m.group(1)) if m else None


def snapshot_part_name(number: int, part: int) -> str:
    return f"snapshot-{number}.part-{part}.bin"


def parse_snapshot_part(name: str) -> int | None:
    """The number of the snapshot that it is a part of."""
    m = _SNAPSHOT_PART.fullmatch(name)
    return int(m.group(1)) if m else None


def topic_dir_name(topic_id: int) -> str:
    return f"{topic_id:016x}"


def parse_topic_dir(name: str) -> tuple[int, bool] | None:
    """(topic id, is it being deleted), or None for a name that is not ours."""
    m = _TOPIC_DIR.fullmatch(name)
    return (int(m.group(1), 16), m.group(2) is not None) if m else None


def segment_name(first_seq: int, part: str) -> str:
    return f"seg-{first_seq:020d}.{part}"


def parse_segment(name: str) -> tuple[int, str] | None:
    m = _SEGMENT.fullmatch(name)
    return (int(m.group(1)), m.group(2)) if m else None


class Instance(NamedTuple):
    """One run of the daemon and the shape of its shared memory, which may outlive it."""

    instance: str  # 16 hex characters
    wal_shards: int
    delivery_shards: int


def shm_prefix(instance: str) -> str:
    return f"/topicd.{instance}."


def ring_shm(instance: str, wal: int, dlv: int) -> str:
    return f"{shm_prefix(instance)}ring.{wal:02d}.{dlv:02d}"


def wal_state_shm(instance: str, wal: int) -> str:
    return f"{shm_prefix(instance)}walstate.{wal:02d}"


def stats_shm(instance: str, process: str) -> str:
    return f"{shm_prefix(instance)}stats.{process}"


def tally_shm(instance: str) -> str:
    return f"{shm_prefix(instance)}tally"


def bells_shm(instance: str) -> str:
    return f"{shm_prefix(instance)}bells"


def pressure_shm(instance: str) -> str:
    return f"{shm_prefix(instance)}pressure"
