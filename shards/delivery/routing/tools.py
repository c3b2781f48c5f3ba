"""What a router works with: a feed of its source, the way into its destination, time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from topicd.errors import TopicdError
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.feeds import Feed
from topicd.shards.delivery.routing.pump import Pump
from topicd.shards.delivery.topic.flight import Replier
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need


class Decided(Protocol):
    one: Definition
    dest: Topic
    closed: bool

    def begin(self, why: str) -> None:
        """Logged, and why; or derived."""


class Tools(Protocol):
    pump: Pump

    def now_ms(self) -> int: ...

    def feed(self, one: Definition, on_news: Callable[[], None]) -> Feed: ...

    def fed(self, source: str) -> bool:
        """Do routers lead to it?"""

    def has_room(self) -> bool:
        """Is memory free for copies that checkpoints store, without one of the writers having to wait for it?"""

    def later(self, pause: float, call: Callable[[], None]) -> None: ...

    def decide(self, forwarder: Decided) -> None:
        """Whether its copies are logged: it is told to begin."""

    def log_copies(self, dest: Topic, why: str, cursor: int, holes: int) -> list[int] | None:
        """From now on, and the router is behind this seq of its source; for what it has passed over there are so many
        seqs that nobody writes. Returned: the hole."""

    def soon(self, records: int, call: Callable[[], None]) -> None:
        """So many copies are there: call it behind what follows from that."""

    def forward(
        self, replier: Replier, one: Definition, dest: Topic, cursor: int, frames: bytearray, records: int
    ) -> None:
        """Copies to the destination. Raises what refuses them; otherwise the replier is told later."""

    def note(
        self,
        dest: Topic,
        body: dict[str, Any],
        need: Need,
        applied: Callable[[], None] | None = None,
        refused: Callable[[TopicdError], None] | None = None,
    ) -> None:
        """A word about a router, to the destination's log."""

    def made_hole(self, dest: Topic, last: int) -> None:
        """Seqs up to there are visible, and nobody's."""
