"""Making a backup. Promise: it is one moment of the data directory, the cut: what was acknowledged before is in it,
with all that it led to; interrupted anywhere, nothing is left that looks like a backup.

    1  sealed segments, without disturbing anybody, where they have to be copied
    2  hold: nothing is removed, the log forgets nothing
    3  segments once more: what is new, and what grows
    4  still: channels and the base of chat stores
    5  cut: where each log ends
    6  snapshots, logs up to the cut, identity, FORMAT
    7  release, sync, manifest, name

A start from these files is the start after a loss of power at the cut: segments may be older than logs, never newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import xxhash

from topicd import __version__
from topicd.backup import tree
from topicd.backup.manifest import TREE, Earlier, Entry, Manifest, ManifestWriter
from topicd.backup.shelf import PARTIAL, Shelf, Shelved, backup_id, remove_tree
from topicd.backup.taking import Advance, Taker
from topicd.clock import Clock
from topicd.disk import envelope, identity
from topicd.disk.cold import recorded
from topicd.disk.fs import Fs, read_all
from topicd.errors import Conflict, FormatError
from topicd.limits import SMALL_FILE_MAX
from topicd.paths import DataDir

_TRIES = 5  # of a cut during which a chat store changed its base


class CutMissed(Exception):
    """Everything went on before all shards had said where they were: once more."""


class Source(Protocol):
    """A data directory that is served, or that nobody uses."""

    data: DataDir
    served: bool

    def hold(self) -> None: ...

    def keep(self) -> None:
        """It goes on: to be called often."""
        ...

    def still(self) -> None: ...

    def cut(self) -> dict[int, int]:
        """Where the log of each WAL shard ends; those that are not named are whole. CutMissed: no such moment."""
        ...

    def release(self) -> None:
        """Raises Conflict if not everything was held until now."""
        ...

    def close(self) -> None:
        """Whatever happened: nobody waits for this backup any more. May be called twice."""
        ...


class Creation:
    def __init__(self, fs: Fs, shelf: Shelf, source: Source, clock: Clock, advance: Advance) -> None:
        self._fs = fs
        self._shelf = shelf
        self._source = source
        self._data = source.data
        self._clock = clock
        self._told = advance
        self.lost: list[Path] = []  # frames that the cold directory has no more: the rest is worth a backup
        self._staged_links = 0  # bytes that the first look has shared with an earlier backup

    def run(self, on_step: Callable[[str], None] = lambda name: None) -> Manifest:
        """The shelf is locked. on_step is called before each step."""
        fs, shelf = self._fs, self._shelf
        made_ms = self._clock.now_ms()
        name = backup_id(made_ms)
        if fs.exists(shelf.path(name)):
            raise Conflict(f"{shelf.path(name)} is there already")
        shelf.clear()
        fs.sync_filesystem(shelf.root)  # from here on it reports what it cannot write
        format_id = f"{xxhash.xxh3_64_intdigest(self._read(self._data.format)):016x}"
        partial = shelf.begin(name)
        try:
            return self._make(name, made_ms, format_id, on_step)
        except BaseException:
            # It may have filled the disk, and that may be the daemon's. Should this fail, the next one clears it away.
            with suppress(OSError):
                remove_tree(fs, partial)
            raise

    def _make(self, name: str, made_ms: int, format_id: str, on_step: Callable[[str], None]) -> Manifest:
        fs, shelf, source = self._fs, self._shelf, self._source
        partial = shelf.path(name + PARTIAL)
        earlier = shelf.newest(format_id)
        try:
            on_step("sealed segments")
            staged = self._stage(partial, self._earlier(earlier))
            on_step("hold")
            source.hold()
            taker = Taker(fs, partial / TREE, [*staged, *self._earlier(earlier)], self._advance)
            writer = ManifestWriter(fs, partial)
            on_step("segments")
            topics = self._take_topics(taker, writer)
            on_step("cut")
            cut, cut_ms = self._cut(taker, writer)
            on_step("logs")
            run = self._take_rest(taker, writer, cut)
            source.release()
        finally:
            source.close()
        on_step("sync")
        fs.sync_filesystem(partial)
        manifest = Manifest(
            *(name, made_ms, cut_ms, format_id, str(self._data.root.absolute()), __version__, run, source.served),
            *(sorted(cut.items()), topics),
            linked_bytes=taker.linked_bytes + self._staged_links,
        )
        writer.finish(manifest)
        shelf.finish(name)
        return manifest

    def _advance(self, amount: int) -> None:
        self._source.keep()
        self._told(amount)

    def _read(self, path: Path) -> bytes:
        return read_all(self._fs, path, SMALL_FILE_MAX)

    # ---- topics ----

    def _earlier(self, found: Shelved | None) -> list[Earlier]:
        if found is None or found.manifest is None:
            return []
        return [Earlier(self._fs, self._shelf.path(found.id), found.manifest)]

    def _stage(self, partial: Path, earlier: list[Earlier]) -> list[Earlier]:
        """Where segments have to be copied, most of that is done before anything is held. Where links do, there is
        nothing to save."""
        fs, stage = self._fs, partial / "stage"
        fs.mkdir(stage)
        taker, writer = Taker(fs, partial / TREE, earlier, self._told), ManifestWriter(fs, stage)
        for directory in tree.topic_dirs(fs, self._data):
            for item in tree.topic_items(fs, directory, fixed_only=True):
                try:
                    writer.add(taker.take(item))
                except FileNotFoundError:
                    continue  # nothing is held yet
                if taker.shares_source:
                    return []
        manifest = Manifest("", 0, 0, "", "", "", 0, True, [])
        writer.finish(manifest)
        self._staged_links = taker.linked_bytes
        found = Earlier(fs, stage, manifest)
        found.tree = partial / TREE
        return [found]

    def _take_topics(self, taker: Taker, writer: ManifestWriter) -> int:
        fs, below = self._fs, taker.tree / "topics"
        directories = tree.topic_dirs(fs, self._data)
        for directory in directories:
            self._source.keep()
            entries = list(self._take_topic(taker, directory))
            for entry in entries:
                writer.add(entry)
            # What was staged and is gone since.
            for left in {*fs.listdir(below / directory.name)} - {Path(entry.path).name for entry in entries}:
                fs.unlink(below / directory.name / left)
        for left in {*fs.listdir(below)} - {directory.name for directory in directories}:
            remove_tree(fs, below / left)
        stage = taker.tree.parent / "stage"
        if fs.exists(stage):
            remove_tree(fs, stage)
        return len(directories)

    def _take_topic(self, taker: Taker, directory: Path) -> Iterator[Entry]:
        for item in tree.topic_items(self._fs, directory):
            try:
                yield taker.take(item)
            except FileNotFoundError:
                if not item.fixed or self._data.root in item.source.parents:
                    raise
                # Raises if all of the cold directory is away: a backup without it would pass for one of everything.
                cold = recorded(self._fs, self._data)
                if cold is not None:
                    cold.check(self._fs)
                self.lost.append(item.source)

    # ---- the cut, and what is taken around it ----

    def _cut(self, taker: Taker, writer: ManifestWriter) -> tuple[dict[int, int], int]:
        """A chat store that changes its base while it is copied has cut its log, too: then both once more."""
        fs, data = self._fs, self._data
        missed = "a chat store changes its base again and again"
        for _ in range(_TRIES):
            for name in ("channels", "chat"):
                if fs.exists(taker.tree / name):
                    remove_tree(fs, taker.tree / name)
            taker.forget_directories()
            bases = tree.all_chat_bases(fs, data)
            try:
                chat = [taker.take(item) for item in tree.chat_items(fs, data)]
            except FileNotFoundError:
                continue
            self._source.still()
            channels: list[Entry] = [taker.take(item) for item in tree.channel_items(fs, data)]
            try:
                cut = self._source.cut()
            except CutMissed as exc:
                missed = str(exc)
                continue
            cut_ms = self._clock.now_ms()
            if tree.all_chat_bases(fs, data) == bases:
                for entry in (*channels, *chat):
                    writer.add(entry)
                return cut, cut_ms
        raise Conflict(f"there was no moment to cut at: {missed}; try later")

    def _take_rest(self, taker: Taker, writer: ManifestWriter, cut: dict[int, int]) -> int:
        """The run that it was."""
        fs, data = self._fs, self._data
        for items in (tree.meta_items(fs, data), tree.wal_items(fs, data, cut)):
            for item in items:
                writer.add(taker.take(item))
        record = identity.read_record(fs, data)
        # Nobody's: whoever starts from this must not look for the rings of the daemon that it was taken from.
        alone = identity.pack_record(record._replace(live=None, undrained=None, garbage=()))
        path = data.identity.relative_to(data.root).as_posix()
        writer.add(taker.put(path, envelope.pack(data.identity, identity.MAGIC, identity.VERSION, alone)))
        writer.add(taker.put(data.format.name, self._read(data.format)))
        return record.run


def check_is_data(fs: Fs, data: DataDir) -> None:
    if not fs.exists(data.format):
        raise FormatError(f"{data.root} is no data directory of topicd: it has no FORMAT", path=str(data.root))
