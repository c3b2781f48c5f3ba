"""The daemon is killed while batches are staged and committed, and so is whoever commits: each batch is there whole,
once and in order, and nothing else is."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import LIVELY, Daemon, drain_topic
from topicd.client.blocking.client import Client
from topicd.client.blocking.connection import Connection
from topicd.client.staging.names import STAGES
from topicd.client.staging.plan import Staged
from topicd.client.staging.stages import Stages
from topicd.errors import TopicdError
from topicd.ipc.protocol.codec import Appended

QUERY = "a query"
TARGETS = ("left", "right")
PARTS = 3
CLIENT_S = 90.0


class Death(Exception):
    """Of whoever commits; the daemon knows nothing of it."""


class Writer:
    """Stages and commits batch after batch. After a death it begins its batch anew, as Spark does: with new stages, of
    which those count that were decided first."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self._client = client
        self._chance = chance
        self.written: dict[int, list[dict[str, list[bytes]]]] = {}  # by batch: what each attempt held
        self.error: BaseException | None = None

    def run(self, batches: int) -> None:
        try:
            for batch in range(batches):
                while not self._attempt(self._client.stages(QUERY), batch):
                    pass
        except BaseException as error:
            self.error = error

    def _attempt(self, stages: Stages, batch: int) -> bool:
        attempts = self.written.setdefault(batch, [])
        held: dict[str, list[bytes]] = {target: [] for target in TARGETS}
        attempts.append(held)
        parts = [self._stage(stages, batch, part, held) for part in range(PARTS)]
        # An attempt at a part that fails or is overtaken leaves a stage behind that nobody commits.
        self._stage(stages, batch, 0, {target: [] for target in TARGETS})
        dies_at = self._chance.choice([None, None, 1, 2, 3])
        try:
            with dying_at(dies_at):
                stages.commit(batch, parts)
        except Death:
            return False
        return True

    def _stage(self, stages: Stages, batch: int, part: int, held: dict[str, list[bytes]]) -> Staged:
        target = TARGETS[(batch + part) % 2]
        salt = self._chance.getrandbits(32)
        count = self._chance.choice([1, 40, 3_000, 12_000])
        records = [b"%d.%d.%d.%08x" % (batch, part, n, salt) for n in range(count)]
        held[target] += records
        return stages.write_records(batch, part, target, records)


@contextmanager
def dying_at(append: int | None) -> Iterator[None]:
    """That append of a copy is the last thing that happens."""
    if append is None:
        yield
        return
    whole, left = Connection.finish_append, append

    def finish(connection: Connection) -> tuple[int, Appended | TopicdError]:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Death
        return whole(connection)

    Connection.finish_append = finish  # type: ignore[method-assign]
    try:
        yield
    finally:
        Connection.finish_append = whole  # type: ignore[method-assign]


def expected(found: list[bytes], written: dict[int, list[dict[str, list[bytes]]]], target: str) -> list[bytes]:
    """What should be there: of each batch one attempt, that which is there."""
    there, wanted = set(found), list[bytes]()
    for batch in sorted(written):
        chosen = [held[target] for held in written[batch] if held[target] and held[target][0] in there]
        assert len(chosen) <= 1, f"{target}: records of {len(chosen)} attempts at batch {batch}"
        if not chosen:
            assert not any(held[target] for held in written[batch]), f"{target}: batch {batch} is missing"
        wanted += chosen[0] if chosen else []
    return wanted


@pytest.mark.parametrize("seed", [20_261, 20_262])
@pytest.mark.timeout(300)
def test_batches_are_whole_and_once_whoever_dies(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Daemon(tmp_path, wal_shards=2, delivery_shards=2, **LIVELY) as daemon:
        writer = Writer(daemon.client(timeout=CLIENT_S), random.Random(seed + 1))
        thread = threading.Thread(target=writer.run, args=(8,))
        thread.start()
        while thread.is_alive():
            thread.join(chance.uniform(0.05, 1.0))
            if not thread.is_alive():
                break
            victim = chance.choice(["all", "all", "dlv-00", "dlv-01", "wal-00", "wal-01"])
            if victim == "all":
                daemon.kill_all(chance)
                daemon.start().wait_ready()
            else:
                daemon.wait_replaced(victim, daemon.kill(victim))
        assert writer.error is None, repr(writer.error)
        client = daemon.client()
        for target in TARGETS:
            found = [record.data for record in drain_topic(client, target)]
            assert found == expected(found, writer.written, target)
        assert [info.topic for info in client.topics(STAGES)] == []
        assert sum(len(attempts) for attempts in writer.written.values()) > 8, "nobody died while committing"
