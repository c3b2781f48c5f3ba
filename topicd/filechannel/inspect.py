"""Looking into a channel's directory without taking part: nothing is created, locked or changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from topicd.errors import InvalidRequest
from topicd.filechannel.errors import Damaged
from topicd.filechannel.layout import parse_segment
from topicd.filechannel.lock import running_writer
from topicd.filechannel.offsets import Position
from topicd.filechannel.page import look_at_page
from topicd.filechannel.place import Place
from topicd.filechannel.reading import Gap, Reading
from topicd.filechannel.survey import Survey, look


@dataclass(frozen=True)
class Overview:
    survey: Survey
    end: int  # receivers may read up to here
    positions: dict[str, Position | None]
    dropped: int
    writer: int | None  # pid of the process that writes now


def is_channel(directory: Path) -> bool:
    return directory.is_dir() and any(parse_segment(path.name) is not None for path in directory.iterdir())


def overview(directory: Path) -> Overview:
    if not is_channel(directory):
        raise InvalidRequest(f"{directory} is no file channel: no segment lies there", path=str(directory))
    place = Place(directory)
    published = look_at_page(directory)
    survey = look(place.fs, directory, published)
    end = survey.end if published is None else max(published, 0)
    return Overview(survey, end, place.positions(remove=False), place.dropped(), running_writer(directory))


def check_offset(directory: Path, offset: int, end: int) -> None:
    """InvalidRequest for what is no offset between two messages, up to the end."""
    if offset > end:
        raise InvalidRequest(f"offset {offset} is behind the end, which is {end}", offset=offset)
    if offset == end:
        return
    reading = Reading(Place(directory), offset)
    try:
        reading.check_boundary(end)
    finally:
        reading.close()


def walk(directory: Path, begin: int, end: int) -> Iterator[tuple[int, bytes] | Damaged | Gap]:
    """Every message from an offset to another, with the offset behind it; what is missing in its place."""
    reading = Reading(Place(directory), begin)
    try:
        while True:
            try:
                found = reading.more(end)
            except Damaged as damage:
                yield damage
                reading.skip()
                continue
            if found is None:
                return
            if isinstance(found, Gap):
                yield found
            else:
                yield from zip(found[1], found[0], strict=True)
    finally:
        reading.close()
