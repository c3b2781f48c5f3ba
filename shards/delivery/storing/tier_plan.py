"""Where a segment of a topic is to lie, by what the topic keeps. Nothing is moved here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topicd.config import Settings
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.info import Lies, SegmentInfo


class Kept(NamedTuple):
    """What a topic keeps as it is, and what becomes of the rest."""

    segments: int
    bytes: int
    packed: bool

    @property
    def all(self) -> bool:
        return not (self.segments or self.bytes)


def kept(settings: Settings, topic: Topic) -> Kept:
    config = topic.config
    segments, size = config.hot_retain_segments, config.hot_retain_bytes
    compress = settings.compress if config.compress == "default" else config.compress
    return Kept(
        settings.hot_retain_segments if segments is None else segments,
        settings.hot_retain_bytes if size is None else size,
        compress == "zstd",
    )


def misplaced(topic: Topic, keep: Kept, *, away: bool) -> Iterator[tuple[SegmentInfo, Lies]]:
    """Segments that do not lie where they should, newest first. away: there is a cold directory to go to."""
    number = size = 0
    for info in reversed(topic.contents.segments):
        if not info.sealed or not info.count:
            continue
        number, size = number + 1, size + info.data_bytes
        beyond = (keep.segments and number > keep.segments) or (keep.bytes and size > keep.bytes)
        target = _target(info, away=away, packed=keep.packed) if beyond else info.lies
        if keep.all or half_dead(topic, info):
            target = Lies.HERE
        if target is not info.lies:
            yield info, target


def half_dead(topic: Topic, info: SegmentInfo) -> bool:
    """Is a rewrite worth it? It needs the frames here."""
    contents = topic.contents
    if not info.sealed or info.first_seq not in contents.marks or info.first_seq in contents.unmarked:
        return False
    return 2 * info.dead_bytes >= info.data_bytes > 0


def _target(info: SegmentInfo, *, away: bool, packed: bool) -> Lies:
    """Of a segment beyond what is kept. What has been moved once is not moved again for its form."""
    if info.lies.cold:
        return info.lies
    packed = packed or info.lies.packed
    if away:
        return Lies.COLD_PACKED if packed else Lies.COLD
    return Lies.PACKED if packed else Lies.HERE
