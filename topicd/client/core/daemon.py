"""Where a daemon may be: the target that was given, the environment, and the usual run directories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from topicd.client.core import address
from topicd.client.core.address import Target
from topicd.config import CONFIG_ENV, SYSTEM_FILE
from topicd.errors import ConnectionLost, InvalidRequest
from topicd.paths import RunDir

SYSTEM_RUN_DIR = Path("/run/topicd")
LOCAL_RUN_DIR = Path("var/run")
SCHEME = "unix://"


def candidates(target: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> list[tuple[str, Target]]:
    """(where the hint came from, socket) in the order to try. What was said outright excludes all guesses:
    a program told to use one daemon must not end up with another."""
    if target is not None:
        return [("the target given", _parsed(target, environ))]
    if environ.get("TOPICD_SOCKET"):
        return [("TOPICD_SOCKET", _parsed(environ["TOPICD_SOCKET"], environ))]
    if environ.get("TOPICD_RUN_DIR"):
        return [("TOPICD_RUN_DIR", RunDir(Path(environ["TOPICD_RUN_DIR"]).expanduser().absolute()).socket)]
    found: list[tuple[str, Target]] = []
    if (configured := configured_run_dir(environ)) is not None:
        found.append(("the settings file", RunDir(configured).socket))
    if environ.get("XDG_RUNTIME_DIR"):
        found.append(("XDG_RUNTIME_DIR", RunDir(Path(environ["XDG_RUNTIME_DIR"]) / "topicd").socket))
    found.append(("the system's", RunDir(SYSTEM_RUN_DIR).socket))
    found.append(("the working directory", RunDir(LOCAL_RUN_DIR.absolute()).socket))
    return found


def configured_run_dir(environ: Mapping[str, str]) -> Path | None:
    """Where the daemon that is configured here has its sockets, if a settings file says so and we may read it."""
    import tomllib

    try:
        said = tomllib.loads(Path(environ.get(CONFIG_ENV) or SYSTEM_FILE).read_text()).get("run_dir")
    except (OSError, ValueError):
        return None
    return Path(said).expanduser().absolute() if isinstance(said, str) and said else None


def _parsed(target: str | os.PathLike[str], environ: Mapping[str, str]) -> Target:
    text = os.fspath(target)
    return address.parse(text, environ) if address.is_remote(text) else socket_path(text)


def socket_path(target: str | os.PathLike[str]) -> Path:
    """The socket behind a path, a unix:// URL or a run directory."""
    text = os.fspath(target)
    if text.startswith(SCHEME):
        text = text.removeprefix(SCHEME)
    elif "://" in text:
        raise InvalidRequest(f"target {text!r:.300} has an unknown scheme; there are unix, tcp and tls")
    if not text:
        raise InvalidRequest("the target is empty")
    path = Path(text).expanduser()
    try:
        return RunDir(path).socket if path.is_dir() else path
    except PermissionError:
        return path  # connecting says what is wrong


def not_found(tried: list[tuple[str, Target, str]]) -> ConnectionLost:
    lines = [f"  {path} ({hint}): {why}" for hint, path, why in tried]
    return ConnectionLost("no topicd daemon found; tried\n" + "\n".join(lines), tried=[str(p) for _, p, _ in tried])
