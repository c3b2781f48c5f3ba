"""A chat store whose disk is full: what is said, and that all goes on by itself when there is room again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.chatpair import CHAT
from tests.support.daemon import Daemon, wait_until
from tests.support.refusing import Refusals
from topicd.errors import NotReady, StorageFailed, TopicdError


class Site(NamedTuple):
    daemon: Daemon
    no_room_for_store: Path  # there: nothing below chat/ becomes longer
    no_room_for_log: Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    refusals = Refusals(tmp_path)
    small = {"TOPICD_RING_BYTES": "2MiB", "TOPICD_WAL_FILE_BYTES": "6MiB"}
    env = {**CHAT, **small, **refusals.environment}
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1, env=env) as daemon:
        found = Site(daemon, tmp_path / "store", tmp_path / "log")
        refusals.full(found.no_room_for_store, daemon.data.root / "chat")
        refusals.full(found.no_room_for_log, daemon.data.root / "wal")
        daemon.restart()
        yield found
        for marker in found[1:]:
            marker.unlink(missing_ok=True)


def chat_of(site: Site, timeout: float = 10.0):  # type: ignore[no-untyped-def]
    return site.daemon.client(timeout=timeout).chat


def told(site: Site) -> str:
    """What `topicctl status` says of the chat process."""
    rows = site.daemon.client().status()["processes"]
    return next(str(row["what"]) for row in rows if row["name"] == "chat-00")


def test_a_message_that_the_log_has_no_room_for_is_refused_by_that_name(site: Site) -> None:
    chat = chat_of(site)
    chat.send("room", "before", user="ann")
    site.no_room_for_log.touch()
    with pytest.raises(StorageFailed, match="No space left"):
        for _ in range(50):
            chat.send("room", "x" * 60_000, user="ann")
            chat.send_many([("room", "x" * 60_000) for _ in range(8)], user="ann")
    site.no_room_for_log.unlink()
    wait_until(lambda: chat.send("room", "after", user="ann").seq, "room")
    texts = [one.text[:6] for one in chat.messages("room") if not one.text.startswith("x")]
    assert texts == ["before", "after"]
    assert chat.verify()["differences"] == []


def test_a_store_that_finds_no_room_at_its_start_is_closed_for_so_long_only(site: Site) -> None:
    chat = chat_of(site, timeout=3)
    chat.send_many([("room", str(number)) for number in range(50)], user="ann")
    site.no_room_for_store.touch()
    with pytest.raises(StorageFailed, match="No space left"):
        chat.verify()
    site.daemon.wait_replaced("chat-00", site.daemon.kill("chat-00"))
    with pytest.raises(NotReady, match="No space left"):
        chat.inbox("ann")
    assert "the chat store is closed" in told(site)
    assert site.daemon.log.count("the chat store is closed, the rest") == 1
    site.no_room_for_store.unlink()

    def serves() -> bool:
        try:
            return chat.inbox("ann").chats[0].last_seq == 50
        except TopicdError:
            return False

    wait_until(serves, "the store to serve again", timeout=30)
    wait_until(lambda: told(site) == "", "it to be told")
    assert chat.verify()["differences"] == []


def test_a_stop_without_room_loses_nothing(site: Site) -> None:
    chat = chat_of(site)
    chat.send_many([("room", str(number)) for number in range(50)], user="ann")
    site.no_room_for_store.touch()
    site.daemon.stop()
    assert "Traceback" not in site.daemon.log
    site.no_room_for_store.unlink()
    site.daemon.start().wait_ready()
    chat = chat_of(site)
    assert [one.text for one in chat.messages("room")] == [str(number) for number in range(50)]
    assert chat.verify()["differences"] == []
