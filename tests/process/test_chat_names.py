"""Chats that nobody made, and chats of two who have not spoken yet: what is said to those who ask for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.process.cli_kit import run_ctl
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web
from topicd.client.blocking.chat import Chat
from topicd.errors import ChatNotFound, Conflict, Forbidden, InvalidRequest
from topicd.shards.chat.keys import dm_id, user_id

ENVIRON = {"TOPICD_CHAT": "true", "TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("names"), wal_shards=1, delivery_shards=1, env=ENVIRON) as made:
        yield made


@pytest.fixture
def chat(daemon: Daemon) -> Chat:
    return daemon.client().chat


@pytest.mark.parametrize(
    "ask",
    [
        lambda chat, user: chat.read("kitchn", user=user),
        lambda chat, user: chat.members("kitchn", user=user),
        lambda chat, user: chat.info("kitchn", user=user),
        lambda chat, user: chat.read("ab" * 32, user=user),
    ],
)
@pytest.mark.parametrize("user", [None, "ann"])
def test_a_chat_that_nobody_made_is_not_an_empty_one(chat: Chat, ask: Callable[..., Any], user: str | None) -> None:
    with pytest.raises(ChatNotFound, match="there is no chat"):
        ask(chat, user)


def test_who_acts_as_somebody_is_told_so_in_every_request(chat: Chat) -> None:
    for ask in (
        lambda: chat.mark("kitchn", 0, user="ann"),
        lambda: chat.signal("kitchn", "typing", user="ann"),
        lambda: next(chat.watch("kitchn", user="ann")),
    ):
        with pytest.raises(ChatNotFound):
            ask()


def test_the_operator_may_wait_for_a_chat(daemon: Daemon, chat: Chat) -> None:
    heard: list[Any] = []
    listener = daemon.client()
    threading.Thread(target=lambda: heard.extend([next(listener.chat.watch("later"))]), daemon=True).start()
    wait_until(lambda: chat.stats(rows=False)["listeners"] == 1, "somebody listens")
    chat.send("later", "here it is", user="ann")
    wait_until(lambda: [one.text for one in heard] == ["here it is"], "the first message")


def test_who_heard_more_than_there_is_hears_what_comes(daemon: Daemon, chat: Chat) -> None:
    """As after a restored backup."""
    chat.send("restored", "kept", user="ann")
    heard: list[Any] = []
    events = daemon.client().chat.watch("restored", after_seq=50)
    threading.Thread(target=lambda: heard.extend([next(events), next(events)]), daemon=True).start()
    wait_until(lambda: chat.signal("restored", "typing", user="ann"), "somebody listens")
    chat.send("restored", "new", user="ann")
    wait_until(lambda: len(heard) == 2, "the signal and the message")
    assert heard[1].text == "new"


def test_a_chat_that_is_only_known_by_a_removal_does_not_exist(chat: Chat) -> None:
    assert not chat.remove("nowhere", "zed")
    with pytest.raises(ChatNotFound):
        chat.members("nowhere")


def test_S15_two_users_are_members_of_their_chat_before_they_speak(daemon: Daemon, chat: Chat) -> None:
    assert {(one.name, one.role) for one in chat.members("@yan", user="xia")} == {
        ("xia", "participant"),
        ("yan", "participant"),
    }
    assert chat.read("@yan", user="xia").messages == []
    assert chat.info("@yan", user="xia")["members"] == 2
    assert chat.mark("@yan", 0, user="xia") == 0
    with pytest.raises(Conflict, match="the chat has 0 messages, not 1"):
        chat.mark("@yan", 1, user="xia")
    heard: list[Any] = []
    listener = daemon.client()
    events = listener.chat.watch("@yan", user="xia")
    threading.Thread(target=lambda: heard.extend([next(events), next(events)]), daemon=True).start()
    wait_until(lambda: chat.signal("@xia", "typing", user="yan") == 1, "xia listens")
    chat.send("@xia", "hello", user="yan")
    wait_until(lambda: len(heard) == 2, "the signal and the first message")
    assert heard[1].text == "hello"
    assert chat.stats()["tables"]["members"] == chat.digest()["domains"]["members"]["count"]


def test_S15_nobody_makes_the_chat_of_two_others_his_own(chat: Chat) -> None:
    """Its id is no secret: whoever knows the two users can name it."""
    between = dm_id(user_id("una"), user_id("ugo")).hex()
    chat.send(between, "mine", user="mallory")
    chat.add(between, "eve", user="mallory")
    assert {one.name for one in chat.members("@ugo", user="una")} == {"una", "ugo"}
    heard: list[Any] = []
    mallory = chat.watch(between, user="mallory", after_seq=0)
    heard.append(next(mallory).text)
    chat.send("@ugo", "between us", user="una")
    with pytest.raises(Forbidden, match="not a member"):
        heard.append(next(mallory).text)
    assert heard == ["mine"]
    for stranger in ("mallory", "eve"):
        assert chat.inbox(stranger).chats == []
        with pytest.raises(Forbidden):
            chat.read(between, user=stranger)
        with pytest.raises((Forbidden, InvalidRequest)):
            chat.send(between, "still mine", user=stranger)
    assert [one.peer_name for one in chat.inbox("ugo").chats] == ["una"]
    results = chat.send_many([("@vic", "first"), (dm_id(user_id("vic"), user_id("una")).hex(), "second")], user="una")
    assert [getattr(one, "code", "stored") for one in results] == ["stored", "invalid_request"]


def test_only_one_of_several_messages_is_told_by_its_number(chat: Chat) -> None:
    with pytest.raises(InvalidRequest, match=r"^the name of a chat"):
        chat.send("", "x", user="ann")
    with pytest.raises(InvalidRequest, match=r"^message 1: the name of a chat"):
        chat.send_many([("here", "x"), ("", "x")], user="ann")


def test_http_says_what_is_wrong_in_the_words_of_chats(daemon: Daemon, chat: Chat) -> None:
    web = Web(daemon)
    chat.send("hall", "x", user="ann")
    try:
        for path in ("/v0/chat/kitchn/messages", "/v0/chat/kitchn/members", "/v0/chat/kitchn/events"):
            refused = web("GET", f"{path}?user=ann")
            assert (refused.status, refused.code) == (404, "chat_not_found")
        refused = web("PUT", "/v0/chat/hall/progress", {"seq": 17, "user": "ann"})
        assert (refused.status, refused.code) == (409, "conflict")
        refused = web("GET", "/v0/chat/hall/messages?user=bob")
        assert (refused.status, refused.code) == (403, "forbidden")
        removed = web("POST", "/v0/chat/hall/remove", {"member": "zed", "user": "ann"})
        assert (removed.status, removed.body["was_member"]) == (200, False)
    finally:
        web.close()


def test_the_cli_says_whether_somebody_was_removed(daemon: Daemon, chat: Chat) -> None:
    chat.send("cellar", "x", user="ann")
    chat.add("cellar", "bob")
    told = [run_ctl(daemon, "chat", "remove", room, "bob").stdout for room in ("celar", "cellar", "cellar")]
    assert told == [
        "bob did not belong to celar\n",
        "bob does not belong to cellar any more\n",
        "bob did not belong to cellar\n",
    ]
    assert "there is no chat 'celar'" in run_ctl(daemon, "chat", "read", "celar", code=4).stderr
    with pytest.raises(Forbidden):
        chat.read("cellar", user="bob")
