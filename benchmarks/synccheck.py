"""Does a peer really sync? Its sync calls are held up for a while; a durable append must wait for one that it began.

Counting calls would not do: a peer that acknowledges first and syncs afterwards makes just as many.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.base import Peer
from topicd.bench.work import payloads

APPENDS = 50
CALLS = "fsync,fdatasync,sync_file_range,msync,syncfs"
# A little room for a call that was under way when the tracer came.
ENOUGH = 0.9
ATTACH_TIMEOUT = 10.0
# Every sync call returns this much later than it could.
DELAY_S = 0.010
# The tracer reads the same clock a moment later.
CLOCK_ROOM_S = 100e-6
FLUSHES_FIELD = 18  # of /proc/diskstats, counted from the major number

# 4711 1700000000.123456 fdatasync(7) = 0 (DELAYED)
# 4711 1700000000.123456 fdatasync(7 <unfinished ...>
TRACED = re.compile(r"^\d+\s+(\d+\.\d+) \w+\(")


class Span(NamedTuple):
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SyncCheck:
    acks: int
    synced: int | None  # appends that waited for a sync; None: could not be seen
    how: str

    @property
    def syncs_each(self) -> bool | None:
        return None if self.synced is None else self.synced >= ENOUGH * self.acks

    def __str__(self) -> str:
        if self.synced is None:
            return f"not checked: {self.how}"
        verdict = "syncs" if self.syncs_each else "does not sync"
        return f"{verdict}: {self.synced} of {self.acks} acknowledged appends waited for a sync ({self.how})"


def check(peer: Peer, scratch: Path) -> SyncCheck:
    """Append durably while the syncs of all the peer's processes are watched."""
    with peer.topics(1, True) as [topic], peer.connect(True) as session:
        data = payloads(100, 1)[0]
        session.append(topic, data)
        pids = peer.sync_pids()
        watch = _strace(pids, scratch) if shutil.which("strace") else None
        if watch is None:
            return _by_flushes(lambda: session.append(topic, data), scratch)
        with watch as syncs:
            appends = [_timed(lambda: session.append(topic, data)) for _ in range(APPENDS)]
        if syncs is None:
            return _by_flushes(lambda: session.append(topic, data), scratch)
        synced = waited(appends, syncs)
        if not synced and _opens_for_sync(pids, peer.root):
            return SyncCheck(APPENDS, APPENDS, "files opened with O_DSYNC")
    return SyncCheck(APPENDS, synced, "strace")


def waited(appends: Iterable[Span], syncs: list[float]) -> int:
    """Appends within which a sync began and, held up as it was, can have returned before the acknowledgement."""
    return sum(
        any(a.start - CLOCK_ROOM_S <= at and at + DELAY_S <= a.end + CLOCK_ROOM_S for at in syncs) for a in appends
    )


def parse(lines: Iterable[str]) -> list[float]:
    """When sync calls began; the second half of one that was interrupted is not another."""
    return [float(found[1]) for line in lines if (found := TRACED.match(line))]


def _timed(append: Callable[[], object]) -> Span:
    start = time.time()
    append()
    return Span(start, time.time())


@contextlib.contextmanager
def _strace(pids: list[int], scratch: Path) -> Iterator[list[float] | None]:
    """A list that holds the times of the sync calls on leaving; None if tracing is not allowed here."""
    output = scratch / "strace.out"
    output.unlink(missing_ok=True)
    argv = ["strace", "-f", "-qq", "-ttt", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(output)]
    argv += ["-e", f"inject={CALLS}:delay_exit={int(DELAY_S * 1e6)}"]
    tracer = subprocess.Popen([*argv, *(f"-p{pid}" for pid in pids)], stderr=subprocess.DEVNULL)
    syncs: list[float] = []
    try:
        yield syncs if _attached(pids, tracer) else None
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGINT)
        tracer.wait()
    if output.exists():
        syncs += parse(output.read_text().splitlines())


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


def _by_flushes(append: Callable[[], object], scratch: Path) -> SyncCheck:
    """Without strace: cache flushes of the block device, those of other programs included."""
    before = _device_flushes(scratch)
    for _ in range(APPENDS):
        append()
    after = _device_flushes(scratch)
    if before is None or after is None:
        return SyncCheck(APPENDS, None, "strace cannot be used, and the device does not count its flushes")
    return SyncCheck(APPENDS, min(APPENDS, after - before), "flushes of the device, whoever caused them")


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
        for entry in _entries(Path(f"/proc/{pid}/fd")):
            with contextlib.suppress(OSError):
                inside = os.readlink(entry).startswith(str(root))
                info = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text()
                flags = re.search(r"^flags:\s+(\d+)", info, re.MULTILINE)
                if inside and flags and int(flags.group(1), 8) & os.O_DSYNC:
                    return True
    return False


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
