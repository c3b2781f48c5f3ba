"""Large writes past the log, where the sweeps of "direct writes" do not look: who they were, who waits behind them."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.faults.machine import KIB, ROOT, Machine
from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from topicd.errors import StorageFailed, TopicNotFound
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.parts import Parts
from topicd.shards.storage.walfile import LogReader, scan_group

TOPIC = "t"


class Place:
    """A machine on a disk that fails when it is told to."""

    def __init__(self) -> None:
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.faults = FaultFs(self.disk)
        self.machines = [Machine(self.faults, direct_bytes=KIB, direct_writes="synced")]
        self.machine.open()
        self.machine.configure(TOPIC, durability="fsync")

    @property
    def machine(self) -> Machine:
        return self.machines[-1]

    @property
    def parts(self) -> Parts:
        return self.machine.delivery_of(TOPIC)

    def restart(self) -> None:
        self.machine.abandon()
        self.machines.append(Machine(self.faults, previous=self.machine, direct_bytes=KIB, direct_writes="synced"))
        self.machine.open()

    def frames_in_log(self) -> list[int]:
        """Types, in order."""
        reader = LogReader(self.disk, self.machine.data.wal_shard(0), self.parts.place.wal_seed)
        scans = [scan_group(chunk.view, group) for chunk in reader.chunks() for group in chunk.groups]
        return [run.type for scan in scans for run in scan.runs]


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    for machine in made.machines:
        machine.close()


def large(text: str, records: int = 4) -> list[bytes]:
    return [f"{text}-{n}-".encode().ljust(400, b".") for n in range(records)]


def test_the_log_holds_the_claim_and_not_the_records(place: Place) -> None:
    place.machine.append(TOPIC, large("a"), producer=7, number=1)
    place.machine.append(TOPIC, [b"small"], producer=7, number=2)
    found = place.frames_in_log()
    assert found.count(FrameType.DIRECT) == 1
    assert found.count(FrameType.APPEND) == 1
    assert [record.data for record in place.machine.read(TOPIC)] == [*large("a"), b"small"]


@pytest.mark.parametrize(
    ("config", "records", "producer"),
    [({"durability": "disk"}, 4, 7), ({"durability": "fsync"}, 9, 7), ({"durability": "fsync"}, 4, 0)],
    ids=["another class", "more than a segment holds", "no producer"],
)
def test_through_the_log_goes_what_cannot_go_past_it(
    place: Place, config: dict[str, str], records: int, producer: int
) -> None:
    place.machine.configure(TOPIC, **config)
    place.machine.append(TOPIC, large("a", records), producer=producer, number=1 if producer else 0)
    assert FrameType.DIRECT not in place.frames_in_log()


@pytest.mark.fault("DIR-03")
def test_a_claim_counts_only_for_the_batch_that_is_there(place: Place) -> None:
    place.faults.only = lambda name, path: name == "pwrite" and path.suffix == ".data"
    place.faults.calls.clear()
    place.faults.fail_at = 1
    with pytest.raises(StorageFailed):
        place.machine.append(TOPIC, large("a"), producer=7, number=1)
    place.faults.fail_at = None
    place.machine.tick()
    assert place.machine.append(TOPIC, large("b"), producer=8, number=1).first_seq == 1  # the same seqs
    place.machine.checkpoint()  # in a segment, as the claim says
    place.restart()
    assert place.machine.append(TOPIC, large("b"), producer=8, number=1).deduped
    assert not place.machine.append(TOPIC, large("a"), producer=7, number=1).deduped
    assert [record.data for record in place.machine.read(TOPIC)] == [*large("b"), *large("a")]


def test_the_claim_stays_in_the_log_until_its_batch_is_stored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog, outlet = place.parts.backlog, place.parts.outlets[0]
    ready = backlog.note_direct
    monkeypatch.setattr(backlog, "note_direct", lambda topic: None)
    ticket = place.machine.begin_append(TOPIC, large("a"), producer=7, number=1)
    place.machine.settle()
    (entry,) = place.parts.catalog.by_name[TOPIC].flight.behind_direct
    assert entry.pin is not None
    assert outlet.settled_pos == entry.pin < outlet.placed_pos
    ready(place.parts.catalog.by_name[TOPIC])
    place.machine.settle()
    assert not place.machine.finish_append(TOPIC, ticket).deduped
    assert outlet.settled_pos == outlet.placed_pos


@pytest.mark.fault("DIR-02")
def test_a_topic_takes_nothing_until_the_debris_is_gone(place: Place) -> None:
    place.machine.append(TOPIC, [b"before"])
    place.machine.checkpoint()
    place.faults.only = lambda name, path: name in {"sync_data", "truncate"} and path.suffix == ".data"
    place.faults.calls.clear()
    place.faults.fail_at, place.faults.always = 1, True
    with pytest.raises(StorageFailed):
        place.machine.append(TOPIC, large("a"), producer=7, number=1)
    for _ in range(2):
        with pytest.raises(StorageFailed) as refused:
            place.machine.append(TOPIC, [b"small"])
        assert refused.value.detail["errno"] == errno.EIO
        place.machine.tick()
    place.faults.fail_at = None
    place.machine.tick()
    assert place.machine.append(TOPIC, [b"after"]).first_seq == 2
    place.restart()
    assert [record.data for record in place.machine.read(TOPIC)] == [b"before", b"after"]


@pytest.mark.fault("DIR-04")
def test_those_who_wait_hear_that_the_topic_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.parts.backlog, "note_direct", lambda topic: None)
    tickets = [
        place.machine.begin_append(TOPIC, large("a"), producer=7, number=1),
        place.machine.begin_append(TOPIC, [b"behind"], producer=7, number=2),
    ]
    place.machine.settle()
    place.machine.ask(TOPIC, Op.DELETE_TOPIC)
    for ticket in tickets:
        with pytest.raises(TopicNotFound):
            place.machine.finish_append(TOPIC, ticket)
    assert place.parts.direct.bytes == 0
    assert not place.parts.outlets[0].pins


def test_what_waits_counts_as_under_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.parts.backlog, "note_direct", lambda topic: None)
    frames = place.machine.begin_append(TOPIC, large("a"), producer=7, number=1)
    place.machine.begin_append(TOPIC, [b"behind"], producer=7, number=2)
    place.machine.settle()
    assert not frames.wire.answered(frames.request_id)
    topic = place.parts.catalog.by_name[TOPIC]
    assert place.parts.direct.bytes == sum(len(entry.frames) for entry in topic.flight.behind_direct) > 4 * 400
    assert (topic.seqs.head, topic.seqs.visible) == (5, 0)
