"""A chat store whose log or files are damaged: what is said, what goes on, and how it is mended."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.cli_kit import run_ctl
from tests.support.chatpair import CHAT, Pair, Wire
from tests.support.daemon import Daemon, wait_until
from topicd.client.blocking.chat import Chat
from topicd.errors import Conflict, ConnectionLost, FormatError, InvalidRequest, StorageCorrupt

LITTLE = {"TOPICD_CHECKPOINT_MS": "100", "TOPICD_SNAPSHOT_MS": "200"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1, env={**CHAT, **LITTLE}) as made:
        yield made


def filled(daemon: Daemon) -> Chat:
    chat = daemon.client().chat
    for number in range(20):
        chat.send_many([("room", f"{number} {'x' * 300}") for _ in range(10)], user="ann")
    return chat


def damage(daemon: Daemon) -> None:
    """Bytes in the middle of the log, once they are in a segment only."""

    def segment() -> Path | None:
        found = [path for path in daemon.data.root.glob("topics/*/seg-*.data") if path.stat().st_size > 60_000]
        return found[0] if found else None

    path = wait_until(segment, "a segment")
    daemon.stop()
    raw = bytearray(path.read_bytes())
    at = len(raw) // 2
    raw[at : at + 200] = bytes(byte ^ 0xFF for byte in raw[at : at + 200])
    path.write_bytes(raw)


@pytest.mark.fault("CHT-09")
def test_a_store_that_has_what_its_log_lost_serves_on_and_becomes_the_base(daemon: Daemon) -> None:
    before = filled(daemon).digest()
    damage(daemon)
    daemon.start().wait_ready()
    chat = daemon.client().chat
    assert chat.digest() == before
    for ask in (chat.verify, chat.rebuild):
        with pytest.raises(StorageCorrupt, match=r"fails its checksum|cannot be read"):
            ask()
    assert chat.send("room", "all the same", user="ann").seq == 201
    run_ctl(daemon, "chat", "rebuild", "--over-holes", "--yes")
    assert len(list(chat.messages("room"))) == 201
    assert chat.verify()["differences"] == []
    with pytest.raises(InvalidRequest, match="this log is whole"):
        chat.rebuild(over_holes=True)
    assert chat.stats(rows=False)["unreadable"] == 0
    daemon.stop()
    shutil.rmtree(daemon.data.chat(0) / "rocks")
    daemon.start().wait_ready()
    assert len(list(daemon.client().chat.messages("room"))) == 201


@pytest.mark.parametrize("files", ["gone", "broken"])
@pytest.mark.fault("CHT-09")
def test_what_neither_store_nor_log_has_is_given_up_when_somebody_says_so(daemon: Daemon, files: str) -> None:
    filled(daemon)
    damage(daemon)
    rocks = daemon.data.chat(0) / "rocks"
    if files == "gone":
        shutil.rmtree(rocks)
    else:
        (rocks / "CURRENT").write_bytes(b"garbage")
    daemon.start().wait_ready()
    client = daemon.client()
    assert client.publish("topic", b"x") == 1
    with pytest.raises(StorageCorrupt, match="closed"):
        client.chat.inbox("ann")
    with pytest.raises((StorageCorrupt, FormatError)):
        client.chat.rebuild()
    client.chat.rebuild(over_holes=True)
    left = len(list(client.chat.messages("room")))
    gone = client.chat.stats(rows=False)["unreadable"]
    assert gone > 0
    assert left == 200 - 10 * gone
    assert client.chat.verify()["differences"] == []
    daemon.restart()
    assert len(list(daemon.client().chat.messages("room"))) == left


@pytest.mark.fault("CHT-07")
def test_a_store_ahead_of_a_log_that_lost_its_tail_is_made_anew(daemon: Daemon, tmp_path: Path) -> None:
    """As a loss of power leaves it, where the store's files were flushed and the log's end was not."""
    chat = filled(daemon)
    before = chat.digest()
    daemon.stop()
    root = daemon.data.root
    shutil.copytree(root, tmp_path / "before")
    daemon.start().wait_ready()
    daemon.client().chat.send_many([("room", "lost"), ("cellar", "lost, too")], user="ann")
    daemon.stop()
    shutil.copytree(root / "chat", tmp_path / "before" / "chat", dirs_exist_ok=True)
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "before", root)
    left = [daemon.data.chat(0) / name for name in ("rocks.flush", "rocks.flush.tmp", "verify", "base.new.tmp")]
    for scratch in left:
        scratch.mkdir()
    daemon.start().wait_ready()
    chat = daemon.client().chat
    assert "ahead of its log" in daemon.log
    assert not any(scratch.exists() for scratch in left)
    assert chat.digest() == before
    assert chat.send("room", "new", user="ann").seq == 201
    assert chat.verify()["differences"] == []


def test_a_rebuild_waits_for_those_who_read(daemon: Daemon) -> None:
    """Whoever is in the middle of all rows keeps the old files open, and the new ones have the same place."""
    chat = daemon.client().chat
    for _ in range(8):
        chat.send_many([("room", str(number)) for number in range(1_000)], user="ann")
    before, stop, failed = chat.digest(), threading.Event(), []

    def read() -> None:
        own = daemon.client().chat
        while not stop.is_set():
            try:
                assert own.digest(fresh=True) == before
                assert own.stats()["tables"]["messages"] == 8_000
            except BaseException as exc:
                failed.append(exc)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for one in readers:
        one.start()
    for _ in range(3):
        chat.rebuild()
    stop.set()
    for one in readers:
        one.join()
    assert failed == []
    assert chat.send("room", "served on", user="ann").seq == 8_001
    assert [row["restarts"] for row in daemon.status()["processes"] if row["name"] == "chat-00"] == [0]


def test_a_copy_of_a_store_is_another_store(tmp_path: Path) -> None:
    """As a restored backup on a second machine is."""
    with Pair(tmp_path) as pair:
        here, there = pair.daemons
        here.client().chat.send("room", "both", user="ann")
        here.stop()
        there.stop()
        shutil.rmtree(there.data.root)
        shutil.copytree(here.data.root, there.data.root)
        for daemon in pair.daemons:
            daemon.start().wait_ready()
        one, other = pair.chats()
        one.send("room", "here", user="ann")
        other.send("room", "there", user="ann")
        found = pair.sync(one, 1, "negentropy")
        assert found["equal"]
        assert {message.text for message in other.messages("room")} == {"both", "here", "there"}


def test_who_compares_is_told_that_it_is_the_other_store_that_is_closed(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        here, there = pair.daemons
        here.client().chat.send("room", "x", user="ann")
        there.stop()
        (there.data.chat(0) / "rocks" / "CURRENT").write_bytes(b"garbage")
        there.start().wait_ready()
        with pytest.raises(StorageCorrupt, match=r"^the other store: the chat store is closed"):
            pair.sync(here.client().chat, 1, "digest")
        assert here.client().chat.inbox("ann").chats[0].unread == 0


def test_records_of_a_far_future_are_refused_and_all_others_exchanged(tmp_path: Path) -> None:
    with Pair(tmp_path, 0, 50 * 3_600_000) as pair:
        here, there = pair.chats()
        here.send_many([("room", str(number)) for number in range(5)], user="ann")
        there.send("cellar", "of the day after tomorrow", user="bob")
        for side in (here, there):
            found = pair.sync(side, 0 if side is there else 1, "digest")
            assert not found["equal"]
            assert (found["domains"]["messages"]["refused"], found["domains"]["members"]["refused"]) == (1, 1)
        assert len(list(there.messages("room"))) == 5
        told = run_ctl(
            pair.daemons[0],
            *("chat", "sync", f"tcp://127.0.0.1:{pair.ports[1]}", "--token", pair.secret),
            code=6,
        ).stdout
        assert "2 records refused, too old or of a time more than a day ahead" in told
        assert here.send("room", "the clock is what it was", user="ann").seq == 6
        times = [one.ms for one in here.messages("room")]
        assert times[-1] - times[0] < 3_600_000


@pytest.mark.parametrize("side", [0, 1], ids=["pushed", "fetched"])
@pytest.mark.parametrize("method", ["digest", "negentropy"])
@pytest.mark.fault("CHT-02")
def test_a_comparison_that_broke_off_goes_on_with_what_is_left(tmp_path: Path, side: int, method: str) -> None:
    with Pair(tmp_path) as pair:
        wire, chats = Wire(pair.ports), pair.chats()
        one, other = chats[side], chats[1 - side]
        one.send_many([("room", f"{number} {'x' * 200}") for number in range(4_000)], user="ann")
        wire.cut_after(2_000_000 if method == "digest" else 1_000_000)  # in the middle of the records
        with pytest.raises(Conflict, match="went away"):
            wire.sync(pair, chats[0], 1, method)
        there = len(list(other.messages("room")))
        assert 0 < there < 4_000
        found = pair.sync(chats[0], 1, method)
        assert found["equal"]
        assert found["domains"]["messages"]["received" if side else "sent"] == 4_000 - there
        assert one.digest() == other.digest()
        wire.close()


def test_a_store_that_another_log_made_is_not_thrown_away(daemon: Daemon, tmp_path: Path) -> None:
    filled(daemon)
    daemon.stop()
    with Daemon(tmp_path / "other", wal_shards=1, delivery_shards=1) as other:
        other.client().publish("first", b"so that the log has another id")
    with Daemon(tmp_path / "other", wal_shards=1, delivery_shards=1, env={**CHAT, **LITTLE}) as other:
        other.client().chat.send("room", "its own", user="ann")
        other.stop()
        rocks = other.data.chat(0) / "rocks"
        rocks.rename(tmp_path / "own")
        shutil.copytree(daemon.data.chat(0) / "rocks", rocks)
        other.start().wait_ready()
        chat = other.client().chat
        with pytest.raises(StorageCorrupt, match="made by another log"):
            chat.inbox("ann")
        for over_holes in (False, True):
            with pytest.raises(FormatError, match="move it away"):
                chat.rebuild(over_holes=over_holes)
        rocks.rename(tmp_path / "moved away")
        chat.rebuild()
        assert [one.text for one in chat.messages("room")] == ["its own"]
    shutil.rmtree(daemon.data.chat(0) / "rocks")
    (tmp_path / "moved away").rename(daemon.data.chat(0) / "rocks")
    daemon.start().wait_ready()
    assert len(list(daemon.client().chat.messages("room"))) == 200


def test_who_asks_while_the_daemon_begins_anew_waits(daemon: Daemon) -> None:
    """Its sockets are not there meanwhile: that is no daemon without a chat store."""
    chat = daemon.client().chat
    chat.send("room", "x", user="ann")
    daemon.stop()
    assert not daemon.run.chat_socket(0).exists()
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(len(chat.inbox("ann").chats)))
    asking.start()
    daemon.start().wait_ready()
    asking.join()
    assert answers == [1]


def test_a_chat_store_without_its_socket_is_not_there_for_now(daemon: Daemon) -> None:
    daemon.run.chat_socket(0).unlink()
    with pytest.raises(ConnectionLost, match="chat-00"):
        daemon.client(timeout=0.5).chat.inbox("ann")
