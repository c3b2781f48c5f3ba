"""The segment that is written: its file, and how a new one begins."""

from __future__ import annotations

from pathlib import Path

from topicd.disk.fs import File, Fs
from topicd.filechannel.layout import HEADER_BYTES, Header, segment_path
from topicd.filechannel.survey import Segment


class Active:
    """Exchanged as a whole when the segment is cut: an interrupt finds the old one or the new one."""

    def __init__(self, segment: Segment, file: File, before: Segment | None = None) -> None:
        self.segment = segment
        self.file = file
        self.raw_fd: int | None = getattr(file, "raw_fd", None)
        self.before = before  # the sealed one that the collector has not been told of

    @property
    def begin(self) -> int:
        return self.segment.begin

    def position(self, offset: int) -> int:
        return offset - self.segment.begin + HEADER_BYTES


def go_on(fs: Fs, directory: Path, segment: Segment) -> Active:
    return Active(segment, fs.open(segment_path(directory, segment.segment_id), write=True))


def begin_segment(fs: Fs, directory: Path, header: Header, before: Segment | None = None) -> Active:
    """Where sends are synced, its name and header are durable before the first message."""
    file = fs.open(segment_path(directory, header.segment_id), write=True, create=True)
    try:
        if file.size():
            # What an attempt that failed has left. Not otherwise: a file that was ever cut to nothing ext4 writes out
            # when it is closed, and the send that begins the next segment waits for all of it.
            file.truncate(0)
        file.pwrite([header.pack()], 0)
        if header.synced:
            file.sync()
            fs.sync_dir(directory)
    except BaseException:
        file.close()
        raise
    fresh = Segment(header.segment_id, header.begin, header.begin, False, HEADER_BYTES, header.synced)
    return Active(fresh, file, before)
