"""The other end of a connection, as far as the turn and the pressure of memory have to know it."""

from __future__ import annotations


class Peer:
    def flush(self) -> None:
        """Send the answers that wait."""
        raise NotImplementedError

    def go_on(self) -> None:
        """What it was held for is over: read from it again."""
        raise NotImplementedError
