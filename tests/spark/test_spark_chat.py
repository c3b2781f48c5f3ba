"""The log of a chat store on real Spark and without it, live and archived: what the pipelines find is what the store
answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.chatpair import Pair
from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.cli.main import main
from topicd.client.blocking.client import Client
from topicd.errors import Conflict, TopicNotFound
from topicd.shards.chat.digest import Digest
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import anti_entropy, archive, chat_log, digests, inbox_rollup, retention_plan
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.session import LazySpark

pytest.importorskip("rocksdict")

USERS = [f"u{n}" for n in range(12)]
ROOMS = [f"room{n}" for n in range(15)]


class Without(LazySpark):
    """Everything is small to it."""

    def is_needless(self, records: int, size: int) -> bool:
        return True


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("d"), env={"TOPICD_CHAT": "true"}, **LIVELY) as running:
        yield running


def talk(client: Client, chance: Random, count: int) -> None:
    chat = client.chat
    for _ in range(count):
        room, user = chance.choice(ROOMS), chance.choice(USERS)
        what = chance.random()
        if what < 0.6:
            chat.send_many([(room, f"{n} {chance.random()}" * 3) for n in range(chance.randint(1, 5))], user=user)
        elif what < 0.75:
            chat.add(room, user)
        elif what < 0.82:
            chat.remove(room, user)
        elif what < 0.9:
            other = chance.choice(USERS)
            if other != user:
                chat.send(f"@{other}", "between us", user=user)
        elif what < 0.95:
            chat.put_identity(user, f"key {chance.random()}".encode())
        else:
            rows = chat.inbox(user).chats
            if rows:
                row = chance.choice(rows)
                chat.mark(row.chat, chance.randint(0, row.last_seq), user=user)


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Client:
    found, chance = daemon.client(), Random(7)
    for room in ROOMS:
        found.chat.add(room, USERS[0], role="admin")
    talk(found, chance, 150)
    # One id in two chats: the first one counts, whoever applies them.
    twice = bytes(range(32))
    assert found.chat.send(ROOMS[0], "first", user=USERS[0], id=twice).seq
    assert not found.chat.send(ROOMS[1], "second", user=USERS[0], id=twice).seq
    newest = max(row.ms for user in USERS for row in found.chat.inbox(user).chats)
    found.chat.retain(cutoff_ms=newest - 1)
    wait_until(lambda: not found.chat.stats(rows=False).get("cleaning"), "what is too old to be gone")
    talk(found, chance, 150)
    return found


@pytest.fixture(scope="module")
def where(daemon: Daemon) -> ConnectionOptions:
    return connection_options(str(daemon.run.socket), 60.0)


@pytest.fixture(scope="module")
def archived(spark: Any, client: Client, where: ConnectionOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    archive.run(Without(), archive.Options(where, (chat_log.TOPIC,), root))
    return root


@pytest.fixture(params=["spark", "here"])
def lazy(request: pytest.FixtureRequest, spark: Any, monkeypatch: pytest.MonkeyPatch) -> LazySpark:
    monkeypatch.setattr(chat_log, "TILE", 90)
    monkeypatch.setattr(chat_log, "PER_TASK", 60)
    return LazySpark(session=spark) if request.param == "spark" else Without()


@pytest.mark.parametrize("live", [True, False], ids=["live", "archive"])
def test_digests_are_those_of_the_store(
    lazy: LazySpark, client: Client, where: ConnectionOptions, archived: Path, live: bool
) -> None:
    report = digests.run(lazy, digests.Options(where, None if live else archived))
    found = client.chat.digest(fresh=True)
    told = {row["domain"]: (row["records"], row["digest"]) for row in report.rows}
    assert told == {name: (one["count"], one["root"]) for name, one in found["domains"].items()}


@pytest.mark.parametrize("live", [True, False], ids=["live", "archive"])
def test_inboxes_are_those_of_the_store(
    lazy: LazySpark, client: Client, where: ConnectionOptions, archived: Path, live: bool
) -> None:
    report = inbox_rollup.run(lazy, inbox_rollup.Options(where, None if live else archived))
    told = {row["user"]: row for row in report.rows}
    shown = {user: client.chat.inbox(user, limit=1_000).chats for user in USERS}
    assert set(told) == {user for user, rows in shown.items() if rows}
    for user, rows in shown.items():
        if rows:
            unread = [row.unread for row in rows]
            expected = (len(rows), sum(map(bool, unread)), sum(unread), max(row.ms for row in rows))
            one = told[user]
            assert (one["chats"], one["unread_chats"], one["unread"], one["newest_ms"]) == expected
    assert report.totals["users"] == len(told)


@pytest.mark.parametrize("live", [True, False], ids=["live", "archive"])
def test_a_plan_is_what_the_store_would_remove(
    lazy: LazySpark, client: Client, where: ConnectionOptions, archived: Path, live: bool
) -> None:
    times = sorted(message.ms for room in ROOMS for message in client.chat.messages(room))
    assert times
    for cutoff_ms in (times[0] - 1, times[len(times) // 2], times[-1]):
        options = retention_plan.Options(where, cutoff_ms, None if live else archived)
        report = retention_plan.run(lazy, options)
        found = client.chat.retain(cutoff_ms=cutoff_ms, dry_run=True)
        assert {name: report.totals[name] for name in ("chats", "messages", "bytes")} == {
            name: found[name] for name in ("chats", "messages", "bytes")
        }
        assert sum(row["goes"] for row in report.rows) == found["messages"]


def test_what_two_stores_lack_makes_them_equal(
    lazy: LazySpark, client: Client, where: ConnectionOptions, archived: Path, tmp_path: Path
) -> None:
    same = anti_entropy.run(lazy, anti_entropy.Options(where, archived, archived))
    assert same.totals["equal"] and same.totals["differences"] == 0
    talk(client, Random(len(client.chat.inbox(USERS[0]).chats)), 20)
    plan = tmp_path / "plan.ndjson"
    report = anti_entropy.run(lazy, anti_entropy.Options(where, archived, plan=plan))
    assert not report.totals["equal"]
    lines = [json.loads(line) for line in plan.read_text().splitlines()]
    assert len(lines) == report.totals["differences"]
    # The older store, with what it lacks and without what was replaced since, has the digests of the daemon.
    log = chat_log.open_log(where, archived)
    made = digests.together(chat_log.in_each(Without(), "digests", log, digests.of_view, lambda *_: None))
    for line in lines:
        digest: Digest = made.digests[line["domain"]]
        record = bytes.fromhex(line["id"])
        if line["lacks"] == "first":
            digest.insert(record)
        else:
            digest.remove(record)
    found = client.chat.digest(fresh=True)["domains"]
    assert {name: one.root.hex() for name, one in made.digests.items()} == {
        name: one["root"] for name, one in found.items()
    }
    # The archive of the module goes on with what the other tests find in the store.
    archive.run(Without(), archive.Options(where, (chat_log.TOPIC,), archived))


def ids_of(client: Client) -> set[str]:
    return {one.id for room in ("room", "cellar") for one in client.chat.messages(room)}


@pytest.mark.parametrize("archives", [1, 2], ids=["archive and live", "two archives"])
@pytest.mark.parametrize("method", ["digest", "negentropy"])
def test_what_two_stores_lack_is_what_their_sync_exchanges(tmp_path: Path, archives: int, method: str) -> None:
    with Pair(tmp_path / "pair") as pair:
        here, there = (daemon.client() for daemon in pair.daemons)
        here.chat.send_many([("room", f"both {n}") for n in range(20)], user="ann")
        here.chat.add("room", "cid")
        here.chat.add("room", "dan")
        there.chat.send("cellar", "mine", user="bob")
        assert pair.sync(here.chat, 1, "digest")["equal"]
        here.chat.send_many([("room", f"here {n}") for n in range(7)], user="ann")
        here.chat.put_identity("ann", b"key")
        here.chat.remove("room", "cid")  # both have changed his row
        there.chat.add("room", "cid", role="admin")
        there.chat.remove("room", "dan")
        there.chat.send_many([("cellar", f"there {n}") for n in range(5)], user="bob")
        roots = [tmp_path / "first", tmp_path / "second"][:archives]
        places = [connection_options(str(daemon.run.socket), 60.0) for daemon in pair.daemons]
        for place, root in zip(places, roots, strict=False):
            archive.run(Without(), archive.Options(place, (chat_log.TOPIC,), root))
        plan = tmp_path / "plan.ndjson"
        second = roots[1] if archives == 2 else None
        report = anti_entropy.run(Without(), anti_entropy.Options(places[1], roots[0], second, plan=plan))
        before = [ids_of(client) for client in (here, there)]
        found = pair.sync(here.chat, 1, method)
        assert found["equal"]
        # How many of each domain went which way, and of the messages which ones.
        told = {row["domain"]: (row["second_lacks"], row["first_lacks"]) for row in report.rows}
        assert told == {name: (one["sent"], one["received"]) for name, one in found["domains"].items()}
        assert told == {"messages": (7, 5), "members": (2, 2), "identities": (1, 0)}
        lines = [json.loads(line) for line in plan.read_text().splitlines()]
        for client, had, side in zip((here, there), before, ("first", "second"), strict=True):
            lacked = {line["id"] for line in lines if (line["domain"], line["lacks"]) == ("messages", side)}
            assert ids_of(client) - had == lacked


def test_what_is_no_chat_log_is_refused(where: ConnectionOptions, client: Client, tmp_path: Path) -> None:
    with pytest.raises(TopicNotFound, match="has no chat log"):
        chat_log.open_log(where, tmp_path)
    client.publish("plain", b"x")
    archive.run(Without(), archive.Options(where, ("plain",), tmp_path))
    with pytest.raises(TopicNotFound, match="has no chat log"):
        chat_log.open_log(where, tmp_path)


def test_a_log_without_its_beginning_is_refused(daemon: Daemon, where: ConnectionOptions, archived: Path) -> None:
    manifest = archived / "_manifest.json"
    text = manifest.read_text()
    body = json.loads(text)
    (topic,) = body["topics"]
    topic["first_seq"], topic["count"] = 2, topic["count"] - 1
    manifest.write_text(json.dumps(body))
    try:
        with pytest.raises(Conflict, match="gone before it was archived"):
            chat_log.open_log(where, archived)
    finally:
        manifest.write_text(text)


def test_the_command_line_has_them(
    daemon: Daemon, client: Client, archived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(*words: str) -> dict[str, Any]:
        with pytest.raises(SystemExit) as left:
            main(["--socket", str(daemon.run.socket), "pipeline", "run", *words, "--json"])
        assert left.value.code in (None, 0)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert ran("digests", "--dry-run")["dry_run"]
    assert {row["domain"] for row in ran("digests")["rows"]} == {"messages", "members", "identities"}
    assert ran("inbox-rollup", "--top", "1")["users"] > 1
    assert ran("retention-plan", "--older-than", "1d", "--archive", str(archived))["messages"] == 0
    assert ran("anti-entropy", str(archived))["equal"]
