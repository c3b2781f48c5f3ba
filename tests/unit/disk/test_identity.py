"""Run number, ids and instances: durable before use, never given twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicd.disk.fs import RealFs
from topicd.disk.identity import ID_BLOCK, Identity
from topicd.errors import FormatError
from topicd.paths import DataDir, Instance


class FullDisk(RealFs):
    """Renames fail: nothing can be made durable."""

    def rename(self, source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path)


def opened(data: DataDir) -> Identity:
    identity = Identity(RealFs(), data)
    identity.open()
    return identity


def begin(data: DataDir, has_rings: bool = True) -> Identity:
    identity = opened(data)
    identity.begin_run(2, 3, 3, lambda old: has_rings)
    return identity


def test_first_run_begins_with_nothing_to_drain(data: DataDir) -> None:
    record = begin(data).record
    assert (record.run, record.next_id, record.undrained, record.garbage) == (1, 1 + 3 * ID_BLOCK, None, ())
    assert record.live is not None
    assert len(record.live.instance) == 16


def test_everything_is_on_disk_before_it_is_returned(data: DataDir) -> None:
    identity = begin(data)
    assert opened(data).record == identity.record
    start, end = identity.take_ids()
    assert end - start == ID_BLOCK
    assert opened(data).record.next_id == end


def test_ids_are_never_given_twice_over_runs(data: DataDir) -> None:
    given: list[range] = []
    for _ in range(4):
        identity = begin(data)
        given += [range(*identity.take_ids()) for _ in range(3)]
    taken = [number for block in given for number in block]
    assert len(taken) == len(set(taken))


def test_ids_are_not_given_when_they_cannot_be_made_durable(data: DataDir) -> None:
    before = begin(data).record
    broken = Identity(FullDisk(), data)
    broken.open()
    with pytest.raises(OSError, match="No space left"):
        broken.take_ids()
    assert broken.record == before == opened(data).record


def test_killed_run_is_drained_by_the_next(data: DataDir) -> None:
    killed = begin(data).record.live
    second = begin(data)
    assert second.record.undrained == killed
    second.mark_drained()
    assert second.record.undrained is None
    assert killed is not None and second.record.garbage == (killed.instance,)
    assert opened(data).record == second.record


def test_rings_that_are_gone_are_not_drained_but_swept(data: DataDir) -> None:
    killed = begin(data).instance
    second = begin(data, has_rings=False)
    assert second.record.undrained is None
    assert second.record.garbage == (killed,)


def test_run_killed_before_it_drained_is_passed_over(data: DataDir) -> None:
    first = begin(data).record.live
    second = begin(data).instance
    third = begin(data)
    assert third.record.undrained == first
    assert third.record.garbage == (second,)


def test_clean_stop_leaves_nothing_to_drain(data: DataDir) -> None:
    first = begin(data)
    first.mark_clean()
    assert first.record.live is None
    second = begin(data)
    assert second.record.undrained is None


def test_stop_before_the_old_rings_were_drained_keeps_them_on_record(data: DataDir) -> None:
    first = begin(data).record.live
    begin(data).mark_clean()
    assert begin(data).record.undrained == first


def test_garbage_once_swept_is_forgotten_with_the_next_change(data: DataDir) -> None:
    begin(data).mark_clean()
    identity = begin(data)
    assert identity.record.garbage
    identity.forget_garbage()
    identity.take_ids()
    assert opened(data).record.garbage == ()


def test_damage_is_refused(data: DataDir) -> None:
    begin(data)
    raw = bytearray(data.identity.read_bytes())
    raw[-1] ^= 1
    data.identity.write_bytes(raw)
    with pytest.raises(FormatError):
        opened(data)


def test_missing_identity_beside_data_is_refused(data: DataDir) -> None:
    (data.topics / "0000000000000001").mkdir(parents=True)
    with pytest.raises(FormatError, match="topic ids could be given twice"):
        opened(data)


def test_old_instance_keeps_its_shard_counts(data: DataDir) -> None:
    identity = begin(data)
    assert begin(data).record.undrained == Instance(identity.instance, 2, 3)
