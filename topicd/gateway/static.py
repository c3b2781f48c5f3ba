"""Files for web pages: what lies in topicd/gateway/static. Promise: only files that were there at the start are served,
whole and from memory, with a policy that lets a page load nothing from elsewhere; none of them hides a path of the API.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from topicd.gateway.web.messages import Head, Headers, Reply
from topicd.limits import MIB

log = logging.getLogger(__name__)

ROOT = Path(__file__).parent / "static"
_FILES = 1_000
_BYTES = 32 * MIB
# What this machine takes them for does not matter, and is slow to read.
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class StaticFiles:
    """By path; a folder is its index.html."""

    def __init__(self, root: Path = ROOT) -> None:
        self._files: dict[tuple[str, ...], Reply] = {}
        size = 0
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            if not path.is_file() or any(part.startswith(".") for part in path.relative_to(root).parts):
                continue
            body = path.read_bytes()
            size += len(body)
            if len(self._files) >= _FILES or size > _BYTES:
                log.error("too many files for web pages, the rest is not served", extra={"root": root})
                return
            parts = path.relative_to(root).parts
            reply = _reply(path, body)
            self._files[parts] = reply
            if parts[-1] == "index.html":
                self._files[(*parts[:-1], "")] = reply

    def __len__(self) -> int:
        return len(self._files)

    def has(self, segments: list[str]) -> bool:
        return tuple(segments) in self._files

    def answer(self, segments: list[str], head: Head) -> Reply:
        found = self._files[tuple(segments)]
        tag = next(value for name, value in found.headers if name == b"ETag")
        if tag in head.headers.get(b"if-none-match", b""):
            return Reply(304, headers=list(found.headers), content_type=found.content_type)
        return Reply(200, found.body, list(found.headers), content_type=found.content_type)


def _reply(path: Path, body: bytes) -> Reply:
    kind = _KINDS.get(path.suffix.lower(), "application/octet-stream")
    headers: Headers = [
        (b"ETag", b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()),
        (b"Cache-Control", b"no-cache"),
        (b"Content-Security-Policy", _POLICY),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Referrer-Policy", b"no-referrer"),
    ]
    return Reply(200, body, headers, content_type=kind.encode())
