"""Every part is built once, and what follows from a change of a topic reaches all of them."""

from __future__ import annotations

import errno

import pytest

from tests.unit.delivery.desk import Desk
from topicd.ipc.control import ControlChannel
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCH
from topicd.limits import MIB
from topicd.shards.delivery.parts import _call_supervisor


def test_a_birth_is_known_to_the_next_snapshot(desk: Desk) -> None:
    desk.parts.backlog.metadata_changed = False
    desk.topic(durability="memory")
    assert desk.parts.backlog.metadata_changed


def test_what_the_old_ttl_has_taken_does_not_come_back_with_a_longer_one(desk: Desk) -> None:
    topic = desk.topic(durability="memory", ttl_ms=1000)
    desk.write(topic, [b"x"])
    desk.clock.advance(1001)
    desk.parts.catalog.configure(topic, {"ttl_ms": 10**9}, lambda topic, error: None)
    desk.settle()
    assert (topic.contents.count, topic.floors.evict_floor) == (0, 2)


def test_a_cap_that_is_tightened_holds_at_once(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    desk.write(topic, [b"x"] * 5)
    desk.parts.catalog.configure(topic, {"cap_records": 2}, lambda topic, error: None)
    desk.settle()
    assert topic.contents.count == 2


def test_retain_acked_takes_what_was_acknowledged_before(desk: Desk) -> None:
    topic, line = desk.topic(durability="memory"), desk.line()
    desk.write(topic, [b"x"] * 5)
    line.ask(Op.CONSUMER_OPEN, topic="orders", name="c", start={"seq": 3})
    line.ask(Op.CONFIGURE, topic="orders", config={"retain": "acked"})
    assert topic.contents.count == 2


def test_the_end_of_a_topic_reaches_everybody(desk: Desk) -> None:
    desk.serve()
    topic, line = desk.topic(durability="memory"), desk.line()
    desk.write(topic, [b"x"] * 8)
    desk.checkpoint()
    desk.write(topic, [b"y"])
    poll = line.send(Op.FETCH, FETCH.pack(topic.id, 9, 0, 0, 1000))
    line.send(Op.SUBSCRIBE, {"topics": [{"topic": "orders", "tail": True}]})
    desk.settle()
    desk.parts.agenda.ready.add(topic)
    line.ask(Op.DELETE_TOPIC, topic="orders")
    parts = desk.parts
    assert ([error.request_id for error in line.take(Op.ERROR)], len(line.take(Op.NOTICE))) == ([poll], 1)
    assert topic.followers == set()
    assert (parts.backlog.dirty, parts.backlog.tail_bytes, parts.segments.held_bytes) == ({}, 0, 0)
    assert len(parts.agenda.ready) == 0
    assert not desk.disk.exists(parts.place.topic_dir(topic.id))


def test_ids_are_asked_for_at_the_supervisor(desk: Desk) -> None:
    while not desk.sent:
        desk.parts.ids.take()
    assert desk.sent == [{"event": "need_ids"}]


def test_the_stats_page_is_shown_by_the_pulse(desk: Desk) -> None:
    desk.topic()
    desk.parts.pulse.publish()
    assert desk.pages[-1]["topics"] == 1


@pytest.mark.parametrize("what", ["expires", "closes the stalled", "counts", "trims"])
def test_a_tick_looks_after_what_nobody_reads_or_writes(desk: Desk, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = desk.topic(durability="memory", ttl_ms=1000)
    desk.clock.advance(1000)
    line = desk.line(hello=False)
    desk.write(topic, [b"x"])
    desk.parts.counters.bytes_taken = 100 * MIB
    desk.parts.backlog.tail_bytes = 0
    trimmed: list[str] = []
    monkeypatch.setattr(desk.parts.trimmer, "_trim", lambda: trimmed.append("trimmed"))
    desk.clock.advance(40_000)
    for _ in range(2):
        desk.parts.tick()
        desk.settle()
    done = {
        "expires": topic.contents.count == 0,
        "closes the stalled": line.closing,
        "counts": desk.parts.backlog.total_bytes == topic.contents.bytes,
        "trims": trimmed == ["trimmed"],
    }
    assert done[what]


def test_a_full_log_that_empties_again_serves_again(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    desk.wal.ring.set_read_only(errno.ENOSPC)
    assert desk.parts.admission.refusal(topic, 10, 1) is not None
    desk.wal.ring.set_read_only(0)
    assert desk.write(topic, [b"x"])[0].how == "appended"


def test_routers_have_half_the_share_while_the_pressure_is_high(desk: Desk) -> None:
    pump, before = desk.parts._pump, desk.parts._pump.polite
    for steps, expected in ((0b0111, 2 * before), (0b0011, before)):
        desk.parts.board.say(0.9, steps, 0, 0, watching=True)
        for look in desk.parts.load.on_beat:
            look()
        assert pump.polite == expected


def test_pressure_is_told_to_nobody_when_the_supervisor_is_gone() -> None:
    channel, theirs = ControlChannel.pair()
    theirs.close()
    _call_supervisor(channel)
    channel.close()
