"""Listeners of a chat: what they hear, and that those who were removed hear nothing more."""

from __future__ import annotations

from typing import Any

from tests.unit.chat.chat_kit import Shop
from topicd.shards.chat import keys
from topicd.shards.chat.changes import Told
from topicd.shards.chat.live import ChatSubscription, Live, Names

ROOM, BOB = keys.chat_id("room"), keys.user_id("bob")
ENDED = {"ended": "the user is not a member of this chat any more"}


class Ear:
    """The way out of a connection."""

    def __init__(self) -> None:
        self.write_blocked = False
        self.heard: list[dict[str, Any]] = []

    def events(self, subscription: int, body: dict[str, Any]) -> None:
        self.heard.append({"seqs": body["messages"]} if "messages" in body else body)


class Scene:
    """A room of ann and bob, to which bob listens."""

    def __init__(self, credit: int = 10) -> None:
        self.shop, self.told, self.ear = Shop(), [], Ear()
        self.shop.send("room", "hello", "ann")
        self.shop.add("room", "bob")
        view = self.shop.view
        self.live = Live(view, Names(lambda seq, message: seq, lambda user, row: {}))  # type: ignore[arg-type, return-value]
        apply = view.apply

        def applied(entries: Any) -> Any:
            done = apply(entries)
            self.hear(done.told)
            return done

        view.apply = applied  # type: ignore[method-assign]
        self.subscription = ChatSubscription(self.live, self.ear, 1, credit, ROOM, BOB, 0)
        self.subscription.moved()

    def hear(self, told: list[Told]) -> None:
        for one in told:
            self.live.written(one)


def test_who_is_removed_hears_the_end_at_once_and_nothing_behind_it() -> None:
    scene = Scene()
    scene.shop.send("room", "again", "ann")
    assert scene.ear.heard == [{"seqs": [1]}, {"seqs": [2]}]
    scene.shop.remove("room", "bob")
    assert scene.ear.heard[2:] == [ENDED]
    scene.shop.send("room", "without bob", "ann")
    assert scene.live.signal(ROOM, {"kind": "typing"}) == 0
    scene.subscription.grant(10)
    scene.shop.add("room", "bob")
    scene.shop.send("room", "he has to listen anew", "ann")
    assert scene.ear.heard[2:] == [ENDED]
    assert scene.live.count == 0


def test_the_end_needs_no_credit_and_no_room() -> None:
    scene = Scene(credit=1)
    scene.shop.send("room", "again", "ann")
    assert scene.ear.heard == [{"seqs": [1]}]
    scene.ear.write_blocked = True
    scene.shop.remove("room", "bob")
    assert scene.ear.heard[1:] == [ENDED]


def test_the_removal_of_somebody_else_ends_nothing() -> None:
    scene = Scene()
    scene.shop.add("room", "cid")
    scene.shop.remove("room", "cid")
    scene.shop.send("room", "again", "ann")
    assert scene.ear.heard == [{"seqs": [1]}, {"seqs": [2]}]
    assert scene.live.signal(ROOM, {"kind": "typing"}) == 1
