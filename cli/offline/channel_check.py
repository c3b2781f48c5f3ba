"""The files of channels, read and compared. Promise: nothing is written; what cannot be read is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from topicd import paths
from topicd.cli.offline.segment_check import DAMAGE, NOTE, Finding
from topicd.disk.fs import TMP_SUFFIX, Fs, is_directory, read_all
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError
from topicd.paths import CURSOR_FILE, METADATA_FILE
from topicd.shards.storage import channel_file

UNKNOWN = "unknown"
_OURS = {METADATA_FILE, CURSOR_FILE, METADATA_FILE + TMP_SUFFIX, CURSOR_FILE + TMP_SUFFIX}


def channels_of(fs: Fs, data: paths.DataDir) -> list[Path]:
    """Directories that are, or claim to be, one each."""
    return [data.channels / name for name in sorted(fs.listdir(data.channels))]


def check_channels(fs: Fs, data: paths.DataDir) -> Iterator[Finding]:
    for directory in channels_of(fs, data):
        if len(directory.name) != 64 or not is_directory(fs, directory):
            yield Finding(UNKNOWN, directory, "topicd did not make this")
            continue
        yield from _check(fs, directory)


def _check(fs: Fs, directory: Path) -> Iterator[Finding]:
    for name in sorted(fs.listdir(directory)):
        if name not in _OURS:
            yield Finding(UNKNOWN, directory / name, "topicd did not make this")
    metadata, cursor = directory / METADATA_FILE, directory / CURSOR_FILE
    try:
        state = channel_file.load(fs, metadata)
    except FileNotFoundError:
        yield Finding(NOTE, directory, "a channel without metadata; the next start moves it to trash/")
        return
    except FormatError as exc:
        yield Finding(DAMAGE, metadata, f"channel cannot be read: {exc.message}")
        return
    except OSError as exc:
        raise_refusal(exc)
        yield Finding(DAMAGE, metadata, f"channel cannot be read: {exc.strerror}")
        return
    if state.fifo:
        try:
            channel_file.decode_cursor(cursor, read_all(fs, cursor, channel_file.CURSOR.size))
        except (OSError, FormatError) as exc:
            raise_refusal(exc)
            why = exc.message if isinstance(exc, FormatError) else exc.strerror
            yield Finding(DAMAGE, cursor, f"queue {state.handler!r} needs recovery: {why}")
