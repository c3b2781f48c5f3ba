"""Records from files and pipes, batch by batch. Promise: what has arrived is handed on at once, so that
`tail -f log | topicctl publish t -` does not wait for a full batch; memory is one piece and one line.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from topicd.cli.exits import CliError, Exit
from topicd.limits import MAX_BATCH_RECORDS, MAX_DATA_AND_META, MIB

PIECE = 1 * MIB
# A line is one record; base64 and labels make its JSON form longer than the record.
LINE_MAX = 2 * MAX_DATA_AND_META


class Stream(Protocol):
    def read1(self, size: int, /) -> bytes:
        """What is there, at most size bytes; waits only while there is nothing; empty at the end."""
        ...


class ReadBatch(NamedTuple):
    records: list[Any]  # bytes, or (data, tag, node, meta)
    consumed: int  # bytes of input


Parse = Callable[[bytes, int], Any]


def whole(stream: Stream) -> Iterator[ReadBatch]:
    """All of the input as one record."""
    pieces: list[bytes] = []
    length = 0
    while piece := stream.read1(PIECE):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_DATA_AND_META:
            raise CliError(
                f"the input is longer than {MAX_DATA_AND_META:,} bytes, the most a record holds",
                Exit.REFUSED,
                "--lines stores a record per line",
            )
    yield ReadBatch([b"".join(pieces)], length)


def lines(stream: Stream, parse: Parse | None = None) -> Iterator[ReadBatch]:
    """A record per line, without its newline; parse(line, number) makes something else of it or None."""
    rest: list[bytes] = []
    rest_len = number = 0
    while piece := stream.read1(PIECE):
        *complete, tail = piece.split(b"\n")
        if complete:
            complete[0] = b"".join([*rest, complete[0]])
            rest, rest_len = [], 0
            yield from _chunks(complete, number, parse)
            number += len(complete)
        if tail:
            rest.append(tail)
            rest_len += len(tail)
        if rest_len > LINE_MAX:
            raise CliError(
                f"line {number + 1} is longer than {LINE_MAX:,} bytes",
                Exit.REFUSED,
                "--raw stores the whole input as one record",
            )
    if rest:
        yield from _chunks([b"".join(rest)], number, parse)


def _chunks(found: list[bytes], number: int, parse: Parse | None) -> Iterator[ReadBatch]:
    for at in range(0, len(found), MAX_BATCH_RECORDS):
        part = found[at : at + MAX_BATCH_RECORDS]
        consumed = sum(map(len, part)) + len(part)
        if parse is None:
            yield ReadBatch(part, consumed)
            continue
        made = (parse(line, number + at + i) for i, line in enumerate(part, 1))
        yield ReadBatch([record for record in made if record is not None], consumed)


def pieces(records: list[Any], most: int, most_bytes: int, labels: int) -> Iterator[list[Any]]:
    """The records in lists that a topic with such a cap takes as one write; labels: bytes that each has beside."""
    if len(records) <= most and not most_bytes:
        if records:
            yield records
        return
    piece: list[Any] = []
    size = 0
    for record in records:
        its_size = labels + _size(record)
        if piece and (len(piece) >= most or (most_bytes and size + its_size > most_bytes)):
            yield piece
            piece, size = [], 0
        piece.append(record)
        size += its_size
    if piece:
        yield piece


def _size(record: Any) -> int:
    """Bytes of data and labels, never too few."""
    if isinstance(record, bytes):
        return len(record)
    if isinstance(record, tuple):
        return sum(map(_size, record)) + 2
    if isinstance(record, str):
        return len(record.encode("utf-8", "surrogateescape"))
    return 0 if record is None else len(json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogateescape")) + 1


def envelope(line: bytes, number: int) -> tuple[Any, ...] | None:
    """A line as `topicctl read --json` prints it: {"data": …, "tag": …, "node": …, "meta": …}."""
    if not line.strip():
        return None
    try:
        body = json.loads(line)
    except ValueError as exc:
        raise CliError(f"line {number} is not JSON: {exc}", Exit.USAGE, "--lines stores lines as they are") from None
    if isinstance(body, dict) and "gap" in body and "data" not in body:
        note_gap(body, number)
        return None
    if not isinstance(body, dict) or "data" not in body:
        raise CliError(f'line {number} is no object with "data"', Exit.USAGE, "--lines stores lines as they are")
    meta = body.get("meta")
    if meta is not None and not isinstance(meta, dict):
        raise CliError(f'line {number}: "meta" must be an object', Exit.USAGE)
    return (
        _value(body["data"], number),
        _label(body.get("tag"), "tag", number),
        _label(body.get("node"), "node", number),
        meta,
    )


def note_gap(body: dict[str, Any], number: int) -> None:
    """`read --json` tells of records that were removed; there is nothing to store in their place."""
    import click

    gap = body["gap"] if isinstance(body["gap"], dict) else {}
    where = f"{gap.get('gap_from', '?')} to {gap.get('gap_to', '?')} of {body.get('topic', 'the source')}"
    click.echo(f"note: line {number}: records {where} are gone, nothing is stored for them", err=True)


def _value(value: Any, number: int) -> Any:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise CliError(f"line {number}: the base64 is malformed", Exit.USAGE) from None
    return value


def _label(value: Any, what: str, number: int) -> Any:
    found = _value(value, number)
    if found is not None and not isinstance(found, str | bytes):
        raise CliError(f'line {number}: "{what}" must be text', Exit.USAGE)
    return found
