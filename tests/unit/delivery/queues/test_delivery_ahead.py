"""Records read ahead: who takes jobs one by one costs few reads, and gets what the log has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.faultfs import FaultFile
from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.queues import ahead

SIZES = (3, 0, 500, 70, 1)
LARGE = {"segment_max_bytes": 1 << 20, "segment_max_records": 10_000}


def _data(seq: int) -> bytes:
    return f"{seq} ".encode().ljust(SIZES[seq % len(SIZES)], b".")


def _stored(desk: Desk, count: int) -> Hands:
    hands = Hands(desk.serve())
    desk.write(hands.topic, [_data(seq) for seq in range(1, count + 1)])
    desk.checkpoint()
    assert hands.topic.seqs.stored == count
    return hands


def _reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of records: the bytes of each."""
    found: list[int] = []
    plain = FaultFile.pread

    def pread(file: FaultFile, size: int, offset: int) -> bytes:
        if file._path.suffix == ".data":
            found.append(size)
        return plain(file, size, offset)

    monkeypatch.setattr(FaultFile, "pread", pread)
    return found


def test_jobs_one_by_one_cost_one_read_in_many(open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    hands, reads = _stored(open_desk(**LARGE), 600), _reads(monkeypatch)
    for seq in range(1, 601):
        claimed = hands.claim()
        assert [(job.seq, job.data) for job in claimed.jobs] == [(seq, _data(seq))]
        hands.done(claimed)
    assert len(reads) < 10


def test_a_few_at_a_time_come_from_there_and_many_do_not(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, reads = _stored(open_desk(**LARGE), 200), _reads(monkeypatch)
    for first in range(1, 81, 8):
        assert [job.data for job in hands.claim(8).jobs] == [_data(seq) for seq in range(first, first + 8)]
    assert len(reads) == 2
    assert hands.claim(100).seqs == list(range(81, 181)) and len(reads) == 3


def test_jobs_here_and_there_are_read_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(desk.serve())
    for _ in range(20):
        for group in ("a", "b", "c"):
            hands.put_many(3, group=group)
    desk.checkpoint()
    reads = _reads(monkeypatch)
    seqs = [hands.claim().seqs[0] for _ in range(30)]
    assert len(seqs) <= len(reads) <= len(seqs) + 3


def test_records_that_were_deleted_are_not_handed_out(desk: Desk) -> None:
    hands = _stored(desk, 50)
    assert [hands.claim().seqs for _ in range(3)] == [[1], [2], [3]]
    hands.line.ask(Op.DELETE_RECORDS, topic=hands.name, before_seq=11)
    assert hands.claim().seqs == [11]


def test_a_gap_ends_what_is_read_ahead(desk: Desk) -> None:
    hands = _stored(desk, 30)
    held = hands.claim(10)
    far = hands.claim(5)
    hands.done(far)  # 11 to 15 are gone
    hands.nack(held, kind="release")
    assert [hands.claim().seqs[0] for _ in range(25)] == [*range(1, 11), *range(16, 31)]


def test_what_is_kept_has_a_bound(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "QUEUES", 2)
    queues = [Hands(desk.serve(), f"q{n}") for n in range(4)]
    for hands in queues:
        hands.write(10)
    desk.checkpoint()
    for hands in queues:
        hands.claim()
        hands.claim()
    kept = queues[0].service.tools.ahead
    assert list(kept._held) == [queues[2].topic.id, queues[3].topic.id]
    hands = queues[0]
    assert [hands.claim().seqs for _ in range(3)] == [[3], [4], [5]]


def test_nothing_is_kept_of_a_queue_that_is_gone(desk: Desk) -> None:
    hands = _stored(desk, 10)
    hands.claim()
    hands.claim()
    kept = hands.service.tools.ahead
    assert kept._held
    hands.line.ask(Op.DELETE_TOPIC, topic=hands.name)
    assert not kept._held and not kept._next


def test_jobs_in_memory_are_handed_out_as_they_are_and_none_that_went(desk: Desk) -> None:
    hands = Hands(desk)
    desk.write(hands.topic, [_data(seq) for seq in range(1, 41)])
    assert hands.topic.seqs.stored == 0
    assert [job.data for job in hands.claim(8).jobs] == [_data(seq) for seq in range(1, 9)]
    assert hands.claim().jobs[0].data == _data(9)
    hands.line.ask(Op.DELETE_RECORDS, topic=hands.name, before_seq=12)
    assert hands.claim(2).seqs == [12, 13]
    held = hands.claim(3)
    hands.done(hands.claim(2))  # 17 and 18
    hands.nack(held, kind="release")
    assert [hands.claim(6).seqs, hands.claim(100).seqs] == [[14, 15, 16, 19, 20, 21], list(range(22, 41))]
