"""What the daemon stands on and may run out: the disk, certificates, tokens. Promise: looked at once in FRESH_S,
however often it is asked; what cannot be looked at is left out.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topicd.config import Settings
from topicd.gateway.keys import Keys

FRESH_S = 10.0
SOON_MS = 14 * 86_400_000
_TOKENS_SHOWN = 5
_TIME = rb"(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)"  # as DER has it: UTCTime, GeneralizedTime
_VALIDITY = re.compile(_TIME.replace(b"(\\d", b"(?:\\d") + _TIME)


class Surroundings:
    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys
        self._seen: dict[str, Any] = {}
        self._seen_at = float("-inf")

    def look(self, now_ms: int, monotonic: float) -> dict[str, Any]:
        """disk {free, size}; ending [what, name, ms when it ends or ended]: within SOON_MS."""
        if monotonic - self._seen_at >= FRESH_S:
            self._seen_at = monotonic
            self._seen = {"disk": self._disk(), "ending": [*self._certificate(now_ms), *self._tokens(now_ms)]}
        return self._seen

    def _disk(self) -> dict[str, int]:
        found: dict[str, int] = _quietly(lambda: _space(os.statvfs(self._settings.data_dir)), {})
        return found

    def _certificate(self, now_ms: int) -> list[list[Any]]:
        path = self._settings.tls_cert
        if not path:
            return []
        ends = _quietly(lambda: _certificate_ends(path), 0)
        return [["certificate", path, ends]] if ends and ends - now_ms < SOON_MS else []

    def _tokens(self, now_ms: int) -> list[list[Any]]:
        if self._keys.tokens is None:
            return []
        soon = sorted((ends, name) for name, ends in self._keys.tokens.expiries() if ends - now_ms < SOON_MS)
        return [["token", name, ends] for ends, name in soon[:_TOKENS_SHOWN]]


def _quietly(look: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return look()
    except (OSError, ValueError, KeyError, ssl.SSLError):
        return otherwise


def _space(found: os.statvfs_result) -> dict[str, int]:
    return {"free": found.f_bavail * found.f_frsize, "size": found.f_blocks * found.f_frsize}


def _certificate_ends(path: str) -> int:
    """ms; of the first certificate in the file. Its validity is the one place where two times stand side by side."""
    text = Path(path).read_text()
    begin = text.index("-----BEGIN CERTIFICATE-----")
    end = "-----END CERTIFICATE-----"
    found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(text[begin : text.index(end, begin) + len(end)]))
    if found is None:
        return 0
    short, long = found[1], found[2]
    moment = (b"20" + short if short else long).decode()
    return int(datetime.strptime(moment, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() * 1000)
