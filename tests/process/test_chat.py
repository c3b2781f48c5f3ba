"""The chat store in a real daemon: what users do, what listeners hear, what survives."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import topicd
import topicd.aio
from tests.process.cli_kit import run_ctl
from tests.support.chatpair import CHAT, Pair
from tests.support.daemon import Daemon, wait_until
from tests.support.promtext import Exposition
from topicd.client.blocking.chat import Chat
from topicd.client.core import requests
from topicd.client.core.chat import ChatMessage, InboxChange, Sent, Signal
from topicd.errors import Conflict, Forbidden, FormatError, InvalidRequest, StorageCorrupt, TopicdError
from topicd.limits import CHAT_KEEPER
from topicd.metrics import render
from topicd.shards.chat.operations import Entry, unpacked
from topicd.tokens import new_token


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("chat"), wal_shards=1, delivery_shards=1, env=CHAT) as made:
        yield made


@pytest.fixture
def chat(daemon: Daemon) -> Chat:
    return daemon.client().chat


def verified(chat: Chat) -> None:
    found = chat.verify()
    assert found["differences"] == []
    assert found["rows"] > 0


def test_messages_members_inboxes_and_identities(chat: Chat) -> None:
    sent = chat.send("kitchen", "dinner is ready", user="ann")
    assert sent.seq == 1
    chat.add("kitchen", "bob", user="ann")
    (row,) = chat.inbox("bob").chats
    assert (row.chat_name, row.preview, row.unread, row.last_sender_name) == ("kitchen", "dinner is ready", 1, "ann")
    assert chat.mark("kitchen", 1, user="bob") == 1
    assert chat.inbox("bob").chats[0].unread == 0
    chat.send("@ann", "coming", user="bob")
    assert [(one.kind, one.peer_name) for one in chat.inbox("ann").chats] == [("dm", "bob"), ("group", "")]
    assert [(one.name, one.role) for one in chat.members("kitchen")] == [("bob", "participant"), ("ann", "admin")] or [
        (one.name, one.role) for one in chat.members("kitchen")
    ] == [("ann", "admin"), ("bob", "participant")]
    assert chat.put_identity("ann", b"public key")
    assert chat.identity("ann") == b"public key"
    assert chat.identity("nobody") is None
    chat.remove("kitchen", "bob", user="ann")
    with pytest.raises(Forbidden, match="not a member"):
        chat.send("kitchen", "still here", user="bob")
    with pytest.raises(Forbidden, match="not a member"):
        chat.read("kitchen", user="bob")
    assert [one.kind for one in chat.inbox("bob").chats] == ["dm"]
    verified(chat)


def test_S01_stats_list_every_table(daemon: Daemon, chat: Chat) -> None:
    chat.send("stats", "x", user="ann")
    found = chat.stats()
    assert set(found["tables"]) == {
        *("default", "messages", "seen_msg", "chats_meta", "user_inbox", "members"),
        *("user_read_progress", "identity", "seen_member", "seen_identity"),
    }
    assert found["tables"]["messages"] == found["tables"]["seen_msg"] > 0
    assert found["applied_seq"] == found["head_seq"]
    told = dict(
        line.split()[:2] for line in run_ctl(daemon, "chat", "stats").stdout.splitlines() if len(line.split()) == 2
    )
    assert {name: int(told[name].replace(",", "")) for name in found["tables"]} == found["tables"]


def test_S04_ids_and_names_that_are_none_are_refused_and_nothing_changes(chat: Chat) -> None:
    chat.send("room", "x", user="ann")
    before = chat.stats()["head_seq"]
    for wrong in (
        lambda: chat.send("", "x", user="ann"),
        lambda: chat.send("a\nb", "x", user="ann"),
        lambda: chat.send("room", "x", user=""),
        lambda: chat.send("room", "x" * 70_000, user="ann"),
        lambda: chat.send("room", "x", user="ann", id="abcd"),
        lambda: chat.send("room", "x", user="ann", blob=b"only between two"),
        lambda: chat.send("@bob", "x", user="ann", blob=bytes(129)),
        lambda: chat.read("room", after="nonsense"),
        lambda: chat.read("room", limit=0),
        lambda: chat.read("room", limit=1_001),
        lambda: chat.inbox("ann", after="nonsense"),
        lambda: chat.put_identity("ann", bytes(1_025)),
        lambda: chat.put_identity("ann", b""),
        lambda: chat.add("@bob", "cid"),
        lambda: chat.mark("room", -1, user="ann"),
        chat.retain,
        lambda: chat.retain(cutoff_ms=1 << 47),
        lambda: chat.sync("unix:///nowhere"),
        lambda: next(chat.watch("@bob")),
    ):
        with pytest.raises(InvalidRequest):
            wrong()
    assert chat.stats()["head_seq"] == before


def test_S07_the_same_id_is_stored_once(chat: Chat) -> None:
    first = chat.send("once", "hello", user="ann", id="ab" * 32)
    again = chat.send("once", "hello", user="ann", id="ab" * 32)
    assert (first.seq, again.seq, again.cursor) == (1, 0, "")
    assert len(chat.read("once").messages) == 1


def test_S13_pages_of_seven_and_back_again(chat: Chat) -> None:
    sent = chat.send_many([("paged", str(number)) for number in range(100)], user="ann")
    assert [one.seq for one in sent if not isinstance(one, TopicdError)] == list(range(1, 101))
    assert [one.text for one in chat.messages("paged")] == [str(number) for number in range(100)]
    found, after = [], ""
    while True:
        page = chat.read("paged", after=after, limit=7)
        found += [one.text for one in page.messages]
        after = page.next
        if not after:
            break
    assert found == [str(number) for number in range(100)]
    assert [one.text for one in chat.read("paged", newest=True, limit=3).messages] == ["97", "98", "99"]


def test_a_batch_says_of_each_message_what_became_of_it(chat: Chat) -> None:
    chat.send("closed", "mine", user="ann")
    results = chat.send_many([("closed", "one"), ("closed", "two", "stranger"), ("@bob", "three")], user="ann")
    assert [getattr(one, "code", "stored") for one in results] == ["stored", "forbidden", "stored"]


def test_a_channel_is_for_its_admins(chat: Chat) -> None:
    chat.send("news", "welcome", user="ann", kind="channel")
    chat.add("news", "bob", user="ann")
    with pytest.raises(Forbidden, match="only admins send"):
        chat.send("news", "me too", user="bob")
    assert len(chat.read("news", user="bob").messages) == 1


def test_S14_progress_is_bounded_by_what_there_is(chat: Chat) -> None:
    chat.send("progress", "x", user="ann")
    chat.add("progress", "bob")
    with pytest.raises(Conflict, match="the chat has 1 message, not 2"):
        chat.mark("progress", 2, user="bob")


def test_S19_what_is_got_are_the_bytes_that_were_put_last(daemon: Daemon, chat: Chat) -> None:
    for blob in (b"first", bytes(range(256)) * 4):
        assert chat.put_identity("key owner", blob)
        assert chat.identity("key owner") == blob
    told = run_ctl(daemon, "chat", "identity", "get", "key owner", "--json").stdout
    assert json.loads(told)["hex"] == blob.hex()
    with pytest.raises(InvalidRequest, match="1024"):
        chat.put_identity("key owner", blob + b"x")
    assert chat.identity("key owner") == blob


def test_S24_the_log_shows_all_operations_in_their_order(daemon: Daemon, chat: Chat) -> None:
    """Also those that were refused when their turn came: whoever replays it comes to the same."""
    client = daemon.client()
    before = client.state("topicd.chat.00").head_seq
    chat.send("audited", "one", user="ann")
    chat.add("audited", "bob", user="ann")
    chat.mark("audited", 1, user="bob")
    with pytest.raises(Forbidden):
        chat.add("audited", "cid", user="bob")
    chat.remove("audited", "bob", user="ann")
    chat.put_identity("ann", b"key")
    entries = [unpacked(record.data) for record in client.fetch("topicd.chat.00", before)]
    done = [type(op).__name__ for entry in entries if isinstance(entry, Entry) for op in entry.operations]
    assert done == ["Send", "Add", "Mark", "Add", "Remove", "PutIdentity"]


def collected(events: Iterator[Any], into: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            for event in events:
                into.append(event)
        except TopicdError as exc:
            into.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_listener_hears_messages_and_signals_and_a_kill_leaves_no_hole(daemon: Daemon, chat: Chat) -> None:
    chat.send("live", "before", user="ann")
    heard: list[Any] = []
    listener = daemon.client()
    collected(listener.chat.watch("live", after_seq=0), heard)
    wait_until(lambda: len(heard) == 1, "the first message")
    wait_until(lambda: chat.signal("live", "typing", user="ann", data=b"..."), "somebody listens")
    wait_until(lambda: any(isinstance(one, Signal) for one in heard), "the signal")
    for number in range(5):
        chat.send("live", str(number), user="ann")
    daemon.kill("chat-00")
    for number in range(5, 300):
        chat.send_many([("live", str(number))], user="ann") if number > 250 else None
    chat.send_many([("live", f"many {number}") for number in range(1_500)], user="ann")
    wait_until(lambda: sum(isinstance(one, ChatMessage) for one in heard) == 1 + 5 + 49 + 1_500, "everything")
    seqs = [one.seq for one in heard if isinstance(one, ChatMessage)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert chat.stats(rows=False)["signals"] == 0  # it was started anew, and keeps none
    verified(chat)


def test_an_inbox_is_heard_whole_and_then_as_it_changes(daemon: Daemon, chat: Chat) -> None:
    for number in range(3):
        chat.send(f"inbox {number}", "x", user="eve")
    changes: list[Any] = []
    listener = daemon.client()
    collected(listener.chat.watch_inbox("eve"), changes)
    wait_until(lambda: len(changes) == 3, "the rows that are there")
    assert all(isinstance(one, InboxChange) and one.first for one in changes)
    chat.add("inbox 0", "fred")
    chat.send("inbox 0", "news", user="fred")
    wait_until(lambda: any(one.row and one.row.preview == "news" for one in changes), "the change")
    chat.remove("inbox 1", "eve")
    gone = wait_until(lambda: [one for one in changes if one.row is None], "that it is gone")
    assert gone[0].chat == chat.info("inbox 1")["chat"]


def test_a_removed_member_hears_no_more(daemon: Daemon, chat: Chat) -> None:
    chat.send("secret", "x", user="ann")
    chat.add("secret", "bob")
    heard: list[Any] = []
    listener = daemon.client()
    collected(listener.chat.watch("secret", user="bob", after_seq=0), heard)
    wait_until(lambda: len(heard) == 1, "the first message")
    wait_until(lambda: chat.signal("secret", "typing", user="ann") == 1, "he listens")
    assert chat.remove("secret", "bob")
    assert chat.signal("secret", "typing", user="ann") == 0
    wait_until(lambda: isinstance(heard[-1], TopicdError), "the end, without a message")
    chat.send("secret", "without bob", user="ann")
    assert [type(one) for one in heard] == [ChatMessage, Signal, Forbidden]
    assert not chat.remove("secret", "bob")


def test_the_asyncio_face_does_the_same(daemon: Daemon) -> None:
    async def scene() -> None:
        async with topicd.aio.connect(daemon.run.root) as client:
            chat = client.chat
            sent = await chat.send("async", "hello", user="ann")
            assert sent.seq == 1
            many = await asyncio.gather(*(chat.send("async", str(number), user="ann") for number in range(50)))
            assert sorted(one.seq for one in many) == list(range(2, 52))
            assert [one.seq async for one in chat.messages("async")] == sorted(range(1, 52))
            heard = []
            async for event in chat.watch("async", after_seq=0):
                heard.append(event)
                if len(heard) == 51:
                    break
            assert [one.seq for one in heard if isinstance(one, ChatMessage)] == list(range(1, 52))
            async for change in chat.watch_inbox("ann"):
                assert change.row is not None
                break

    asyncio.run(scene())


def test_asyncio_listeners_have_no_hole_after_a_kill_and_hear_their_removal(tmp_path: Path) -> None:
    async def scene(daemon: Daemon) -> None:
        async with topicd.aio.connect(daemon.run.root) as client:
            chat = client.chat
            await chat.send("aio live", "0", user="ann")
            await chat.add("aio live", "bob")
            heard: list[Any] = []

            async def listen() -> None:
                async for event in chat.watch("aio live", user="bob", after_seq=0):
                    heard.append(event)

            async def until(count: int) -> None:
                async with asyncio.timeout(60):
                    while len(heard) < count:
                        await asyncio.sleep(0.01)

            listener = asyncio.ensure_future(listen())
            await until(1)
            for round in range(2):
                daemon.kill("chat-00")
                rows = [("aio live", f"{round} {number}") for number in range(700)]
                assert all(isinstance(one, Sent) for one in await chat.send_many(rows, user="ann"))
                await until(1 + 700 * (round + 1))
            assert [one.seq for one in heard] == list(range(1, 1_402))
            await chat.remove("aio live", "bob")
            with pytest.raises(Forbidden, match="not a member"):
                await asyncio.wait_for(listener, 30)
            assert len(heard) == 1_401

    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, env=CHAT) as made:
        asyncio.run(scene(made))


def more_than(acked: list[str], count: int) -> None:
    before = len(acked)
    wait_until(lambda: len(acked) > before + count, "messages")


@pytest.mark.fault("CHT-01")
def test_S21_S24_kills_leave_each_acknowledged_message_once_and_the_store_as_its_log(
    daemon: Daemon, chat: Chat
) -> None:
    acked: list[str] = []
    for victim in ("chat-00", "dlv-00", "wal-00", "chat-00"):
        stop = threading.Event()

        def load(stop: threading.Event = stop) -> None:
            client = daemon.client()
            while not stop.is_set():
                acked.append(client.chat.send("storm", str(len(acked)), user="ann").id)

        thread = threading.Thread(target=load)
        thread.start()
        more_than(acked, 20)
        daemon.kill(victim)
        more_than(acked, 20)
        stop.set()
        thread.join()
    ids = [one.id for one in chat.messages("storm")]
    assert sorted(ids) == sorted(set(ids))
    assert set(acked) <= set(ids)
    assert chat.digest() == chat.digest(fresh=True)
    verified(chat)


def test_the_store_is_made_anew_from_its_log(daemon: Daemon, chat: Chat) -> None:
    chat.send("rebuilt", "x", user="ann")
    before = chat.digest()
    assert chat.rebuild()["rows"] > 0
    assert chat.digest() == before
    assert chat.send("rebuilt", "y", user="ann").seq == 2
    verified(chat)


@pytest.mark.fault("CHT-03")
def test_the_log_is_written_by_the_chat_process_alone(daemon: Daemon, chat: Chat) -> None:
    chat.send("guarded", "one", user="ann")
    client = daemon.client()
    name = "topicd.chat.00"
    head = client.state(name).head_seq
    for foreign in (
        lambda: client.publish(name, b"garbage"),
        lambda: client.publish_many(name, [b"garbage"] * 3),
        lambda: client.publish(name, b"garbage", key="k"),
        lambda: client.delete(name, before_seq=head),
        lambda: client.cut(name, after_seq=0),
        lambda: client.configure(name, ttl_ms=1_000),
        lambda: client.delete_topic(name),
        lambda: client.caller.ask(requests.configure("topicd.chat.07", {}, internal=True)),
        lambda: client.caller.ask(requests.configure(f"topicd.channel.{'0' * 64}.1", {}, internal=True)),
    ):
        with pytest.raises(Forbidden, match="only topicd itself"):
            foreign()
    assert client.state(name).head_seq == head
    # Who calls itself like that process is none of topicd's own for it.
    connection = client.caller.dial(client.caller.shard_map.shard_of(name), 5)
    try:
        connection.ask(requests.hello(None, CHAT_KEEPER))
        with pytest.raises(Forbidden, match="only topicd itself"):
            connection.ask(requests.configure(name, {"ttl_ms": 1_000}, internal=True))
    finally:
        connection.close()
    assert chat.send("guarded", "two", user="ann").seq == 2
    assert chat.stats(rows=False)["unreadable"] == 0
    verified(chat)


@pytest.mark.fault("CHT-08")
def test_verify_tells_a_row_that_the_log_does_not_make(tmp_path: Path) -> None:
    from topicd.shards.chat.store import USER_READ_PROGRESS, RocksStore, Writes

    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, env=CHAT) as made:
        made.client().chat.send("room", "x", user="ann")
        made.stop()
        store = RocksStore(made.data.chat(0) / "rocks").open()
        writes = Writes()
        writes.put(USER_READ_PROGRESS, bytes(52), bytes(4))
        store.write(writes)
        store.close()
        made.start().wait_ready()
        client = made.client()
        (found,) = client.chat.verify()["differences"]
        assert (found["table"], found["key"], found["log"]) == ("user_read_progress", "00" * 52, None)
        client.chat.rebuild()
        assert client.chat.verify()["differences"] == []


@pytest.mark.fault("CHT-07")
def test_a_store_that_is_gone_comes_back_from_base_and_log(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, env={**CHAT, "TOPICD_CHAT_LOG_BYTES": "2KiB"}) as made:
        chat = made.client().chat
        for number in range(60):
            chat.send("room", f"text {number}", user="ann")
        wait_until(lambda: chat.stats(rows=False)["base_seq"] > 0, "a base", 60)
        chat.send("room", "after the base", user="ann")
        assert made.client().state("topicd.chat.00").earliest_seq > 1
        verified(chat)
        before = chat.digest()
        made.stop()
        shutil.rmtree(made.data.chat(0) / "rocks")
        made.start().wait_ready()
        chat = made.client().chat
        assert chat.digest() == before
        assert len(list(chat.messages("room"))) == 61
        verified(chat)


def test_a_store_whose_log_has_a_hole_is_closed_and_the_rest_of_the_daemon_serves(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, env={**CHAT, "TOPICD_CHAT_LOG_BYTES": "2KiB"}) as made:
        chat = made.client().chat
        for number in range(60):
            chat.send("room", f"text {number}", user="ann")
        wait_until(lambda: chat.stats(rows=False)["base_seq"] > 0, "a base", 60)
        with pytest.raises(InvalidRequest, match="this log is whole"):
            chat.rebuild(over_holes=True)
        made.stop()
        for path in (made.data.chat(0) / "rocks", *made.data.chat(0).glob("base-*")):
            shutil.rmtree(path)
        made.start().wait_ready()
        client = made.client()
        assert client.publish("topic", b"x") == 1
        missing = r"closed: the log topicd\.chat\.00 has no entr(y 1|ies 1 to \d+) any more"
        for ask in (lambda: client.chat.send("room", "more", user="ann"), lambda: client.chat.inbox("ann")):
            with pytest.raises(StorageCorrupt, match=missing):
                ask()
        said = run_ctl(made, "chat", "read", "room", "--as", "ann", "--json", code=1).stderr
        assert "storage_corrupt" in said
        assert any("closed" in row["what"] for row in made.status()["processes"] if row["name"] == "chat-00")
        wait_until(lambda: Exposition(render(made.status())).value("topicd_chat_closed", shard="00") == 1, "the metric")
        with pytest.raises(FormatError, match="has no entr"):
            client.chat.rebuild()
        old = made.kill("chat-00")
        made.wait_replaced("chat-00", old)
        made.wait_ready()
        with pytest.raises(StorageCorrupt, match=missing):
            client.chat.inbox("ann")
        # Somebody decides to go on without.
        run_ctl(made, "chat", "rebuild", "--over-holes", "--yes")
        gone = client.chat.stats(rows=False)["unreadable"]
        assert gone > 0
        assert made.log.count("any more") >= 1
        assert client.chat.send("room", "a new beginning", user="ann").seq >= 1
        verified(client.chat)
        made.restart()
        chat = made.client().chat
        verified(chat)
        assert chat.stats(rows=False)["unreadable"] == gone
        assert [one.text for one in chat.messages("room")][-1] == "a new beginning"


def test_a_store_that_cannot_be_opened_is_closed_until_it_is_made_anew(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, env=CHAT) as made:
        chat = made.client().chat
        chat.send_many([("room", str(number)) for number in range(50)], user="ann")
        before = chat.digest()
        made.stop()
        (made.data.chat(0) / "rocks" / "CURRENT").write_bytes(b"garbage")
        made.start().wait_ready()
        client = made.client()
        assert client.publish("topic", b"x") == 1
        with pytest.raises(StorageCorrupt, match="cannot be opened"):
            client.chat.inbox("ann")
        client.chat.rebuild()
        assert client.chat.digest() == before
        verified(client.chat)
        made.restart()
        assert made.client().chat.digest() == before


def test_S23_old_messages_go_for_good(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, env=CHAT) as made:
        chat = made.client().chat
        chat.send_many([("room", str(number)) for number in range(50)], user="ann")
        cutoff = max(one.ms for one in chat.messages("room"))
        wait_until(lambda: chat.send("room", "new", user="ann").seq and chat.read("room", newest=True, limit=1), "time")
        planned = chat.retain(cutoff_ms=cutoff, dry_run=True)
        assert planned["messages"] >= 50
        assert len(list(chat.messages("room"))) > 50
        done = chat.retain(cutoff_ms=cutoff)
        assert done["messages"] == planned["messages"]
        left = list(chat.messages("room"))
        assert left
        assert all(one.ms > cutoff for one in left)
        assert chat.stats()["tables"]["seen_msg"] == len(left)
        assert chat.digest() == chat.digest(fresh=True)
        with pytest.raises(InvalidRequest, match="future"):
            chat.retain(older_than=timedelta(days=-1))
        verified(chat)


def test_a_daemon_without_chat_says_so(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as made:
        with pytest.raises(InvalidRequest, match="--chat"):
            made.client().chat.inbox("ann")


def topicctl(daemon: Daemon, *args: str, code: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "topicd.cli.main", "chat", *args, "--socket", str(daemon.run.root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == code, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_the_command_line_does_it_all(daemon: Daemon, tmp_path: Path) -> None:
    key = tmp_path / "key.pub"
    key.write_bytes(b"ssh-ed25519")
    assert "lobby#1" in topicctl(daemon, "send", "lobby", "hello", "--as", "zoe")
    topicctl(daemon, "add", "lobby", "yan", "--role", "admin")
    assert "lobby" in topicctl(daemon, "inbox", "--as", "yan")
    assert "zoe: hello" in topicctl(daemon, "read", "lobby", "--as", "yan")
    assert "up to 1" in topicctl(daemon, "mark", "lobby", "1", "--as", "yan")
    assert "admin" in topicctl(daemon, "members", "lobby")
    topicctl(daemon, "remove", "lobby", "yan")
    assert "not a member" in topicctl(daemon, "read", "lobby", "--as", "yan", code=5)
    topicctl(daemon, "identity", "put", "--as", "zoe", str(key))
    assert "ssh-ed25519" in topicctl(daemon, "identity", "get", "zoe")
    topicctl(daemon, "identity", "get", "nobody", code=4)
    assert json.loads(topicctl(daemon, "stats", "--json"))["tables"]["messages"] > 0
    assert set(json.loads(topicctl(daemon, "digest", "--json"))["domains"]) == {"messages", "members", "identities"}
    assert "to be removed" in topicctl(daemon, "retain", "--older-than", "90d", "--dry-run")
    assert "as the log says" in topicctl(daemon, "verify")
    topicctl(daemon, "rebuild", "--yes")
    topicctl(daemon, "rebuild", code=2)
    topicctl(daemon, "sync", "nowhere", code=2)


# ---- two stores ----


def shown(chat: Chat, user: str) -> list[tuple[Any, ...]]:
    """An inbox as two stores must agree on it: seqs are each store's own."""
    return [(one.chat, one.kind, one.ms, one.last_id, one.last_sender, one.preview) for one in chat.inbox(user).chats]


def test_two_stores_become_equal_by_both_methods(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        here, there = pair.chats()
        for method in ("digest", "negentropy"):
            here.send("room", f"from here, {method}", user="ann")
            here.add("room", "bob", role="admin")
            here.put_identity("ann", method.encode())
            there.send("cellar", f"from there, {method}", user="cid")
            there.send_many([("cellar", f"{method} {number}") for number in range(700)], user="cid")
            there.send("@ann", "psst", user="cid")
            found = pair.sync(here, 1, method)
            assert found["equal"]
            assert (found["domains"]["messages"]["sent"], found["domains"]["messages"]["received"]) == (1, 702)
            assert here.digest() == there.digest()
            again = pair.sync(there, 0, method)
            assert again["equal"]
            assert all(one["sent"] == one["received"] == 0 for one in again["domains"].values())
        for user in ("ann", "bob", "cid"):
            assert shown(here, user) == shown(there, user)
        assert there.identity("ann") == b"negentropy"
        assert [one.name for one in there.members("room")] == [one.name for one in here.members("room")]
        # A removal here, an addition there that knows nothing of it and is older.
        here.remove("room", "bob")
        assert pair.sync(there, 0, "negentropy")["equal"]
        assert "bob" not in [one.name for one in there.members("room")]
        with pytest.raises(Forbidden):
            there.send("room", "still here", user="bob")
        for chat in (here, there):
            verified(chat)


def test_what_one_store_has_forgotten_the_other_does_not_give_it_back(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        here, there = pair.chats()
        here.send_many([("room", str(number)) for number in range(20)], user="ann")
        assert pair.sync(here, 1, "negentropy")["equal"]
        cutoff = max(one.ms for one in here.messages("room"))
        here.retain(cutoff_ms=cutoff)
        for method in ("digest", "negentropy"):
            found = pair.sync(there, 0, method)
            assert found["equal"]
            assert found["cutoff_ms"] == cutoff
        assert list(here.messages("room")) == []
        assert len(list(there.messages("room"))) == 20


def test_a_token_without_the_scope_and_a_store_that_is_itself_are_refused(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        here, _ = pair.chats()
        with pytest.raises(TopicdError, match="token is not known"):
            here.sync(f"tcp://127.0.0.1:{pair.ports[1]}", token="tpd_wrong")
        with pytest.raises(InvalidRequest, match="itself"):
            pair.sync(here, 0, "digest")
        with pytest.raises(Conflict, match="not there"):
            here.sync("tcp://127.0.0.1:1", token=pair.secret)
        # The peer's token may compare stores and do nothing else.
        from topicd.client.blocking.connection import dial
        from topicd.client.core import chat as requests
        from topicd.client.core.address import parse

        connection = dial(parse(f"tcp://127.0.0.1:{pair.ports[1]}", {}), 5.0, pair.secret)
        with pytest.raises(Forbidden, match="no read right"):
            connection.ask(requests.inbox("ann", "", 10))
        connection.close()


def test_two_stores_over_tls_and_a_client_with_a_token(tmp_path: Path) -> None:
    from tests.support.certs import Authority
    from tests.support.ports import free_ports

    authority = Authority(tmp_path)
    made = authority.issue("server")
    secrets = {name: new_token() for name in ("peer", "ann")}
    scopes = {"peer": ["sync"], "ann": ["read", "write"]}
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes[name])}\n'
            for name, (_, digest) in secrets.items()
        )
    )
    port = free_ports(2)
    environ = {
        **CHAT,
        "TOPICD_LISTEN_TCP": f"127.0.0.1:{port}",
        "TOPICD_CHAT_LISTEN": f"127.0.0.1:{port + 1}",
        "TOPICD_TLS_CERT": str(made.cert),
        "TOPICD_TLS_KEY": str(made.key),
        "TOPICD_TOKENS_FILE": str(tokens),
    }
    with (
        Daemon(tmp_path / "one", wal_shards=1, delivery_shards=1, env=environ) as one,
        Daemon(tmp_path / "two", wal_shards=1, delivery_shards=1, env=CHAT) as two,
    ):
        one.client().chat.send("room", "hello", user="ann")
        target = f"tls://127.0.0.1:{port + 1}?ca_file={authority.own.cert}"
        found = two.client().chat.sync(target, token=secrets["peer"][0])
        assert found["equal"]
        assert [message.text for message in two.client().chat.messages("room")] == ["hello"]
        where = f"tls://127.0.0.1:{port}"
        with topicd.connect(where, token=secrets["ann"][0], ca_file=authority.own.cert) as client:
            assert client.chat.send("room", "over TLS", user="ann").seq == 2
            assert len(client.chat.inbox("ann").chats) == 1
            with pytest.raises(Forbidden, match="cannot act as"):
                client.chat.send("room", "as somebody else", user="bob")
            with pytest.raises(Forbidden, match="no admin right"):
                client.chat.verify()


def test_S25_the_engine_has_the_settings_that_the_page_names(tmp_path: Path) -> None:
    from topicd.config import FIELDS, Settings
    from topicd.shards.chat.shard import tuning_of

    page = (Path(__file__).resolve().parents[2] / "docs" / "chat.md").read_text()
    for name in ("chat_threads", "chat_cache_bytes", "chat_memtable_bytes", "chat_durability", "disk_sync_ms"):
        assert name in FIELDS
        assert f"`{name}`" in page
    tuning = tuning_of(Settings(chat_cache_bytes=1 << 21, chat_memtable_bytes=1 << 22, chat_threads=3))
    assert tuning[:3] == (1 << 21, 1 << 22, 3)
    assert (tuning.bloom_bits, tuning.log_files) == (10.0, 5)
