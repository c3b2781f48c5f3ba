"""Facts about the machine: without them a figure means nothing."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from importlib import metadata
from pathlib import Path

import psutil

from topicd import compiled
from topicd._native import is_native, why_pure

PACKAGES = ("topicd", "uvloop", "redis", "hiredis", "nats-py")
BUSY = 0.3  # load for each core beyond which figures are not to be trusted
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
        "machine code": _machine_code(),
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


def is_volatile(path: Path) -> bool:
    """In memory: every sync there is free and every figure of durable writes false."""
    return filesystem(path)[1] in VOLATILE


def is_virtual() -> bool:
    return " hypervisor " in f" {Path('/proc/cpuinfo').read_text()} ".replace("\n", " ")


def is_busy() -> bool:
    """Are other programs at work?"""
    return os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)


def _load() -> str:
    shown = " ".join(f"{x:.2f}" for x in os.getloadavg()) + " (1, 5, 15 minutes, at the start)"
    return shown + (": OTHER PROGRAMS ARE AT WORK, the figures are distorted" if is_busy() else "")


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


def _machine_code() -> str:
    core = "C core" if is_native else f"no C core ({why_pure})"
    modules = f"modules interpreted ({compiled.why_not_used})" if compiled.why_not_used else "modules compiled"
    return f"{core}, {modules}"
