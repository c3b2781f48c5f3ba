"""D: one consumer from the start of a stored topic; every payload is touched."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.peers.base import Peer
from topicd.bench.load import Figures, Load
from topicd.bench.stats import throughput
from topicd.bench.work import clock_ns, touch


def scan(peer: Peer, load: Load) -> Figures:
    """Fetches of `load.batch` records until the topic ends."""
    topic = peer.dataset(load.size, load.records)
    with peer.connect(False) as session:
        start = clock_ns()
        cursor = None
        seen = 0
        while seen < load.records:
            found, cursor = session.fetch(topic, cursor, load.batch)
            if not found:
                break
            seen += touch(found)
        seconds = (clock_ns() - start) / 1e9
    return consumed(peer, load, seen, seconds)


def consumed(peer: Peer, load: Load, seen: int, seconds: float) -> Figures:
    if seen != load.records:
        raise RuntimeError(f"{peer.name} delivered {seen} of {load.records} records")
    return throughput(seen, seconds, load.size)


def touch_all(peer: Peer, load: Load, chunks: Iterable[Iterable[bytes]], start_ns: int) -> Figures:
    """The same for a source that yields chunks of payloads by itself."""
    seen = sum(touch(chunk) for chunk in chunks)
    return consumed(peer, load, seen, (clock_ns() - start_ns) / 1e9)
