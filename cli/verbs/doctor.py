"""`topicctl doctor`: what may be wrong on this machine, and what to do about it. Promise: it changes nothing, and each
line says what was looked at.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from topicd import __version__, config
from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit
from topicd.cli.settings import load
from topicd.cli.show.human import size
from topicd.cli.show.render import Column
from topicd.errors import TopicdError
from topicd.limits import MIB
from topicd.words import counted

FILES_MIN = 4_096
DISK_MIN = 1024 * MIB
JAVA_MIN = 17


class Finding(NamedTuple):
    what: str
    state: str  # ok, note or wrong
    text: str
    advice: str = ""


@verb("doctor", examples="topicctl doctor\ntopicctl doctor --json | jq '.[] | select(.state != \"ok\")'")
@pass_app
def doctor(app: App) -> int:
    """Look at this installation, the daemon and the machine, and say what is wrong. Exit code 1 if something is."""
    found = list(examined(app))
    if app.json:
        app.out.document([finding._asdict() for finding in found])
    else:
        colours = {"ok": "green", "note": "yellow", "wrong": "red"}
        rows = [(f.what, app.out.styled(f.state, colours[f.state]), f.text) for f in found]
        app.out.table([Column("looked at"), Column("state"), Column("found", wrap=True)], rows)
        for finding in found:
            if finding.state != "ok" and finding.advice:
                app.out.text(f"{finding.what}: {finding.advice}")
    return Exit.FAILED if any(finding.state == "wrong" for finding in found) else Exit.OK


def examined(app: App) -> Iterator[Finding]:
    yield from installation()
    running: dict[str, Any] = {}
    yield from daemon(app, running)
    yield from machine(running)


# ---- this installation ----


def installation() -> Iterator[Finding]:
    from topicd import compiled
    from topicd._native import is_native, why_pure

    yield Finding("version", "ok", f"topicd {__version__}, Python {platform.python_version()}, {platform.platform()}")
    if is_native and not compiled.why_not_used:
        yield Finding("compiled", "ok", "native core, compiled modules")
    else:
        why = "; ".join(filter(None, ["" if is_native else f"pure core ({why_pure})", compiled.why_not_used]))
        advice = "" if "`" in why else "; install a C compiler and install topicd again"  # it says itself what to do
        yield Finding("compiled", "note", why, f"it works, slower{advice}")
    java = java_version()
    if java is None:
        yield Finding("Java", "note", "none found", f"only Spark needs it: version {JAVA_MIN} or newer")
    else:
        fine = java >= JAVA_MIN
        yield Finding("Java", "ok" if fine else "note", f"version {java}", "" if fine else f"Spark needs {JAVA_MIN}")


def java_version() -> int | None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin/java") if home else shutil.which("java")
    try:
        done = subprocess.run([java or "java", "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stderr.split('"')
    first = words[1].split(".")[0] if len(words) > 1 else ""
    return int(first) if first.isdecimal() else None


# ---- the daemon ----


def daemon(app: App, running: dict[str, Any]) -> Iterator[Finding]:
    try:
        with app.connect() as client:
            status = client.status()
            running.update(client.settings())
            running["pid"] = next((p["pid"] for p in status["processes"] if p["name"] == "supervisor"), 0)
            took = client.ping()
    except TopicdError as exc:
        from topicd.cli.exits import hint_of

        yield Finding("daemon", "wrong", " ".join(exc.message.split()), hint_of(exc))
        return
    except CliError as exc:
        yield Finding("daemon", "wrong", exc.message, exc.hint)
        return
    away = [p["name"] for p in status["processes"] if p["state"] != "serving"]
    if away:
        yield Finding("daemon", "wrong", f"does not serve: {', '.join(away)}", "`topicctl status` says more")
    else:
        serving = counted(len(status["processes"]), "process", "processes")
        yield Finding("daemon", "ok", f"{serving} serving, ping {took * 1000:.2f} ms")
    theirs = str(status.get("version", __version__))
    if theirs != __version__:
        yield Finding(
            "versions", "note", f"the daemon is {theirs}, this is {__version__}", "use topicctl of the daemon"
        )


# ---- the machine ----


def machine(running: dict[str, Any]) -> Iterator[Finding]:
    settings = dict(running)
    if not settings:
        try:
            settings = load(None).settings.to_wire()
        except CliError as exc:
            yield Finding("settings", "wrong", exc.message)
            settings = config.Settings().to_wire()
    yield from disk(Path(str(settings["data_dir"])))
    yield shared_memory(settings, bool(running))
    yield files(int(running.get("pid") or 0))
    yield clock()


def disk(place: Path) -> Iterator[Finding]:
    there = next((path for path in (place, *place.absolute().parents) if path.exists()), Path("/"))
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    state = "ok" if free >= DISK_MIN else "wrong"
    yield Finding(
        "disk", state, f"{size(free)} free for {place}", "" if state == "ok" else "free space, or move data_dir"
    )
    if there == place and not os.access(place, os.W_OK):
        yield Finding("data directory", "note", f"{place} is not ours to write", "run the daemon and fsck as its owner")


def shared_memory(settings: dict[str, Any], runs: bool) -> Finding:
    needed = (
        int(settings["wal_shards"]) * int(settings["delivery_shards"]) * (int(settings["ring_bytes"]) + MIB) + 16 * MIB
    )
    try:
        found = os.statvfs("/dev/shm")
    except OSError as exc:
        return Finding("/dev/shm", "wrong", f"cannot be used: {exc.strerror}", "mount a tmpfs there")
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    text = f"{size(total)}, {size(free)} free; the rings take about {size(needed)}"
    if total < needed or (not runs and free < needed):
        advice = (
            f"docker: --shm-size={needed // MIB + 64}m; systemd: a larger tmpfs; or fewer shards, smaller ring_bytes"
        )
        return Finding("/dev/shm", "wrong", text, advice)
    return Finding("/dev/shm", "ok", text)


def files(pid: int) -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    whose = "this shell"
    try:
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if pid else ():
            if line.startswith("Max open files"):
                soft, whose = int(line.split()[3]), f"the daemon (pid {pid})"
    except (OSError, ValueError):
        pass
    enough = soft >= FILES_MIN or soft == resource.RLIM_INFINITY
    text = f"{whose} may open {'any number of files' if soft == resource.RLIM_INFINITY else counted(soft, 'file')}"
    return Finding(
        "ulimit", "ok" if enough else "wrong", text, "" if enough else f"ulimit -n {FILES_MIN}, or LimitNOFILE="
    )


def clock() -> Finding:
    year = time.gmtime().tm_year
    if not 2024 <= year <= 2100:
        return Finding("clock", "wrong", f"the year is {year}", "set the clock: TTLs and times of records follow it")
    known = Path("/run/systemd/timesync/synchronized").exists() or Path("/run/chrony").exists()
    now = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    if known:
        return Finding("clock", "ok", f"{now}, kept by a time service")
    advice = "a clock that jumps moves TTLs; run chrony or timesyncd"
    return Finding("clock", "note", f"{now}, no time service seen", advice)
