"""Numbered snapshots of one shard's metadata. Promise: the newest is durable before an older one goes, and
one good predecessor always stays, so that a snapshot that turns out corrupt has something to fall back to.

The log must reach back to the predecessor: trim it by what the snapshot before the newest had absorbed.

A number is the run of the daemon << 32, plus a count. Another number of shards in the next run deals the names
anew, so what one shard begins with may be in the snapshots of any: those of earlier runs stay until every shard
has two of this run.

A body whose topics would make the file too large is written in parts, each a file of its own, and then the snapshot
that names them by their checksums: it is there with all of them, or it is not there. One topic is in one part, however
much there is to say of it: a queue of a few hundred thousand jobs with keys takes more than other files may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import xxhash

from topicd import paths
from topicd.disk import envelope
from topicd.disk.fs import TMP_SUFFIX, Fs, read_all, replace_file
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError
from topicd.limits import MIB, SMALL_FILE_MAX
from topicd.placement import delivery_shard

MAGIC = b"TSNP"
VERSION = 1
PART_MAGIC = b"TSNQ"
IN_PARTS = 2  # version of a snapshot whose topics are in parts
LARGE_PART = 2  # version of a part that is larger than other files may be: with one topic
PART_BYTES = 16 * MIB
_LARGE_PART_MAX = 4096 * MIB - 1  # what the length in its head can say
_TOGETHER = 128  # topics that are put together before they are written
_RUN_SHIFT = 32


class Settled(NamedTuple):
    """Of one of so many shards: topics with ids below this are in its snapshot, or gone."""

    shards: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    below: int

    def covers(self, name: str, topic_id: int) -> bool:
        return topic_id < self.below and delivery_shard(name, self.shards) == self.index


def logs_on_record(bodies: list[dict[str, Any]]) -> dict[int, int]:
    """How far each log was durable, as the newest run's snapshots say: what earlier runs had may be absorbed since."""
    newest = max((int(body["run"]) for body in bodies), default=0)
    logs: dict[int, int] = {}
    for body in bodies:
        for shard, lsn in body.get("wal", ()) if int(body["run"]) == newest else ():
            logs[int(shard)] = max(logs.get(int(shard), 0), int(lsn))
    return logs


def load_snapshot(fs: Fs, path: Path) -> Any:
    """The body, put together if it is in parts. FormatError if a byte of it is wrong or a part is missing."""
    raw = read_all(fs, path, SMALL_FILE_MAX)
    if envelope.version_of(raw) != IN_PARTS:
        return envelope.unpack(path, MAGIC, VERSION, raw)
    body = envelope.unpack(path, MAGIC, IN_PARTS, raw)
    topics: list[Any] = []
    for part_path, content in _parts(fs, path, body.pop("parts")):
        topics += envelope.unpack(part_path, PART_MAGIC, _version_of_part(content), content)
    return {**body, "topics": topics}


def check_snapshot(fs: Fs, path: Path) -> None:
    """Raises what load_snapshot() would; the topics are not looked into, which would keep the interpreter's lock."""
    raw = read_all(fs, path, SMALL_FILE_MAX)
    if envelope.version_of(raw) != IN_PARTS:
        envelope.check(path, MAGIC, VERSION, raw)
        return
    for part_path, content in _parts(fs, path, envelope.unpack(path, MAGIC, IN_PARTS, raw)["parts"]):
        envelope.check(part_path, PART_MAGIC, _version_of_part(content), content)


def _parts(fs: Fs, path: Path, checksums: list[int]) -> Iterator[tuple[Path, bytes]]:
    """Path and content of each part, as the snapshot knows it."""
    number = paths.parse_snapshot(path.name) or 0
    for part, checksum in enumerate(checksums):
        part_path = path.with_name(paths.snapshot_part_name(number, part))
        try:
            content = read_all(fs, part_path, _LARGE_PART_MAX)
        except FileNotFoundError:
            raise FormatError(f"{path}: its part {part_path.name} is missing", path=str(path), what="part") from None
        if xxhash.xxh3_64_intdigest(content) != checksum:
            raise FormatError(f"{part_path}: is not the part that {path.name} names", path=str(path), what="part")
        yield part_path, content


def _version_of_part(content: bytes) -> int:
    return LARGE_PART if len(content) > SMALL_FILE_MAX else VERSION


class SnapshotStore:
    def __init__(self, fs: Fs, directory: Path, run: int = 0) -> None:
        self._fs = fs
        self._directory = directory
        self._run = run
        self._newest_good: int | None = None
        self._loaded = False
        self.problems: list[str] = []  # why a snapshot was passed over, by the last load_newest()

    def load_newest(self) -> tuple[int, Any] | None:
        """The newest snapshot that checks out, with its number; None if there is none."""
        self.problems = []
        self._newest_good, self._loaded = None, True
        for number in reversed(self.numbers()):
            path = self._path(number)
            try:
                body = load_snapshot(self._fs, path)
            except (FormatError, OSError) as error:
                raise_refusal(error)
                self.problems.append(str(error))
                continue
            self._newest_good = number
            return number, body
        return None

    def load_by_run(self) -> list[tuple[int, Any]]:
        """The newest snapshot of each run that checks out, with its number, ascending."""
        self.problems = []
        found: dict[int, tuple[int, Any]] = {}
        for number in reversed(self.numbers()):
            if number >> _RUN_SHIFT in found:
                continue
            try:
                body = load_snapshot(self._fs, self._path(number))
            except FileNotFoundError:
                continue  # its owner has a newer one and removed it meanwhile
            except (FormatError, OSError) as error:
                raise_refusal(error)
                self.problems.append(str(error))
                continue
            found[number >> _RUN_SHIFT] = (number, body)
        return sorted(found.values())

    def save(self, body: Any, siblings: Sequence[Path] = (), topics: Sequence[bytes] | None = None) -> int:
        """Store the body durably under the next number, then remove what nobody needs any more. siblings: the
        directories of all shards of this run. topics: those of the body, packed one by one: to pack all of them here
        would keep the interpreter's lock."""
        if not self._loaded:
            self._find_good()
        self._ensure_directory()
        number = max([*self.numbers(), self._run << _RUN_SHIFT]) + 1
        self._write(number, body, topics)
        predecessor, self._newest_good = self._newest_good, number
        keep = {number, predecessor}
        if not all(self._settled(directory) for directory in siblings):
            keep.update(n for n in self.numbers() if n >> _RUN_SHIFT < self._run)
        self._prune(keep)
        return number

    def _write(self, number: int, body: Any, topics: Sequence[bytes] | None) -> None:
        path = self._path(number)
        if topics is None:
            if not (isinstance(body, dict) and "topics" in body):
                envelope.save(self._fs, path, MAGIC, VERSION, body)
                return
            topics = [msgpack.packb(entry, use_bin_type=True) for entry in body["topics"]]
        rest = {key: value for key, value in body.items() if key != "topics"}
        runs = _runs(topics)
        if len(runs) < 2 and sum(map(len, topics)) <= PART_BYTES:
            pieces = [_open_map(rest, "topics"), *_packed_list(topics)]
            replace_file(self._fs, path, envelope.enclosed(path, MAGIC, VERSION, pieces))
            return
        checksums = []
        for part, some in enumerate(runs):
            part_path = self._directory / paths.snapshot_part_name(number, part)
            listed = _packed_list(some)
            large = envelope.HEADER_BYTES + sum(map(len, listed)) > SMALL_FILE_MAX
            version, most = (LARGE_PART, _LARGE_PART_MAX) if large else (VERSION, SMALL_FILE_MAX)
            pieces = envelope.enclosed(part_path, PART_MAGIC, version, listed, most)
            replace_file(self._fs, part_path, pieces)
            checksums.append(_digest(pieces))
        envelope.save(self._fs, path, MAGIC, IN_PARTS, {**rest, "parts": checksums})

    def _find_good(self) -> None:
        """Which one has to stay."""
        self._newest_good, self._loaded = None, True
        for number in reversed(self.numbers()):
            try:
                check_snapshot(self._fs, self._path(number))
            except (FormatError, OSError) as error:
                raise_refusal(error)
                continue
            self._newest_good = number
            return

    def numbers(self) -> list[int]:
        """Numbers of the snapshots that are there, good or not, ascending."""
        found = (paths.parse_snapshot(name) for name in self._fs.listdir(self._directory))
        return sorted(number for number in found if number is not None)

    def _settled(self, directory: Path) -> bool:
        numbers = SnapshotStore(self._fs, directory).numbers()
        return sum(n >> _RUN_SHIFT == self._run for n in numbers) > 1

    def _prune(self, keep: set[int | None]) -> None:
        # After the new one is durable, never before; what fails to go now goes next time.
        for name in self._fs.listdir(self._directory):
            plain = name.removesuffix(TMP_SUFFIX)
            number = paths.parse_snapshot(plain)
            if number is None:
                number = paths.parse_snapshot_part(plain)
            if number is not None and (number not in keep or name.endswith(TMP_SUFFIX)):
                with suppress(OSError):
                    self._fs.unlink(self._directory / name, missing_ok=True)

    def _ensure_directory(self) -> None:
        if not self._fs.exists(self._directory):
            self._fs.mkdir(self._directory)
        if not self.numbers():
            # Without a snapshot in it, its name may not be durable yet.
            self._fs.sync_dir(self._directory.parent)
            self._fs.sync_dir(self._directory.parent.parent)

    def _path(self, number: int) -> Path:
        return self._directory / paths.snapshot_name(number)


def _runs(topics: Sequence[bytes]) -> list[list[bytes]]:
    """Neighbouring topics that fit in one file together."""
    runs: list[list[bytes]] = [[]]
    size = 0
    for entry in topics:
        if runs[-1] and size + len(entry) > PART_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(entry)
        size += len(entry)
    return runs


def _packed_list(items: Sequence[bytes]) -> list[bytes]:
    """In pieces of so many items."""
    head = bytes(msgpack.Packer().pack_array_header(len(items)))
    return [head, *(b"".join(items[at : at + _TOGETHER]) for at in range(0, len(items), _TOGETHER))]


def _digest(pieces: Sequence[bytes]) -> int:
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece)
    return state.intdigest()


def _open_map(fields: dict[str, Any], last: str) -> bytes:
    """A map that still lacks the value of its last key."""
    packer = msgpack.Packer(use_bin_type=True, autoreset=False)
    packer.pack_map_header(len(fields) + 1)
    for key, value in fields.items():
        packer.pack(key)
        packer.pack(value)
    packer.pack(last)
    return bytes(packer.bytes())
