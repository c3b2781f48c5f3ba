"""One connection: who is at the other end, what it may do, and what it waits for. Its bytes in: session.py."""

from __future__ import annotations

from topicd.errors import TopicdError
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.queues.takers import Taker
from topicd.shards.delivery.reading.long_polls import LongPoll
from topicd.shards.delivery.reading.subscriptions import Subscription
from topicd.shards.delivery.sessions.outbox import Outbox
from topicd.shards.delivery.sessions.strangers import Guest
from topicd.tokens import EVERYTHING, Rights


class Connection(Outbox):
    def __init__(self, place: Place, agenda: Agenda, counters: Counters) -> None:
        super().__init__(place, agenda, counters)
        self.greeted = False
        self.guest: Guest | None = None  # of another machine
        self.needs_token = False
        self.trusted = False  # the shard's own
        self.keeps = ""  # a process of topicd's own: it alone writes topics whose names begin so
        self.rights: Rights = EVERYTHING
        self.uid: int | None = None  # of a peer on this machine
        self.who = "somebody"  # as far as one can tell
        self.client = ""  # what it calls itself
        self.since_ms = 0
        self.token = b""  # the digest of what it was let in with
        self.bytes_in = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.long_polls: set[LongPoll] = set()
        self.takers: dict[int, Taker] = {}  # by request id: claims that wait, and streams of jobs
        self.waiting_since = 0.0  # a message has been incomplete since then; 0.0: none is

    @property
    def incomplete_bytes(self) -> int:
        raise NotImplementedError

    def turn_away(self, request_id: int, error: TopicdError, after_s: float) -> None:
        """Listen no more, say why in a moment, and close."""
        raise NotImplementedError

    def cut_off(self, error: TopicdError, after_s: float) -> bool:
        """Say why behind what waits for it, close, and do not wait longer than that for it to read. False: it is being
        closed already."""
        raise NotImplementedError

    def relax(self) -> None:
        """Once a second: give back what was needed for large messages only."""
        raise NotImplementedError
