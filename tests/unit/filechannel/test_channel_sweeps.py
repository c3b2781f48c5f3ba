"""Crashes and failures at every filesystem call of a channel's life: opening, sending, cutting, acknowledging,
collecting, compressing, dropping.

With `fsync`, after each of them: every message whose send returned is there, in order, nothing else but what was being
sent, no receiver is behind what it acknowledged or ahead of what it was given, no damage is invented, and the channel
goes on. With `os`: the same after a kill; after a power loss what is left is in order and what is missing is reported.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.filechannel.kit import FULL, SMALL
from tests.unit.storage.sweep import calls_of, failures, fingerprint, images, noting, sampled, sweep
from topicd.disk.fs import Fs
from topicd.errors import TopicdError
from topicd.filechannel import Damaged, FileChannel, Gap, NotEnough

pytestmark = pytest.mark.timeout(3600 if FULL else 120)

HOME = Path("/spool")


def message(number: int) -> bytes:
    return b"%06d" % number + b"m" * (number * 37 % 300)


class Story:
    """One life of a channel. What came back from its calls is noted; a crash or a failure may end it anywhere."""

    def __init__(self, durability: str, **options: object) -> None:
        self.options = {"durability": durability, "segment_bytes": SMALL, **options}
        self.disk = FakeDisk(directories=[Path("/")])
        self.sent = self.tried = 0
        self.acked = self.taken = 0
        self.checked: set[object] = set()
        with self.open(self.disk) as channel:
            channel.sender().send_many(list(map(message, range(60))))
            receiver = channel.receiver("r")
            receiver.recv_many(25, 0)
            receiver.ack(20)
        self.disk.sync_filesystem(Path("/"))
        self.start = (60, 20)

    def open(self, fs: Fs, **options: object) -> FileChannel[bytes]:
        return FileChannel(HOME, fs=fs, **{**self.options, **options})  # type: ignore[call-overload,no-any-return]

    def live(self, fs: Fs) -> None:
        self.sent = self.tried = self.start[0]
        self.acked = self.taken = self.start[1]
        with self.open(fs, compress=True) as channel:
            self.send(channel, 1)
            self.send(channel, 30)
            self.receive(channel, 45)
            channel.compact()
            self.send(channel, 1)
            self.send(channel, 40)
            channel.compact()
            self.receive(channel, 3)

    def send(self, channel: FileChannel[bytes], count: int) -> None:
        self.tried = self.sent + count
        new = [message(number) for number in range(self.sent, self.tried)]
        if count == 1:
            channel.sender().send(new[0])
        else:
            channel.sender().send_many(new)
        self.sent = self.tried

    def receive(self, channel: FileChannel[bytes], count: int) -> None:
        with channel.receiver("r") as receiver:
            found = receiver.recv_many(count, 0)
            assert found == [message(number) for number in range(self.acked, self.acked + len(found))]
            self.taken = self.acked + len(found)
            receiver.ack(len(found))
            self.acked = self.taken

    def check(self, disk: FakeDisk, done: bool) -> None:
        key = (fingerprint(disk), self.sent, self.tried, self.acked, self.taken)
        if key in self.checked:
            return
        self.checked.add(key)
        self.crash_in_repair(disk)
        with self.open(MonitorFs(disk)) as channel:
            assert channel.damage == []
            receiver = channel.receiver("r")
            found = []
            with suppress(NotEnough):
                while True:
                    found.append(receiver.recv(0))
            first = int(bytes(found[0])[:6]) if found else self.tried  # type: ignore[arg-type]
            assert self.acked <= first <= self.taken or not found
            last = first + len(found)
            assert found == [message(number) for number in range(first, last)]
            if found:
                assert self.sent <= last <= self.tried
            else:
                assert self.sent <= self.taken
            if self.options["durability"] == "fsync":
                # What a receiver was given survives, also if a sync had failed before the opening.
                with self.open(disk.image(0)) as after:
                    again = after.receiver("r").recv_many(len(found), 0) if found else []
                assert again == found
            # It goes on, here and after a power loss.
            channel.sender().send(b"next")
            assert receiver.recv(0) == b"next"
            receiver.ack_all()
        with self.open(disk.image(0)) as channel:
            if self.options["durability"] == "fsync":
                with pytest.raises(NotEnough):
                    channel.receiver("r").recv(0)

    def crash_in_repair(self, disk: FakeDisk) -> None:
        """The repair itself may be cut off."""
        random = Random(fingerprint(disk))
        counting = FaultFs(disk.image(0))
        self.open(counting).close()
        point = random.randint(0, counting.count)
        with suppress(Crashed):
            self.open(FaultFs(disk, crash_after=point)).close()
            return
        disk.crash(random.randint(0, 100) if self.options["durability"] == "fsync" else 1)


@pytest.fixture(scope="module")
def story() -> Story:
    return Story("fsync")


def test_F06_with_fsync_a_power_loss_anywhere_loses_nothing(story: Story) -> None:
    sweep(story.disk, story.live, story.check)


def test_F06_with_fsync_a_failure_anywhere_loses_nothing(story: Story) -> None:
    for what, failing, used in failures(story.disk, story.live):
        with noting(what):
            with suppress(OSError, TopicdError):
                story.live(failing)
            for left in images(used):
                story.check(left, False)
            # And where the power stays on: reads still show what a failed sync did not store.
            story.check(used, False)


def test_F06_what_was_received_although_its_sync_had_failed_survives_the_power(story: Story) -> None:
    """The system shows bytes that it will never store: they are written once more before a receiver sees them."""
    disk = story.disk.image(0)
    failing = FaultFs(disk, only=lambda name, path: name == "sync_data" and path.name.startswith("segment."))
    with suppress(TopicdError, OSError), story.open(failing) as channel:
        failing.fail_at = failing.count + 1
        channel.sender().send(message(60))
    assert failing.failures == 1
    with story.open(disk) as channel:
        found = channel.receiver("r").recv_many(1_000, 0)
    assert found == [message(number) for number in range(20, 61)]
    with story.open(disk.image(0)) as channel:
        assert channel.receiver("r").recv_many(1_000, 0) == found


KEPT = STYLES.index("kept")


def test_F06_with_os_a_kill_anywhere_loses_nothing() -> None:
    story = Story("os")
    for point in sampled(calls_of(story.disk, story.live)):
        used = story.disk.image(0)
        with suppress(Crashed):
            story.live(FaultFs(used, crash_after=point))
        with noting(f"killed after call {point}"):
            story.check(used.image(KEPT), False)


def read_all(channel: FileChannel[bytes], name: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Every message that can be had, and what cannot."""
    found, lost = [], []
    with channel.receiver(name, auto_ack=True) as receiver:
        while True:
            try:
                item = receiver.recv(0)
            except NotEnough:
                return found, lost
            except Damaged as damage:
                lost.append((damage.begin, damage.end))
                receiver.skip_damage()
                continue
            assert isinstance(item, bytes)
            assert item == message(int(item[:6]))
            found.append(int(item[:6]))


def test_F06_with_os_a_power_loss_is_reported_and_never_invents() -> None:
    story = Story("os")
    losses = 0
    for point in sampled(calls_of(story.disk, story.live)):
        used = story.disk.image(0)
        with suppress(Crashed):
            story.live(FaultFs(used, crash_after=point))
        for seed in range(len(STYLES) * (10 if FULL else 2)):
            left = used.image(seed)
            with noting(f"after call {point}, seed {seed} ({STYLES[seed % len(STYLES)]})"):
                losses += check_power_loss(story, left)
    assert losses, "the sweep has not met a single loss: it shows nothing"


def check_power_loss(story: Story, left: FakeDisk) -> int:
    with story.open(left) as channel:
        oldest, start = channel.stats().begin_offset, channel.stats().receivers["r"].offset
        found, lost = read_all(channel, "r")
        # Segments go only when the offsets that allow it are safe: nobody misses what was collected. (One whose end the
        # power took may have gone when it was opened; what was lost with it has been reported.)
        for begin, end in lost:
            assert begin >= oldest or any(gone.begin <= begin and end <= gone.end for gone in channel.damage)
        assert found == sorted(set(found))
        assert all(number < story.tried for number in found)
        # A hole between two messages is one that was reported.
        holes = sum(after != number + 1 for number, after in pairwise(found))
        assert holes <= len(lost)
        # Whoever has acknowledged beyond damage does not meet it.
        assert start is not None and (lost or not found or all(damage.end <= start for damage in channel.damage))
        channel.sender().send(message(999))
        assert read_all(channel, "r") == ([999], [])
    return len(lost) + (len(found) < story.sent - story.acked)


# ---- dropping ----


class Dropping(Story):
    def live(self, fs: Fs) -> None:
        self.sent = self.tried = self.start[0]
        self.acked = self.taken = self.start[1]
        with self.open(fs, max_bytes=4 * SMALL, full="drop_oldest") as channel:
            for _ in range(8):
                self.send(channel, 20)

    def check(self, disk: FakeDisk, done: bool) -> None:
        with self.open(MonitorFs(disk)) as channel:
            assert channel.damage == []
            with channel.receiver("r", auto_ack=True) as receiver:
                found = []
                with suppress(NotEnough):
                    while True:
                        found.append(receiver.recv(0))
        gaps = [item for item in found if isinstance(item, Gap)]
        numbers = [int(item[:6]) for item in found if isinstance(item, bytes)]
        assert gaps == found[: len(gaps)] and len(gaps) <= 1
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[0] == self.acked or gaps, "messages are gone without a word"
        assert self.sent <= numbers[-1] + 1 <= self.tried


def test_dropping_crashes_anywhere() -> None:
    story = Dropping("fsync")
    sweep(story.disk, story.live, story.check)


def test_a_disk_that_is_full_refuses_and_keeps_everything() -> None:
    for room in range(0, 6000, 500):
        story = Story("fsync")
        used = story.disk.image(0)
        used.capacity = sum(map(len, used.files().values())) + room
        with suppress(OSError, TopicdError):
            story.live(used)
        used.capacity = None
        story.check(used, False)
