"""The other end of a connection, as far as the turn and the pressure of memory have to know it."""

from __future__ import annotations


class Peer:
    def flush(self) -> None:
        """Send the answers that wait."""
        raise NotImplementedError

    def share_freed(self) -> None:
        """Enough of its writes is answered, or it does not matter any more: read from it again."""
        raise NotImplementedError

    def go_on(self) -> None:
        """What it was held for is over: read from it again."""
        raise NotImplementedError
