"""Deleting a topic's directory. Promise: once start_delete returned, no restart sees the topic's records
again.

The rename is the deletion; the files go afterwards, in the background or after a restart.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from topicd import paths
from topicd.disk.fs import Fs
from topicd.shards.storage.segment.names import COLD
from topicd.shards.storage.segment.places import Listed, list_files

DELETED_SUFFIX = ".deleted"


def start_delete(fs: Fs, topics_dir: Path, topic_id: int) -> None:
    """Rename the directory away, durably. A topic without a directory is fine; so is a repetition."""
    live = topics_dir / paths.topic_dir_name(topic_id)
    away = live.with_name(live.name + DELETED_SUFFIX)
    if fs.exists(live):
        if fs.exists(away):
            # Left by an interrupted delete: a rename replaces empty directories only.
            _remove(fs, away)
        fs.rename(live, away)
    if fs.exists(topics_dir):
        # Also when the rename was done before: it may not have been durable.
        fs.sync_dir(topics_dir)


def finish_deletes(fs: Fs, topics_dir: Path) -> list[int]:
    """Remove every directory that was renamed away; the ids of their topics. May be repeated after an OSError. Those of
    which something lies in the cold directory stay until it is gone: they are what says so."""
    done: list[int] = []
    for name in fs.listdir(topics_dir):
        parsed = paths.parse_topic_dir(name)
        if parsed is not None and parsed[1] and not _pointers(fs, topics_dir / name):
            _remove(fs, topics_dir / name)
            done.append(parsed[0])
    if done:
        fs.sync_dir(topics_dir)
    return done


def deleted_in_cold(fs: Fs, topics_dir: Path) -> list[int]:
    """Topics that are deleted and of which something is left in the cold directory."""
    found = []
    for name in fs.listdir(topics_dir):
        parsed = paths.parse_topic_dir(name)
        if parsed is not None and parsed[1] and _pointers(fs, topics_dir / name):
            found.append(parsed[0])
    return found


def forget_cold(fs: Fs, topics_dir: Path, topic_id: int) -> None:
    """Nothing of a deleted topic is left in the cold directory: the rest may go."""
    directory = topics_dir / (paths.topic_dir_name(topic_id) + DELETED_SUFFIX)
    for file in _pointers(fs, directory):
        fs.unlink(file.path, missing_ok=True)
    if fs.exists(directory):
        _remove(fs, directory)
        fs.sync_dir(topics_dir)


def _pointers(fs: Fs, directory: Path) -> list[Listed]:
    return [file for file in list_files(fs, directory) if file.part == COLD and not file.unfinished]


def _remove(fs: Fs, directory: Path) -> None:
    """Every shard removes what it finds, so another one may be at the same directory."""
    for name in fs.listdir(directory):
        fs.unlink(directory / name, missing_ok=True)
    with suppress(FileNotFoundError):
        fs.rmdir(directory)
