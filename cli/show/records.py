"""Records on stdout: lines for people, NDJSON for programs, or nothing but their data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from topicd.cli.show.human import local_time, printable, printable_text
from topicd.cli.show.render import Output, json_bytes, json_text

if TYPE_CHECKING:
    from topicd.client.core.batch import Batch
    from topicd.client.core.records import Gap, Record


class RecordPrinter:
    """`form` is line, data (one per line), raw (nothing between) or json."""

    def __init__(
        self, out: Output, form: str, *, with_topic: bool = False, parse: bool = False, meta_only: bool = False
    ) -> None:
        self._out = out
        self._form = "json" if out.json_mode else form
        self._with_topic = with_topic
        self._parse = parse
        self._meta_only = meta_only

    def batch(self, batch: Batch, *, skip_gap: bool = False) -> None:
        gap = batch.gap
        if gap is not None and not skip_gap:
            self.gap(gap)
        if not len(batch):
            return
        if self._form == "data":
            self._out.raw(b"\n".join(batch.payloads()) + b"\n")
        elif self._form == "raw":
            self._out.raw(b"".join(batch.payloads()))
        else:
            self.records(batch.records)

    def records(self, records: Iterable[Record]) -> None:
        if self._form == "json":
            self._out.lines(map(self._body, records))
        elif self._form == "line":
            text = "".join(map(self._line, records))
            self._out.raw(text.encode("utf-8", "backslashreplace"))
        else:
            end = b"\n" if self._form == "data" else b""
            self._out.raw(b"".join(record.data + end for record in records))

    def gap(self, gap: Gap) -> None:
        """In its place among the records; on stderr where stdout holds nothing but data."""
        if self._form == "json":
            self._out.lines([{"topic": gap.topic, "gap": gap.tombstone.to_wire()}])
            return
        line = gap_line(gap)
        if self._form == "line":
            self._out.text(self._out.styled(line, "yellow"))
        else:
            import click

            click.echo(line, err=True)

    def _line(self, record: Record) -> str:
        where = f"{record.topic}#{record.seq}" if self._with_topic else f"{record.seq:>6}"
        parts = [
            self._out.styled(where, "cyan"),
            self._out.styled(local_time(record.ts), "bright_black"),
        ]
        if record.tag is not None:
            parts.append(self._out.styled(f"[{printable_text(record.tag)}]", "green"))
        if not self._meta_only:
            parts.append(printable(record.data))
        return "  ".join(parts).rstrip() + "\n"

    def _body(self, record: Record) -> dict[str, Any]:
        body: dict[str, Any] = {
            "topic": record.topic,
            "seq": record.seq,
            "ts": record.ts,
            "tag": json_text(record.tag),
            "node": json_text(record.node),
        }
        if not self._meta_only:
            body["meta"] = record.meta
            body["data"] = parsed(record.data) if self._parse else json_bytes(record.data)
        return body


def parsed(data: bytes) -> Any:
    """Data that is JSON as it is; otherwise as text."""
    try:
        return json.loads(data)
    except ValueError:
        return json_bytes(data)


def gap_line(gap: Gap) -> str:
    if gap.reason == "recreated":
        return f"-- {gap.topic} was deleted and created anew; this is its start --"
    return (
        f"-- {gap.topic}: records {gap.first_seq} to {gap.last_seq} are gone ({gap.reason}, "
        f"about {gap.missed:,} records) --"
    )
