"""G and H: what a crash costs until records are served again, and what a server weighs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks import procs
from benchmarks.peers.base import Peer
from topicd.bench import crash
from topicd.bench.load import Figures, Load
from topicd.bench.work import batches, check, payloads

SETTLE_S = 5.0  # checkpoints are done, and what was needed for a moment is given back
BATCH = 1000


def recovery(peer: Peer, load: Load) -> Figures:
    return recover(peer, load, "crash", lambda _: None)


def recover(peer: Peer, load: Load, name: str, prepare: Callable[[Peer], None]) -> Figures:
    """G: seconds from SIGKILL of every process to the first record read again; all records must be there."""
    server = peer.sibling(name)
    fresh = not server.has_dataset(load.size, load.records)
    topic = server.dataset(load.size, load.records)
    if fresh:
        prepare(server)
    with server.connect(False) as session:
        session.append(topic, payloads(load.size, 1)[0])
        stored = session.count(topic)
    with ExitStack() as stack:

        def read_one() -> int:
            return len(stack.enter_context(server.connect(False)).fetch(topic, None, 1)[0])

        found = crash.recover(server.kill9, server.start, read_one)
    with server.connect(False) as session:
        check(peer.name, session.count(topic), stored)
    return found


def memory(peer: Peer, load: Load) -> Figures:
    """H: PSS of all processes of a fresh server, empty and after each step of stored records."""
    figures: Figures = {}
    server = peer.sibling("memory")
    try:
        time.sleep(SETTLE_S)
        figures |= _weight("empty", server)
        server.make_topics(["memory.0"], False)
        stored = 0
        with server.connect(False) as session:
            for number, step in enumerate(load.steps):
                for batch in batches(payloads(load.size), BATCH, step - stored):
                    session.append_many("memory.0", batch)
                stored = step
                check(peer.name, session.count("memory.0"), stored)
                time.sleep(SETTLE_S)
                figures |= _weight(f"step{number + 1}", server)
    finally:
        peer.close_sibling("memory")
    return figures


def _weight(step: str, server: Peer) -> Figures:
    """The whole, and for the JSON its parts: mapped files are memory that the kernel may take back."""
    pids = server.pids()
    return {
        step: procs.pss_mib(pids),
        f"{step}_anon": procs.pss_mib(pids, "Pss_Anon"),
        f"{step}_file": procs.pss_mib(pids, "Pss_File"),
    }
