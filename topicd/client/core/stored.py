"""Reading what a topic holds, to its end, without the I/O. Promise: every record that was there when it began is given
once and in order, and what was removed before it was read is told; memory holds one page or one segment of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from topicd.client.core.arguments import Match, Nodes, Start, cursor, tag_match, whole
from topicd.client.core.batch import Batch
from topicd.client.core.decode import Decode, decoder_of
from topicd.client.core.gaps import OnGap, events, gap_choice
from topicd.client.core.history import FIRST_READ
from topicd.client.core.records import Event, Gap
from topicd.errors import InvalidRequest
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX, MAX_SEQ


class Stored:
    """`arguments` are those of the next fetch, `page` takes its answer. Behind the first page, `files` says that the
    rest may be read from the files."""

    def __init__(
        self,
        start: Start,
        *,
        to_seq: int | None,
        limit: int | None,
        match: Match,
        nodes: Nodes,
        metadata_only: bool,
        committed: bool,
        gaps: bool,
        on_gap: OnGap,
        decode: Decode,
    ) -> None:
        if start == "latest":
            raise InvalidRequest("read ends where the topic ends, so there is nothing behind latest; watch goes on")
        if not isinstance(start, datetime | int) and start != "earliest":
            raise InvalidRequest(f"start must be earliest, a seq or a datetime, not {start!r:.100}")
        self.at = cursor(start) if isinstance(start, int) else 0
        self.match = tag_match(match)
        self.committed = committed
        self.epoch: int | None = None
        self.end = MAX_SEQ if to_seq is None else cursor(to_seq)
        self.files = not (nodes or metadata_only)
        self._from_time = start if isinstance(start, datetime) else None
        # Who asks for the earliest there is does not miss what was removed before.
        self._quiet = start == "earliest" or self._from_time is not None
        self._left = None if limit is None else whole("limit", limit, MAX_SEQ)
        self._filters: dict[str, Any] = {
            "match": self.match,
            "exclude_nodes": nodes,
            "metadata_only": metadata_only,
            "committed": committed,
        }
        self._on_gap = gap_choice(gaps, on_gap)
        self._decode = decoder_of(decode)

    @property
    def over(self) -> bool:
        return self.at >= self.end or self._left == 0

    def arguments(self) -> dict[str, Any]:
        most = FIRST_READ if self.epoch is None else FETCH_RECORDS_MAX
        if self._left is not None:
            most = min(most, self._left)
        found: dict[str, Any] = {**self._filters, "limit": most, "max_bytes": FETCH_BYTES_MAX, "epoch": self.epoch}
        if self._from_time is not None and self.epoch is None:
            found["from_time"] = self._from_time
        return found

    def page(self, found: Batch) -> Batch:
        """What is wanted of a page or of a segment."""
        if self.epoch is None:
            self.epoch = found.topic_id
            self.end = min(self.end, found.head_seq)
        part = found.up_to(self.end)
        self.at = part.next_from_seq
        if found.caught_up:
            self.end = min(self.end, self.at)
        if self._quiet and part.gap is not None and part.gap.first_seq <= 1:
            part = part.without_gap()
        self._quiet = False
        return part

    def events(self, batch: Batch) -> Iterator[Event]:
        for event in events(batch.using(self._decode), self._on_gap):
            if self._left is not None and not isinstance(event, Gap):
                if self._left == 0:
                    return
                self._left -= 1
            yield event
