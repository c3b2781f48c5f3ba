"""Records as somebody looks at them: text that can be shown, not data to work with. Promise: what is JSON is laid out
token by token as it was written; what is text is text; all else is hex; each is cut to a size that a page bears.
"""

from __future__ import annotations

from typing import Any

import msgspec

from topicd._native.interface import Decoded
from topicd.gateway.records_json import is_json, meta_text
from topicd.limits import KIB

TEXT_MAX = 32 * KIB
HEX_MAX = 2 * KIB


def shown(record: Decoded) -> dict[str, Any]:
    seq, ts, node, tag, meta, data = record
    row: dict[str, Any] = {"seq": seq, "ts": ts, "size": len(data), **_body(data)}
    if node:
        row["node"] = bytes(node).decode("utf-8", "replace")
    if tag:
        row["tag"] = bytes(tag).decode("utf-8", "replace")
    if meta:
        row["meta"] = _laid_out(meta_text(meta))[:TEXT_MAX]
    return row


def _body(data: bytes) -> dict[str, Any]:
    data = bytes(data)
    if len(data) <= 4 * TEXT_MAX and is_json(data):
        text = _laid_out(data)
        return {"kind": "json", "text": text[:TEXT_MAX], "cut": len(text) > TEXT_MAX}
    head = data[:TEXT_MAX]
    text = head.decode("utf-8", "replace")
    if _is_text(head, text):
        return {"kind": "text", "text": text, "cut": len(data) > TEXT_MAX}
    return {"kind": "binary", "text": data[:HEX_MAX].hex(), "cut": len(data) > HEX_MAX}


def _is_text(head: bytes, text: str) -> bool:
    """A sign that was cut in two at the end may be missing, nothing else."""
    if "\ufffd" in text[:-1] and b"\xef\xbf\xbd" not in head:
        return False
    return all(sign.isprintable() or sign in "\n\r\t" for sign in text[:-1])


def _laid_out(text: bytes) -> str:
    try:
        return msgspec.json.format(text, indent=2).decode("utf-8", "replace")
    except (msgspec.DecodeError, RecursionError):
        return text.decode("utf-8", "replace")
