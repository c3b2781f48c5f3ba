"""Putting a channel's directory in order when its writer opens it. Promise: done twice it changes nothing more; a crash
at any point leaves what the next opening repairs; no message that a sender was told of is taken away.
"""

from __future__ import annotations

import logging
from pathlib import Path

from topicd.disk.fs import TMP_SUFFIX, Fs, replace_file
from topicd.filechannel.errors import OffsetDamaged
from topicd.filechannel.layout import DROPPED, HEADER_BYTES, parse_offset, segment_path
from topicd.filechannel.offsets import create_position, read_position
from topicd.filechannel.survey import Survey, Torn, look

log = logging.getLogger(__name__)

_REWRITE_BYTES = 1 << 20


def repair(fs: Fs, directory: Path, published: int | None) -> Survey:
    """Look, remove what stands for nothing, cut a torn end. What is damaged stays as it is, and is in the survey."""
    found = look(fs, directory, published)
    for path in found.leftovers:
        fs.unlink(path, missing_ok=True)
    for name in fs.listdir(directory):
        if name.endswith(TMP_SUFFIX):
            fs.unlink(directory / name, missing_ok=True)
    if found.torn is not None:
        _cut(fs, directory, found.torn)
    for lost in found.damage:
        log.warning("damage in a file channel", extra={"directory": str(directory), **lost._asdict()})
    _pull_back(fs, directory, found.end)
    return found


def _cut(fs: Fs, directory: Path, torn: Torn) -> None:
    path = segment_path(directory, torn.segment_id)
    file = fs.open(path, write=True)
    try:
        size = file.size() - torn.bytes
        if torn.keep:
            cut = file.pread(torn.bytes, size)
            replace_file(fs, directory / f"cut.{torn.begin}", [cut])
        file.truncate(size)
        file.sync()
    finally:
        file.close()
    log.warning(
        "torn end of a file channel cut",
        extra={"directory": str(directory), "offset": torn.begin, "bytes": torn.bytes, "kept": torn.keep},
    )


def _pull_back(fs: Fs, directory: Path, end: int) -> None:
    """After a power loss without syncs a receiver may be ahead of the messages: everything it saw is behind it, and
    what comes next will have these offsets, so it goes on at the end."""
    for name in fs.listdir(directory):
        if parse_offset(name) is None and name != DROPPED:
            continue
        path = directory / name
        try:
            position = read_position(fs, path)
        except OffsetDamaged:
            continue  # its owner must say
        if position.offset > end:
            log.warning(
                "a receiver was ahead of the messages, which a power loss took",
                extra={"path": str(path), "offset": position.offset, "end": end},
            )
            create_position(fs, path, end, temporary=position.temporary)


def write_again(fs: Fs, directory: Path, segment_id: int, begin: int, first: int, end: int) -> None:
    """Make [first, end) of a segment durable, also if an earlier sync failed: the system may take bytes for stored
    that never reached the disk, so they are written once more before the sync."""
    file = fs.open(segment_path(directory, segment_id), write=True)
    try:
        at = first
        while at < end:
            position = at - begin + HEADER_BYTES
            data = file.pread(min(_REWRITE_BYTES, end - at), position)
            if not data:
                break
            file.pwrite([data], position)
            at += len(data)
        header = file.pread(HEADER_BYTES, 0)
        file.pwrite([header], 0)
        file.sync()
    finally:
        file.close()
    fs.sync_dir(directory)
