"""What both faces share: where the daemon is, how long to try, what to show at the door."""

from __future__ import annotations

from topicd.client.backoff import Tempo
from topicd.client.directory import Directory


class Context:
    def __init__(self, directory: Directory, *, tempo: Tempo, timeout: float, token: str | None) -> None:
        self.directory = directory
        self.tempo = tempo
        self.timeout = timeout
        self.token = token
        self.closed = False
