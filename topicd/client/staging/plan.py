"""What was staged, and the batches in which it is published. Promise: the chunks follow from the stages alone, so
everybody who publishes them within the same limit sends the same bytes under the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topicd.errors import FormatError
from topicd.limits import FRAME_OVERHEAD, MAX_BATCH_BYTES, MAX_BATCH_RECORDS


class Run(NamedTuple):
    """Neighbouring records of a stage that were stored as one batch and go to one topic."""

    destination: str
    records: int
    bytes: int  # without framing


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt wrote. Small and picklable: it travels to whoever commits."""

    topic: str  # of the stage; empty if nothing was written
    runs: tuple[Run, ...] = ()

    @property
    def records(self) -> int:
        return sum(run.records for run in self.runs)

    def to_wire(self) -> dict[str, Any]:
        names = list(dict.fromkeys(run.destination for run in self.runs))
        places = {name: n for n, name in enumerate(names)}
        runs = [[places[run.destination], run.records, run.bytes] for run in self.runs]
        return {"topic": self.topic, "destinations": names, "runs": runs}

    @classmethod
    def from_wire(cls, body: Any) -> Staged:
        try:
            names = body["destinations"]
            return cls(body["topic"], tuple(Run(names[n], records, size) for n, records, size in body["runs"]))
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise FormatError(f"the description of a stage is malformed: {exc!r}") from None


class Limit(NamedTuple):
    """What one batch should hold at most. A run is never cut: one that is larger is a batch by itself."""

    records: int = MAX_BATCH_RECORDS
    bytes: int = MAX_BATCH_BYTES


NO_LIMIT = Limit()


class Piece(NamedTuple):
    """Whole runs of one stage: the records behind from_seq."""

    stage: str
    from_seq: int
    records: int


@dataclass(slots=True)
class Chunk:
    """What is published as one batch."""

    pieces: list[Piece] = field(default_factory=list)
    records: int = 0
    bytes: int = 0

    @property
    def framed_bytes(self) -> int:
        return self.bytes + self.records * FRAME_OVERHEAD

    def within(self, start: int, count: int) -> Chunk:
        """So many of its records, without the first ones; of their bytes only the share is known."""
        found, end = Chunk(), start + count
        at = 0
        for piece in self.pieces:
            first, last = max(start, at), min(end, at + piece.records)
            if first < last:
                part = Piece(piece.stage, piece.from_seq + first - at, last - first)
                found.add(part, self.bytes * part.records // self.records)
            at += piece.records
        return found

    def takes(self, run: Run, limit: Limit) -> bool:
        return self.records + run.records <= limit.records and self.bytes + run.bytes <= limit.bytes

    def add(self, piece: Piece, size: int) -> None:
        self.pieces.append(piece)
        self.records += piece.records
        self.bytes += size


def destinations(stages: Sequence[Staged]) -> list[str]:
    """In the order of their first records."""
    return list(dict.fromkeys(run.destination for staged in stages for run in staged.runs))


def chunks_for(destination: str, stages: Sequence[Staged], limit: Limit = NO_LIMIT) -> list[Chunk]:
    """As few batches as keep the limit, with everything in the order of the stages."""
    chunks: list[Chunk] = []
    for run, piece in _pieces(stages):
        if run.destination != destination:
            continue
        if not chunks or not chunks[-1].takes(run, limit):
            chunks.append(Chunk())
        chunks[-1].add(piece, run.bytes)
    return chunks


def size_for(destination: str, stages: Sequence[Staged]) -> tuple[int, int]:
    """(records, bytes) that go to one topic."""
    runs = [run for staged in stages for run in staged.runs if run.destination == destination]
    return sum(run.records for run in runs), sum(run.bytes for run in runs)


def _pieces(stages: Sequence[Staged]) -> Iterator[tuple[Run, Piece]]:
    for staged in stages:
        seq = 0
        for run in staged.runs:
            yield run, Piece(staged.topic, seq, run.records)
            seq += run.records


def content_bytes(frames_len: int, records: int) -> int:
    return frames_len - records * FRAME_OVERHEAD
