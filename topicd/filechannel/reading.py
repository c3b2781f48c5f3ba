"""From an offset to messages, across segments. Promise: every message once and in order; what is missing is reported
with its offsets, as a Gap where the channel dropped it and as Damaged where it should be there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from topicd._native.channel import core
from topicd.errors import InvalidRequest, StorageFailed
from topicd.filechannel.errors import Damaged
from topicd.filechannel.layout import MAX_MESSAGE, MESSAGE_HEAD, PACKING_SUFFIX, parse_segment
from topicd.filechannel.packed import PackedDamage
from topicd.filechannel.place import Place
from topicd.filechannel.segment import HeaderDamaged, SegmentReader, open_segment
from topicd.limits import KIB, MAX_U64

READ_BYTES = 256 * KIB


@dataclass(frozen=True, slots=True)
class Gap:
    """In the place of messages that a full channel dropped before they were received."""

    begin: int
    end: int


class Reading:
    """Not for several threads at once."""

    def __init__(self, place: Place, offset: int) -> None:
        self._place = place
        self.offset = offset  # of what is read next
        self.damage: Damaged | None = None  # stands here until it is skipped
        self._segment: SegmentReader | None = None
        self._known_end = 0  # of the segment, when it was last looked at
        self._sealed_end = MAX_U64  # where the next segment begins, once that was asked for

    @property
    def segment_begin(self) -> int:
        return self._segment.begin if self._segment is not None else 0

    def more(self, published: int) -> tuple[list[bytes], list[int]] | Gap | None:
        """The next messages below `published` and the offsets behind them. None: there are none yet."""
        try:
            while self.offset < published:
                if self.damage is not None:
                    raise self.damage
                if self._segment is None:
                    gap = self._locate(published)
                    if gap is not None:
                        return gap
                elif self.offset < self._end(published):
                    found = self._read(self._segment, min(published, self._known_end))
                    if found is not None:
                        return found
                else:
                    gap = self._advance(self._segment, published)
                    if gap is not None:
                        return gap
        except OSError as error:
            raise StorageFailed(f"{self._place.directory}: {error}") from error
        return None

    def skip(self) -> Damaged | None:
        """Go on behind the damage."""
        skipped, self.damage = self.damage, None
        if skipped is not None:
            self.offset = skipped.end
            self._forget()
        return skipped

    def check_boundary(self, published: int) -> int:
        """The offset, if what lies before it in its segment leads there, message by message and over damage; else
        InvalidRequest."""
        wanted = self.offset
        try:
            gone = self._locate(published) is not None
        except Damaged:
            gone = True
        if gone:
            return wanted  # nobody knows better: what is read from there begins with the report
        if self._segment is None:
            raise InvalidRequest(f"offset {wanted} is in no segment")
        self.offset = self._segment.begin
        ends = [self.offset]
        while ends[-1] < wanted:
            try:
                found = self.more(published)
            except Damaged as damage:
                ends.append(damage.end)
                self.skip()
                continue
            if found is None:
                break
            ends += [found.end] if isinstance(found, Gap) else found[1]
        if wanted not in ends:
            raise InvalidRequest(f"offset {wanted} is not between two messages", offset=wanted)
        return wanted

    def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def _end(self, published: int) -> int:
        """Of the file that is written, only what lies below `published` is sure to stay: behind it is room that was
        reserved. Asked for after `published`, the size of a file that was sealed before is final."""
        if self._segment is not None and self._known_end < published:
            self._known_end = min(self._segment.end(), published, self._sealed_end)
        return self._known_end

    # ---- inside a segment ----

    def _read(self, segment: SegmentReader, limit: int) -> tuple[list[bytes], list[int]] | None:
        """None: the segment ends here."""
        try:
            data = segment.read(self.offset, min(limit - self.offset, READ_BYTES))
            payloads, ends, at, fault = core.split_messages(data, 0, len(data), self.offset, MAX_MESSAGE, MAX_U64)
            if not payloads and fault == "short":
                # Larger than one read, or cut by the end of a block.
                head = segment.read_exactly(self.offset, min(MESSAGE_HEAD, limit - self.offset))
                size = MESSAGE_HEAD + int.from_bytes(head[:4], "big")
                if len(head) == MESSAGE_HEAD and self.offset + size <= limit:
                    data = segment.read_exactly(self.offset, size)
                    payloads, ends, at, fault = core.split_messages(data, 0, len(data), self.offset, MAX_MESSAGE, 1)
        except PackedDamage as error:
            behind = segment.next_good(error.span.end, limit) if error.span.end < limit else limit
            raise self._damaged(behind, str(error)) from error
        if not payloads:
            # Somebody may have added bytes to a sealed file: what it holds ends where the next one begins.
            behind = self._begin_behind(segment)
            if behind >= self.offset:
                self._sealed_end = behind
                limit = self._known_end = min(limit, behind)
            if limit == self.offset:
                return None
            raise self._damaged(segment.next_good(self.offset, limit), f"a message fails its {fault}")
        self.offset += at
        return payloads, ends

    def _damaged(self, end: int, reason: str) -> Damaged:
        self.damage = Damaged(self.offset, end, reason)
        return self.damage

    # ---- from segment to segment ----

    def _ids(self) -> list[int]:
        names = map(parse_segment, self._place.fs.listdir(self._place.directory))
        return sorted({name.segment_id for name in names if name is not None and name.suffix != PACKING_SUFFIX})

    def _open(self, segment_id: int) -> SegmentReader | None:
        """None: it cannot be believed. FileNotFoundError: it went."""
        try:
            return open_segment(self._place.fs, self._place.directory, segment_id)
        except HeaderDamaged:
            return None
        except FileNotFoundError as error:
            if segment_id in self._ids():
                raise StorageFailed(f"{error.filename} is there and leads nowhere") from error
            raise

    def _begin_behind(self, segment: SegmentReader) -> int:
        """Where the next segment that can be believed begins."""
        for segment_id in self._ids():
            if segment_id > segment.header.segment_id:
                with suppress(FileNotFoundError):
                    found = self._open(segment_id)
                    if found is not None:
                        found.close()
                        return found.begin
        return MAX_U64

    def _enter(self, segment: SegmentReader) -> None:
        self._forget()
        self._segment, self._known_end, self._sealed_end = segment, 0, MAX_U64

    def _locate(self, published: int) -> Gap | None:
        """Open the segment that holds the offset."""
        later: int | None = None  # where the next one begins that could be opened
        for segment_id in reversed(self._ids()):
            try:
                segment = self._open(segment_id)
            except FileNotFoundError:
                return None  # removed this moment: the caller looks again
            if segment is None:
                continue
            if segment.begin <= self.offset:
                if self.offset < segment.end() or later is None or later == self.offset:
                    self._enter(segment)
                    return None
                segment.close()
                break
            later = segment.begin
            segment.close()
        return self._missing(published if later is None else later)

    def _advance(self, segment: SegmentReader, published: int) -> Gap | None:
        """At the end of a segment: the next one, or what is missing before the next there is."""
        after = [segment_id for segment_id in self._ids() if segment_id > segment.header.segment_id]
        for segment_id in after:
            try:
                found = self._open(segment_id)
            except FileNotFoundError:
                return None
            if found is None:
                continue
            if found.begin == self.offset:
                self._enter(found)
                return None
            begin = found.begin
            found.close()
            if begin > self.offset:
                return self._missing(begin)
        # What was published may still have gone into this file after its size was asked for.
        return None if self.offset < self._end(published) else self._missing(published)

    def _missing(self, end: int) -> Gap | None:
        if self._place.dropped() >= end:
            gap = Gap(self.offset, end)
            self.offset = end
            self._forget()
            return gap
        raise self._damaged(end, "segment files are missing, too short or cannot be read")
