"""Does a peer really sync? Single durable appends are counted against the sync calls of its processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.base import Peer
from benchmarks.work import payloads

APPENDS = 50
CALLS = "fsync,fdatasync,sync_file_range,msync,syncfs"
# Single appends cannot share a sync; a little room for a call that was under way when the tracer came.
ENOUGH = 0.9
ATTACH_TIMEOUT = 10.0
SYNC_FLAGS = os.O_DSYNC
FLUSHES_FIELD = 18  # of /proc/diskstats, counted from the major number


@dataclass(frozen=True, slots=True)
class SyncCheck:
    acks: int
    syncs: int | None  # None: could not be counted
    how: str

    @property
    def syncs_each(self) -> bool | None:
        return None if self.syncs is None else self.syncs >= ENOUGH * self.acks

    def __str__(self) -> str:
        if self.syncs is None:
            return f"not checked: {self.how}"
        verdict = "syncs" if self.syncs_each else "does not sync"
        return f"{verdict}: {self.syncs} sync calls for {self.acks} acknowledged appends ({self.how})"


def check(peer: Peer, scratch: Path) -> SyncCheck:
    """Append durably while the syncs of all the peer's processes are counted."""
    with peer.topics(1, True) as [topic], peer.connect(True) as session:
        data = payloads(100, 1)[0]
        session.append(topic, data)
        pids = peer.sync_pids()
        counter = _strace(pids, scratch) if shutil.which("strace") else _flushes(scratch)
        with counter as counted:
            for _ in range(APPENDS):
                session.append(topic, data)
        syncs, how = counted.read()
        if not syncs and _opens_for_sync(pids, peer.root):
            return SyncCheck(APPENDS, APPENDS, "files opened with O_DSYNC")
    return SyncCheck(APPENDS, syncs, how)


class Counted:
    """What a counter found once it was closed."""

    def __init__(self) -> None:
        self.syncs: int | None = None
        self.how = "nothing counted"

    def read(self) -> tuple[int | None, str]:
        return self.syncs, self.how


@contextlib.contextmanager
def _strace(pids: list[int], scratch: Path) -> Iterator[Counted]:
    output = scratch / "strace.out"
    output.unlink(missing_ok=True)
    argv = ["strace", "-f", "-qq", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(output)]
    for pid in pids:
        argv += ["-p", str(pid)]
    counted = Counted()
    tracer = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        if not _attached(pids, tracer):
            counted.how = "strace may not attach here"
            yield counted
            return
        yield counted
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGINT)
        tracer.communicate()
    lines = output.read_text().splitlines()
    # A call that another thread interrupts is printed twice; its second half says "resumed".
    counted.syncs = sum(1 for line in lines if re.search(r"^\d+\s+\w+\(", line))
    counted.how = "strace"


def _attached(pids: list[int], tracer: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + ATTACH_TIMEOUT
    while time.monotonic() < deadline and tracer.poll() is None:
        if all(_tracer_of(pid) == tracer.pid for pid in pids):
            return True
        time.sleep(0.01)
    return False


def _tracer_of(pid: int) -> int:
    try:
        found = re.search(r"^TracerPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) if found else 0


@contextlib.contextmanager
def _flushes(scratch: Path) -> Iterator[Counted]:
    """Without strace: cache flushes of the block device. Other programs' flushes count too."""
    counted = Counted()
    before = _device_flushes(scratch)
    yield counted
    after = _device_flushes(scratch)
    if before is None or after is None:
        counted.how = "no strace, and the device does not count flushes"
    else:
        counted.syncs = after - before
        counted.how = "flushes of the device, those of other programs included"


def _device_flushes(path: Path) -> int | None:
    device = path.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)) and len(fields) > FLUSHES_FIELD:
            return int(fields[FLUSHES_FIELD])
    return None


def _opens_for_sync(pids: list[int], root: Path) -> bool:
    """Is a file of the peer open in a mode where each write is a sync?"""
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(entry)
                    info = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text()
                    flags = int(re.search(r"^flags:\s+(\d+)", info, re.MULTILINE).group(1), 8)  # type: ignore[union-attr]
                    if target.startswith(str(root)) and flags & SYNC_FLAGS:
                        return True
    return False
