"""Jobs whose destinations fill up, change their caps and schemas, are created again, and whose tokens lose their rights
between stage and commit, while committers die: what can be seen is what the successful jobs wrote, once, and nothing
else, or the state says what is half-way; and that ends when it is finished or abandoned."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.process.test_staging import Crash, crash_at
from tests.process.test_tcp import Site
from tests.support.daemon import drain_topic, wait_until
from topicd.cli.offline import token_file
from topicd.client.blocking.client import Client
from topicd.client.staging import copying, sweep
from topicd.client.staging.plan import Staged
from topicd.errors import TopicdError, TopicNotFound

OPEN, FULL, OLD = "orders.open", "orders.full", "orders.old"
ROUNDS = 25
FOREIGN = b"somebody else"


class Oracle:
    """What should be there, by topic, as far as it is settled."""

    def __init__(self) -> None:
        self.rows: dict[str, list[bytes]] = {OPEN: [], FULL: [], OLD: []}
        self.half: dict[str, dict[str, list[bytes]]] = {}  # by query

    def succeeded(self, rows: dict[str, list[bytes]]) -> None:
        for topic, given in rows.items():
            self.rows[topic] += given

    def created_again(self, topic: str) -> None:
        self.rows[topic] = []


class Story:
    def __init__(self, site: Site, boss: Client, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.site, self.boss, self.patch = site, boss, patch
        self.chance = random.Random(seed)
        self.oracle = Oracle()
        self.refused = self.died = 0
        self.without_rights = False

    def round(self, number: int) -> None:
        query = f"job-{number}"
        rows = {topic: self._rows(number, topic) for topic in self.chance.sample([OPEN, FULL, OLD], 2)}
        with self.site.client("job", timeout=5.0) as client:
            stages = client.stages(query, ends=True)
            parts = [stages.write_records(0, n, topic, given) for n, (topic, given) in enumerate(rows.items())]
        for _ in range(self.chance.randrange(3)):
            self._mischief()
        if self._commit(query, parts):
            self.oracle.succeeded(rows)
        elif any(one.query == query for one in sweep.unfinished(self.boss)):
            self.oracle.half[query] = rows
            self._mischief()
            if self.chance.random() < 0.6:
                self._resolve(query)
        if self.without_rights:
            self._rights(("write", "stage"))
        self.check()

    def _rows(self, number: int, topic: str) -> list[bytes]:
        count = self.chance.choice([1, 300, 12_000, 22_000])
        return [b"%d.%s.%d" % (number, topic.encode(), n) for n in range(count)]

    def _mischief(self) -> None:
        what = self.chance.choice(["fill", "cap", "again", "rights", "schema", "nothing"])
        if what == "fill":
            with suppress(TopicdError):
                self.boss.publish_many(FULL, [FOREIGN] * self.chance.choice([1, 500, 9_000]))
        elif what == "cap":
            self.boss.configure(FULL, cap_records=self.chance.choice([500, 20_000, 60_000]), discard="reject")
            self.boss.configure(OLD, cap_records=self.chance.choice([400, 5_000, 30_000]))
        elif what == "again":
            topic = self.chance.choice([OPEN, FULL])
            self.boss.delete_topic(topic)
            self.oracle.created_again(topic)
            if topic == FULL:
                self.boss.configure(FULL, cap_records=20_000, discard="reject")
            else:
                self.boss.configure(OPEN)
        elif what == "rights":
            self._rights(("read",))
        elif what == "schema":
            self.boss.configure(OPEN, schema=self.chance.choice([None, {"type": "object"}]))

    def _rights(self, scopes: tuple[str, ...]) -> None:
        """The job's token has just these from now on."""
        self.without_rights = "stage" not in scopes
        token_file.revoke(self.site.tokens, "job")
        self.site.secrets["job"] = token_file.create(self.site.tokens, "job", scopes, ["orders."])
        self.site.daemon.kill("supervisor", signal.SIGHUP)

        def known() -> bool:
            try:
                with self.site.client("job", timeout=1.0) as client:
                    return all(True for _ in client.topics())
            except TopicdError:
                return False

        wait_until(known, "the new token", 20)

    def _commit(self, query: str, parts: list[Staged]) -> bool:
        try:
            with self._mortal(), self.site.client("job", timeout=5.0) as client:
                client.stages(query, ends=True).commit(0, parts)
            return True
        except TopicdError:
            self.refused += 1
        except Crash:
            self.died += 1
        return False

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        with self.patch.context() as patch:
            if self.chance.random() < 0.4:
                patch.setattr(copying, "WINDOW", 1)
                crash_at(patch, copying.Connection, "finish_append", self.chance.randrange(1, 5))
            yield

    def _resolve(self, query: str) -> None:
        """It is finished, or what hinders it is told and it is given up."""
        [outcome] = sweep.finish(self.boss, query)
        rows = self.oracle.half.pop(query)
        if outcome.error is None:
            self.oracle.succeeded(rows)
            return
        parts = sweep.abandon(self.boss, query, take_back=True)
        assert {part.topic: part.records for part in parts} == {topic: len(given) for topic, given in rows.items()}

    def check(self) -> None:
        for topic, wanted in self.oracle.rows.items():
            found = self._visible(topic)
            half = [row for rows in self.oracle.half.values() for row in rows.get(topic, [])]
            allowed = Counter(wanted) + Counter(half)
            assert not Counter(found) - allowed, f"{topic}: rows that nobody committed, or twice"
            if topic != OLD:
                assert not Counter(wanted) - Counter(found), f"{topic}: rows of successful jobs are missing"
            whole = self._visible(topic, committed=True)
            assert not set(whole) & set(half), f"{topic}: half a commit was shown to a reader of whole ones"

    def _visible(self, topic: str, *, committed: bool = False) -> list[bytes]:
        try:
            if not committed:
                return [record.data for record in drain_topic(self.boss, topic) if record.data != FOREIGN]
            batches = list(self.boss.history(topic, committed=True))
            return [data for batch in batches for data in batch.payloads() if data != FOREIGN]
        except TopicNotFound:
            return []


@pytest.mark.parametrize("seed", [15, 151, 1515])
@pytest.mark.timeout(240)
def test_only_successful_jobs_are_seen_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    site = Site(tmp_path, tls=False)
    with site.daemon, site.daemon.client() as boss:
        boss.configure(OPEN)
        boss.configure(FULL, cap_records=20_000, discard="reject")
        boss.configure(OLD, cap_records=5_000)
        story = Story(site, boss, seed, monkeypatch)
        for number in range(ROUNDS):
            story.round(number)
        for query in list(story.oracle.half):
            story._resolve(query)
        story.check()
        assert story.refused and story.died
        assert sweep.unfinished(boss) == []
        for topic in (OPEN, FULL, OLD):
            state = boss.state(topic)
            assert (state.settled_seq, state.open_commits) == (state.head_seq, 0)
