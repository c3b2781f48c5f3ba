"""Facts about the machine: without them a figure means nothing."""

from __future__ import annotations

import mmap
import os
import platform
import re
import sqlite3
from importlib import metadata
from pathlib import Path

import psutil

PACKAGES = ("topicd", "uvloop", "redis", "hiredis", "nats-py")
BUSY = 0.3  # load for each core beyond which figures are not to be trusted
TOUCH_PIECE = 256 * 2**20
TOUCH_AT_MOST = 10 * 2**30
VOLATILE = {"tmpfs", "ramfs", "devtmpfs"}


def facts(work_dir: Path) -> dict[str, str]:
    device, kind, options = filesystem(work_dir)
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores, {_hypervisor()}",
        "governor": _governor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "load": _load(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "filesystem": f"{kind} on {device} ({options}), {work_dir}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(_packages()),
        "sqlite": sqlite3.sqlite_version,
    }


def filesystem(path: Path) -> tuple[str, str, str]:
    """Device, type and mount options of the filesystem that holds a path."""
    best = ("", "unknown", "unknown", "")
    resolved = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind, options = line.split()[:4]
        mount = mount.replace("\\040", " ")
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, device, kind, options)
    return best[1], best[2], best[3]


def check_disk(path: Path) -> None:
    """Refuse a directory in memory: every sync there is free and every figure false."""
    kind = filesystem(path)[1]
    if kind in VOLATILE:
        raise SystemExit(f"{path} is on {kind}, where a sync costs nothing; give --dir on a real disk")


def touch_memory() -> float:
    """Touch free memory once; the GiB touched. A virtual machine gets each page from its host at the first touch, which
    costs many times the copy into it: whoever happens to write to untouched pages would pay for all."""
    pieces: list[mmap.mmap] = []
    wanted = min(TOUCH_AT_MOST, psutil.virtual_memory().free * 6 // 10) // TOUCH_PIECE
    for _ in range(wanted):
        piece = mmap.mmap(-1, TOUCH_PIECE)
        pieces.append(piece)
        for at in range(0, TOUCH_PIECE, mmap.PAGESIZE):
            piece[at] = 1
    for piece in pieces:
        piece.close()
    return len(pieces) * TOUCH_PIECE / 2**30


def is_virtual() -> bool:
    return " hypervisor " in f" {Path('/proc/cpuinfo').read_text()} ".replace("\n", " ")


def _load() -> str:
    load = os.getloadavg()
    shown = " ".join(f"{x:.2f}" for x in load) + " (1, 5, 15 minutes, at the start)"
    busy = load[0] > BUSY * (os.cpu_count() or 1)
    return shown + (": OTHER PROGRAMS ARE AT WORK, the figures are distorted" if busy else "")


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _hypervisor() -> str:
    return "virtual machine" if is_virtual() else "bare metal"


def _governor() -> str:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return "not visible"


def _packages() -> list[str]:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return found
