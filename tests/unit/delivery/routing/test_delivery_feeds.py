"""Records of a source, from here and from another shard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import NotReady, TopicNotFound
from topicd.frames import core
from topicd.ipc.protocol.codec import Fetched
from topicd.model import Tombstone
from topicd.shards.delivery.routing import feeds as module
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.feeds import LocalFeed, RemoteFeed

ONE = Definition("r", "orders", "audit", id=1, source_id=7, dest_id=8)


def push(first: int, count: int, *, head: int = 0, stone: Tombstone | None = None) -> Fetched:
    frames = core.encode_batch([b"x"] * count, None, None, None)
    core.stamp_frames(frames, 0, len(frames), 7, first, 1_000, False)
    last = first + count - 1
    return Fetched(7, last, head or last, 1, count, True, stone, None, frames, 0, len(frames))


class Road:
    """A relay that writes down what it is asked."""

    def __init__(self) -> None:
        self.wanted: list[Any] = []
        self.granted = 0
        self.closed = 0

    def shard_of(self, topic: str) -> int:
        return 1

    def follow(self, shard: int, want: Any, listener: Any) -> Any:
        self.wanted.append(want)
        return self

    def grant(self, size: int) -> None:
        self.granted += size

    def close(self) -> None:
        self.closed += 1


def remote(desk: Desk) -> tuple[RemoteFeed, Road, list[int]]:
    road: Any = Road()
    news: list[int] = []
    feed = RemoteFeed(ONE, road, desk.loop, lambda: news.append(1))
    feed.open(10)
    return feed, road, news


def test_a_follower_in_the_shard_reads_behind_its_cursor(desk: Desk) -> None:
    orders = desk.topic("orders")
    news: list[int] = []
    one = Definition("r", "orders", "audit", source_id=orders.id)
    feed = LocalFeed(one, desk.parts.catalog, desk.parts.reader, lambda: news.append(1))
    feed.open(0)
    assert feed.take(0) is None
    assert feed.ends_at(0)
    desk.write(orders, [b"a", b"b"])
    assert news
    piece = feed.take(1)
    assert piece is not None
    assert (piece.next_from, piece.gap, core.payloads(piece.buffer, piece.start, piece.end)) == (2, None, [b"b"])
    assert not feed.ends_at(1)
    feed.close()
    assert not orders.followers


def test_a_source_that_is_gone_is_an_error(desk: Desk) -> None:
    feed = LocalFeed(ONE, desk.parts.catalog, desk.parts.reader, lambda: None)
    feed.open(0)
    with pytest.raises(TopicNotFound):
        feed.take(0)


def test_pieces_from_afar_wait_until_they_are_used(desk: Desk) -> None:
    feed, road, news = remote(desk)
    assert (road.wanted[0].topics[0].from_seq, road.wanted[0].topics[0].epoch, road.wanted[0].progress) == (10, 7, True)
    feed.accepted({"topics": [{"topic_id": 7}]})
    assert feed.take(10) is None
    feed.pushed(push(11, 2))
    piece = feed.take(10)
    assert piece is not None
    assert feed.take(10) is piece
    assert road.granted == 0
    feed.done(piece)
    assert road.granted == piece.end - piece.start
    feed.pushed(push(13, 1, head=20))
    assert (len(news), feed.head) == (3, 20)
    following = feed.take(12)
    assert following is not None
    assert following.next_from == 13


def test_records_that_came_one_by_one_are_one_piece(desk: Desk) -> None:
    feed, road, _ = remote(desk)
    for seq in range(11, 14):
        feed.pushed(push(seq, 1))
    feed.pushed(push(16, 1, stone=Tombstone(14, 15, "cap", 2, 16, 16)))
    feed.pushed(push(17, 3))
    piece = feed.take(10)
    assert piece is not None
    assert (piece.next_from, piece.gap) == (13, None)
    assert len(core.payloads(piece.buffer, piece.start, piece.end)) == 3
    feed.done(piece)
    assert road.granted == piece.end - piece.start
    behind = feed.take(13)  # a hole is before what it is joined with, never inside
    assert behind is not None
    assert (behind.next_from, behind.gap) == (19, (14, 15))
    feed.done(behind)
    assert feed.take(19) is None


def test_what_is_large_is_not_copied_to_be_joined(desk: Desk) -> None:
    feed, _, _ = remote(desk)
    large = push(11, 1 + module._JOINED // len(push(1, 1).buffer))
    feed.pushed(large)
    feed.pushed(push(large.next_from_seq + 1, 1))
    piece = feed.take(10)
    assert piece is not None
    assert piece.buffer is large.buffer


def test_a_gap_comes_with_the_piece_behind_it(desk: Desk) -> None:
    feed, _, _ = remote(desk)
    feed.pushed(push(16, 1, stone=Tombstone(11, 15, "cap", 5, 16, 16)))
    piece = feed.take(10)
    assert piece is not None
    assert piece.gap == (11, 15)


def test_after_a_break_it_goes_on_behind_what_has_arrived(desk: Desk) -> None:
    feed, road, _ = remote(desk)
    feed.pushed(push(11, 2))
    feed.lost(NotReady("away"))
    piece = feed.take(10)
    assert piece is not None
    feed.done(piece)
    with pytest.raises(NotReady):
        feed.take(12)
    feed._connect()  # what a timer does
    assert road.wanted[-1].topics[0].from_seq == 12
    feed.accepted({"topics": [{"topic_id": 7}]})
    assert feed.take(12) is None
    feed.close()


def test_going_back_asks_for_it_again(desk: Desk) -> None:
    feed, road, _ = remote(desk)
    feed.pushed(push(11, 2))
    feed.rewind(10)
    assert feed.take(10) is None
    assert (road.closed, road.wanted[-1].topics[0].from_seq) == (1, 10)


def test_another_topic_of_that_name_is_not_the_source(desk: Desk) -> None:
    feed, _, _ = remote(desk)
    feed.accepted({"topics": [{"topic_id": 9}]})
    with pytest.raises(TopicNotFound):
        feed.take(10)
    feed.close()
