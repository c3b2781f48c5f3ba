"""Heads of HTTP/1.1 as text."""

from __future__ import annotations

from topicd.gateway.web.messages import BODILESS, STATUS_TEXT, Head, Headers


def wants_websocket(head: Head) -> bool:
    return head.headers.get(b"upgrade", b"").lower() == b"websocket"


def origin_form(target: bytes) -> bytes:
    """The path of an absolute-form target, which a proxy would send."""
    if target.startswith((b"http://", b"https://")):
        rest = target.split(b"//", 1)[1]
        return b"/" + rest.partition(b"/")[2]
    return target if target.startswith(b"/") else b"/" + target


def answer_head(status: int, content_type: bytes, headers: Headers, length: int, *, keep: bool, version: str) -> bytes:
    extra = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    if not keep:
        extra += b"Connection: close\r\n"
    elif version == "1.0":  # its peers take silence for the end
        extra += b"Connection: keep-alive\r\n"
    if status in BODILESS:
        return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, STATUS_TEXT[status], extra)
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n" % (
        status,
        STATUS_TEXT.get(status, b"Unknown"),
        content_type,
        length,
        extra,
    )


def stream_head(status: int, headers: Headers) -> bytes:
    extra = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, STATUS_TEXT.get(status, b"Unknown"), extra)
