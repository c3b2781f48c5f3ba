"""Records on stdout: lines for people, NDJSON for programs, or nothing but their data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.show.human import local_time, printable, printable_text, records_word
from topicd.cli.show.render import Output, json_bytes, json_text

if TYPE_CHECKING:
    from topicd.client.core.batch import Batch
    from topicd.client.core.records import Gap, Record


class RecordPrinter:
    """`form` is line, data (one per line), raw (nothing between) or json."""

    def __init__(
        self,
        out: Output,
        form: str,
        *,
        with_topic: bool = False,
        parse: bool = False,
        meta_only: bool = False,
        grep: str | None = None,
        layout: str | None = None,
    ) -> None:
        self._grep = None if grep is None else compiled(grep)
        self._layout = None if layout is None else checked_layout(layout)
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
        if self._form == "data" and self._grep is None:
            self._out.raw(b"\n".join(batch.payloads()) + b"\n")
        elif self._form == "raw" and self._grep is None:
            self._out.raw(b"".join(batch.payloads()))
        else:
            self.records(batch.records)

    def records(self, records: Iterable[Record]) -> None:
        if self._grep is not None:
            records = [record for record in records if self._grep.search(record.data)]
        if self._layout is not None:
            text = "".join(laid_out(self._layout, record) for record in records)
            self._out.raw(text.encode("utf-8", "backslashreplace"))
        elif self._form == "json":
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


def compiled(pattern: str) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern.encode())
    except re.error as exc:
        raise click.UsageError(f"--grep {pattern!r} is no regular expression: {exc}") from None


def checked_layout(layout: str) -> str:
    """With the escapes \\t and \\n as what they stand for."""
    from topicd.client.core.records import Record

    layout = layout.replace("\\t", "\t").replace("\\n", "\n")
    try:
        laid_out(layout, Record(b""))
    except (KeyError, IndexError, ValueError, AttributeError) as exc:
        raise click.UsageError(f"--format {layout!r} cannot be used ({exc!r}); there are {LAYOUT_FIELDS}") from None
    return layout


LAYOUT_FIELDS = "topic, seq, time, ts, tag, node, meta and data, in braces"


def laid_out(layout: str, record: Record) -> str:
    return (
        layout.format(
            topic=record.topic,
            seq=record.seq,
            time=local_time(record.ts),
            ts=record.ts,
            tag=printable_text(record.tag or ""),
            node=printable_text(record.node or ""),
            meta=json.dumps(record.meta, default=str, ensure_ascii=False),
            data=printable(record.data),
        )
        + "\n"
    )


def parsed(data: bytes) -> Any:
    """Data that is JSON as it is; otherwise as text."""
    try:
        found = json.loads(data)
    except ValueError:
        return json_bytes(data)
    # Looked like bytes that are no text: `publish --ndjson` would take it for that.
    return json_bytes(data) if isinstance(found, dict) and found.keys() == {"base64"} else found


def gap_line(gap: Gap) -> str:
    if gap.reason == "recreated":
        return f"-- {gap.topic} was deleted and created anew; this is its start --"
    return (
        f"-- {gap.topic}: records {gap.first_seq} to {gap.last_seq} are gone ({gap.reason}, "
        f"about {records_word(gap.missed)}) --"
    )
