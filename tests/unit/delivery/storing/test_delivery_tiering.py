"""Which segments leave the fast disk, when, and what becomes of them if the cold one does not play along."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.faults.machine import Inline
from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import ROOT
from topicd.disk.cold import ColdDir, adopt
from topicd.frames import core
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCH
from topicd.model import TagMatch
from topicd.paths import DataDir
from topicd.shards.delivery.ops.tiers import row_of
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.info import Lies
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve

COLD = Path("/cold")


@pytest.fixture
def tiered(desk: Desk) -> Desk:
    desk.disk.mkdir(COLD)
    adopt(desk.disk, DataDir(ROOT), COLD, "a1")
    desk.parts.tiering._threads = Inline()  # type: ignore[assignment]
    desk.parts.elsewhere._threads = dict.fromkeys((True, False), Inline())
    settle_as(desk, hot_retain_segments=2)
    desk.parts.tiering.open()
    desk.serve()
    desk.parts.tiering.tick()
    desk.settle()
    return desk


def settle_as(desk: Desk, **settings: Any) -> None:
    given = {"cold_dir": str(COLD), "cold_rate_bytes": 0, **settings}
    desk.parts.place.settings = desk.parts.place.settings.replace(**given)


def filled(desk: Desk, name: str = "orders", segments: int = 5, **config: Any) -> Topic:
    """Segments of eight records, all sealed; of each the first six have a tag."""
    topic = desk.topic(name, durability="memory", **config)
    for seq in range(1, segments * 8 + 1):
        desk.write(topic, [b"%d " % seq * 9], tags=b"dead" if (seq - 1) % 8 < 6 else None)
    desk.checkpoint()
    return topic


def moved(desk: Desk) -> None:
    """After so many snapshots everything is where it should be."""
    for _ in range(3):
        desk.snapshot()
        desk.parts.tiering._retry_at = 0.0
        desk.parts.tiering.tick()
        desk.settle()


def lies(topic: Topic) -> str:
    return "".join("hpcz"[info.lies] for info in topic.contents.segments)


def read(desk: Desk, topic: Topic) -> list[int]:
    line, at, found = desk.line(), 0, list[int]()
    while at < topic.seqs.visible:
        answer = line.result(line.send(Op.FETCH, FETCH.pack(topic.id, at, 1_000, 1 << 20, 0)))
        datas = answer.datas()
        if not datas:
            break
        found += [int(data.split()[0]) for data in datas]
        at = found[-1]
    return found


def test_beyond_what_is_kept_segments_go_after_a_snapshot_and_are_read(tiered: Desk) -> None:
    topic = filled(tiered)
    assert lies(topic) == "hhhhh"
    moved(tiered)
    assert lies(topic) == "ccchh"
    place = resolve(tiered.parts.place.topic_dir(topic.id), 1)
    assert not tiered.disk.exists(place.file(DATA)) and tiered.disk.exists(place.file("idx"))
    assert read(tiered, topic) == list(range(1, 41))
    row = row_of(tiered.parts, topic)
    assert (row["segments"]["cold"], row["waiting"], row["cold_through_seq"]) == (3, 0, 24)
    page = tiered.parts.tiering.page()
    assert (page["tier_moved"], page["far_segments"], page["cold_failing"]) == (3, 3, 0)


@pytest.mark.parametrize(
    ("settings", "config", "expected"),
    [
        ({"compress": "zstd"}, {}, "zzzhh"),
        ({"compress": "zstd"}, {"compress": "none"}, "ccchh"),
        ({"compress": "zstd", "cold_dir": ""}, {}, "ppphh"),
        ({"cold_dir": ""}, {}, "hhhhh"),
        ({"hot_retain_segments": 0}, {}, "hhhhh"),
        ({"hot_retain_segments": 0, "hot_retain_bytes": 1}, {}, "ccccc"),
        ({"hot_retain_bytes": 1 << 30}, {}, "ccchh"),  # the stricter counts
        ({}, {"hot_retain_segments": 4}, "chhhh"),
        ({}, {"hot_retain_segments": 0}, "hhhhh"),
    ],
)
def test_settings_and_the_topic_say_what_is_kept(
    tiered: Desk, settings: dict[str, Any], config: dict[str, Any], expected: str
) -> None:
    settle_as(tiered, hot_retain_segments=2)
    settle_as(tiered, **settings)
    topic = filled(tiered, **config)
    moved(tiered)
    assert lies(topic) == expected
    assert read(tiered, topic) == list(range(1, 41))


def test_queues_and_what_is_in_memory_only_stay(tiered: Desk) -> None:
    assert not tiered.topic("jobs", type="queue").policy.tiered
    assert not tiered.topic("fleeting", durability="ephemeral").policy.tiered
    assert tiered.topic("kept").policy.tiered


def test_keeping_all_brings_everything_back(tiered: Desk) -> None:
    topic = filled(tiered)
    moved(tiered)
    settle_as(tiered, hot_retain_segments=0)
    moved(tiered)
    assert lies(topic) == "hhhhh"
    assert tiered.disk.listdir(COLD / "topics" / tiered.parts.place.topic_dir(topic.id).name) == []
    assert read(tiered, topic) == list(range(1, 41))


def test_half_dead_ones_come_back_are_rewritten_and_go_again(tiered: Desk) -> None:
    topic = filled(tiered)
    moved(tiered)
    before = topic.contents.segments[0].data_bytes
    tiered.parts.deletion.delete(topic, None, TagMatch(b"dead"), lambda body, error: None)
    tiered.settle()
    tiered.checkpoint()
    for _ in range(3):
        list(tiered.parts.snapshots._reclaimer.look())
        moved(tiered)
    assert lies(topic) == "ccchh" and topic.contents.segments[0].data_bytes < before / 2
    assert read(tiered, topic) == [seq for seq in range(1, 41) if (seq - 1) % 8 >= 6]


def test_dropped_segments_and_deleted_topics_leave_nothing_there(tiered: Desk) -> None:
    topic = filled(tiered)
    moved(tiered)
    directory = COLD / "topics" / tiered.parts.place.topic_dir(topic.id).name
    assert len(tiered.disk.listdir(directory)) == 3
    tiered.parts.deletion.delete(topic, 17, None, lambda body, error: None)
    tiered.settle()
    moved(tiered)
    assert len(tiered.disk.listdir(directory)) == 1
    tiered.line().ask(Op.DELETE_TOPIC, topic="orders")
    tiered.settle()
    tiered.parts.tiering._look_at = 0.0
    moved(tiered)
    assert tiered.disk.listdir(COLD / "topics") == [] and tiered.disk.listdir(DataDir(ROOT).topics) == []


def on_cold(name: str, path: Path) -> bool:
    return path.is_relative_to(COLD)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_cold_disk_that_refuses_is_reported_and_tried_again(tiered: Desk, code: int) -> None:
    topic = filled(tiered)
    tiered.fail_disk(on_cold, code)
    moved(tiered)
    assert lies(topic) == "hhhhh" and tiered.parts.tiering.trouble().startswith(f"{COLD}/")
    assert tiered.parts.tiering.page()["cold_failing"] == 1
    assert tiered.write(topic, [b"41 "])[0].how == "appended"
    tiered.mend_disk()
    moved(tiered)
    assert lies(topic).startswith("ccc") and tiered.parts.tiering.trouble() == ""
    assert read(tiered, topic) == list(range(1, 42))


def test_what_the_disk_would_not_remove_is_removed_later(tiered: Desk) -> None:
    """It would lie there twice until the next start."""
    topic = filled(tiered)
    place = resolve(tiered.parts.place.topic_dir(topic.id), 1)
    tiered.fail_disk(lambda name, path: name == "unlink" and path == place.file(DATA), errno.EIO)
    moved(tiered)
    assert lies(topic) == "chhhh" and tiered.disk.exists(place.file(DATA)) and tiered.parts.tiering.trouble()
    tiered.mend_disk()
    tiered.parts.tiering._retry_at = 0.0
    tiered.parts.tiering.tick()
    tiered.settle()
    assert not tiered.disk.exists(place.file(DATA)) and tiered.parts.tiering.trouble() == ""
    assert read(tiered, topic) == list(range(1, 41))


def test_readers_let_go_of_the_file_that_was_moved(tiered: Desk) -> None:
    """It would keep its room on the fast disk for as long as they hold it."""
    topic = filled(tiered)
    assert read(tiered, topic) == list(range(1, 41)) and tiered.parts.elsewhere.loads == 0
    moved(tiered)
    assert read(tiered, topic) == list(range(1, 41)) and tiered.parts.elsewhere.loads > 0


def test_what_is_still_to_be_removed_waits_for_a_backup(tiered: Desk) -> None:
    topic = filled(tiered)
    place = resolve(tiered.parts.place.topic_dir(topic.id), 1)
    tiered.fail_disk(lambda name, path: name == "unlink" and path == place.file(DATA), errno.EIO)
    moved(tiered)
    tiered.mend_disk()
    tiered.parts.backlog.held = True
    tiered.loop.run_until_complete(tiered.parts.tiering._clear())
    assert tiered.disk.exists(place.file(DATA))
    tiered.parts.backlog.held = False
    tiered.loop.run_until_complete(tiered.parts.tiering._clear())
    assert not tiered.disk.exists(place.file(DATA))


def test_who_waits_gets_what_is_sealed_behind_the_snapshot_that_was_taken_for_him(tiered: Desk) -> None:
    topic = filled(tiered, segments=1)
    for seq in range(9, 41):
        tiered.write(topic, [b"%d " % seq * 9])
    tiered.parts.tiering.hurry(topic)
    tiered.snapshot()
    tiered.checkpoint()
    for seq in range(41, 81):
        tiered.write(topic, [b"%d " % seq * 9])
    tiered.parts.tiering.tick()
    assert tiered.parts.tiering.eager
    tiered.snapshot()
    tiered.settle()
    assert lies(topic) == "ccchh"
    tiered.checkpoint()
    tiered.parts.tiering.tick()
    assert tiered.parts.tiering.eager  # of what was there two are not the newest any more
    tiered.snapshot()
    tiered.settle()
    assert lies(topic) == "cccccccchh"
    for seq in range(81, 89):
        tiered.write(topic, [b"%d " % seq * 9])
    tiered.checkpoint()
    tiered.parts.tiering.tick()
    assert not tiered.parts.tiering.eager and row_of(tiered.parts, topic)["waiting_from_seq"] == 65


@pytest.mark.parametrize("far", [True, False])
def test_a_cold_directory_that_is_gone_is_reported_before_anybody_reads(tiered: Desk, far: bool) -> None:
    if far:
        topic = filled(tiered)
        moved(tiered)
        settle_as(tiered, cold_dir="")
        tiered.snapshot()
        assert lies(topic) == "ccchh"
    away = COLD.with_name("away")
    tiered.disk.rename(COLD, away)
    tiered.parts.tiering._look_at = 0.0
    tiered.parts.tiering.tick()
    tiered.settle()
    assert tiered.parts.tiering.trouble() == f"{COLD}: has no TOPICD-COLD: is its disk mounted?"
    tiered.disk.rename(away, COLD)
    tiered.parts.tiering._retry_at = 0.0
    tiered.parts.tiering.tick()
    tiered.settle()
    assert tiered.parts.tiering.trouble() == ""


def test_a_cold_directory_that_nobody_needs_any_more_may_go(tiered: Desk) -> None:
    settle_as(tiered, cold_dir="")
    tiered.disk.rename(COLD, COLD.with_name("away"))
    tiered.parts.tiering._look_at = 0.0
    tiered.parts.tiering.tick()
    tiered.settle()
    assert tiered.parts.tiering.trouble() == ""


def test_damaged_frames_stay_and_are_reported_once(tiered: Desk) -> None:
    topic = filled(tiered)
    file = tiered.disk.open(resolve(tiered.parts.place.topic_dir(topic.id), 1).file(DATA), write=True)
    file.pwrite([b"\xff"], 60)
    moved(tiered)
    assert lies(topic) == "hcchh"
    assert len(tiered.parts.counters.damage) == 1
    assert tiered.parts.counters.damage[0].endswith("(seqs 1 to 8)")
    assert row_of(tiered.parts, topic)["unmovable"] == 1


def test_a_file_that_the_cold_directory_has_lost_is_damage_by_its_own_name_and_no_trouble_of_the_disk(
    tiered: Desk,
) -> None:
    topic = filled(tiered)
    moved(tiered)
    lost = resolve(tiered.parts.place.topic_dir(topic.id), 1).cold_file(ColdDir("a1", COLD), DATA)
    tiered.disk.unlink(lost)
    settle_as(tiered, hot_retain_segments=0)
    moved(tiered)
    assert lies(topic) == "chhhh"
    assert tiered.parts.counters.damage == [f"topic orders: {lost}: is missing (seqs 1 to 8)"]
    assert tiered.parts.tiering.trouble() == ""


def test_a_disk_that_answers_again_is_in_trouble_no_more_though_nobody_reads(tiered: Desk) -> None:
    filled(tiered)
    moved(tiered)
    tiered.parts.elsewhere.problem = "it was away"
    assert tiered.parts.tiering.trouble() == "it was away"
    tiered.parts.tiering._look_at = 0.0
    tiered.parts.tiering.tick()
    tiered.settle()
    assert tiered.parts.tiering.trouble() == ""


def test_a_backup_holds_everything_where_it_is(tiered: Desk) -> None:
    topic = filled(tiered)
    tiered.parts.backlog.held = True
    tiered.parts.tiering._ready.extend((topic, info, Lies.COLD) for info in topic.contents.segments[:1])
    tiered.parts.tiering.tick()
    tiered.settle()
    assert lies(topic) == "hhhhh"
    tiered.parts.backlog.held = False
    tiered.parts.tiering.tick()
    tiered.settle()
    assert lies(topic) == "chhhh"


def test_nothing_moves_when_the_shard_ends(tiered: Desk) -> None:
    topic = filled(tiered)
    tiered.parts.tiering.close()
    moved(tiered)
    assert lies(topic) == "hhhhh"


def test_the_answer_says_how_many_cold_segments_it_read(tiered: Desk) -> None:
    topic = filled(tiered)
    moved(tiered)
    line = tiered.line()
    line.result(line.send(Op.FETCH, FETCH.pack(topic.id, 0, 1_000, 1 << 20, 0)))
    from topicd.shards.delivery.reading.filters import NO_FILTER

    answer = tiered.parts.reader.fetch(topic, 0, 1_000, 1 << 20, NO_FILTER)
    assert answer.count and answer.cold_segments >= 1
    rows = [row for part in answer.parts for row in core.decode_frames(part, 0, len(part))]
    assert rows[0][0] == 1
