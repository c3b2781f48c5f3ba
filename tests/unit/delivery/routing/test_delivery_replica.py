"""The definitions, followed."""

from __future__ import annotations

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.routing.routing_kit import make_router
from topicd.frames import core
from topicd.ipc.protocol.codec import Fetched
from topicd.shards.delivery.routing.definition import Definition, forget_record
from topicd.shards.delivery.routing.replica import Replica


def pushed(*datas: bytes, first: int = 1, head: int = 0) -> Fetched:
    frames = core.encode_batch(list(datas), None, None, None)
    core.stamp_frames(frames, 0, len(frames), 1, first, 1_000, False)
    last = first + len(datas) - 1
    return Fetched(1, last, head or last, 1, len(datas), True, None, None, frames, 0, len(frames))


def put(name: str, dest: str = "b") -> bytes:
    return Definition(name, "a", dest).to_record()


def test_it_knows_what_was_decided_here(routed: Desk) -> None:
    replica = routed.parts.routing.replica
    assert replica.loaded
    make_router(routed, "r", "a", "b")
    assert list(replica.graph.by_name) == ["r"]
    told: list[str] = []
    replica.when_applied(replica.applied, lambda: told.append("now"))
    replica.when_applied(replica.applied + 1, lambda: told.append("later"))
    assert told == ["now"]
    make_router(routed, "s", "a", "c")
    assert told == ["now", "later"]


def test_another_shard_reads_the_whole_after_each_connection(routed: Desk) -> None:
    parts = routed.parts
    replica = Replica(parts.place, routed.loop, parts.catalog, parts.reader, parts.relay)
    seen: list[str] = []
    replica.on_put = lambda one: seen.append(f"+{one.router}")
    replica.on_gone = lambda one: seen.append(f"-{one.router}")
    replica.accepted({"topics": [{"topic": "topicd.routers"}]})
    replica.pushed(pushed(put("r"), put("s"), head=3))
    assert (replica.loaded, seen) == (False, [])
    replica.pushed(pushed(put("t"), first=3))
    assert (replica.loaded, seen) == (True, ["+r", "+s", "+t"])
    replica.pushed(pushed(forget_record([1]), first=4))
    assert seen[3:] == ["-r"]
    replica.accepted({"topics": [{"topic": "topicd.routers"}]})
    replica.pushed(pushed(put("t"), first=3, head=9))
    replica.pushed(pushed(put("u"), first=9))
    assert (seen[4:], set(replica.graph.by_name)) == (["-s", "+t", "+u"], {"t", "u"})


def test_without_any_router_it_is_loaded_at_once(routed: Desk) -> None:
    parts = routed.parts
    replica = Replica(parts.place, routed.loop, parts.catalog, parts.reader, parts.relay)
    replica.accepted({"topics": []})
    assert replica.loaded


def test_a_record_without_sense_is_passed_over(routed: Desk) -> None:
    parts = routed.parts
    replica = Replica(parts.place, routed.loop, parts.catalog, parts.reader, parts.relay)
    replica.accepted({"topics": [{}]})
    replica.pushed(pushed(b"?", put("r")))
    assert list(replica.graph.by_name) == ["r"]
