"""Sessions on asyncio's own loop, and shards whose routers run without a process around them."""

from __future__ import annotations

import asyncio

from topicd.shards.delivery.parts import Parts
from topicd.shards.delivery.sessions.session import Session


class Served(asyncio.BufferedProtocol):
    """A session for asyncio's own loop, which goes by the class and not by the methods."""

    def __init__(self, session: Session) -> None:
        for name in ("connection_made", "connection_lost", "eof_received", "pause_writing", "resume_writing"):
            setattr(self, name, getattr(session, name))
        self._session = session

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._session.buffer_updated(nbytes)


def run_routers(parts: Parts) -> None:
    """The shard may ask itself, and copies without pauses: time does not pass here."""

    def own() -> asyncio.BaseProtocol:
        session = Session(parts)
        session.trusted = True
        return Served(session)

    parts.relay.own_session = own
    parts._polite = parts.routing.shop.pump.polite = 0.0
    parts.routing.open()
