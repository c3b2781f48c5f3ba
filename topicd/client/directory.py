"""Where the daemon is, and which shard owns a topic. Promise: what is known is replaced whole, never half."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from topicd.client import remote
from topicd.client.remote import Address
from topicd.client.wire import Hello
from topicd.errors import ConnectionLost, InvalidRequest, WrongShard
from topicd.paths import RunDir
from topicd.placement import delivery_shard

SUPERVISOR = -1
SYSTEM_RUN_DIR = Path("/run/topicd")
LOCAL_RUN_DIR = Path("var/run")
SCHEME = "unix://"


Place = Path | Address


def candidates(target: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> list[tuple[str, Place]]:
    """(where the hint came from, socket) in the order to try. What was said outright excludes all guesses:
    a program told to use one daemon must not end up with another."""
    if target is not None:
        return [("the target given", place(target, environ))]
    if environ.get("TOPICD_SOCKET"):
        return [("TOPICD_SOCKET", place(environ["TOPICD_SOCKET"], environ))]
    found: list[tuple[str, Place]] = []
    if environ.get("XDG_RUNTIME_DIR"):
        found.append(("XDG_RUNTIME_DIR", RunDir(Path(environ["XDG_RUNTIME_DIR"]) / "topicd").socket))
    found.append(("the system's", RunDir(SYSTEM_RUN_DIR).socket))
    found.append(("the working directory", RunDir(LOCAL_RUN_DIR.absolute()).socket))
    return found


def place(target: str | os.PathLike[str], environ: Mapping[str, str]) -> Place:
    text = os.fspath(target)
    return remote.address(text, environ) if remote.is_remote(text) else socket_path(text)


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
    return RunDir(path).socket if path.is_dir() else path


def not_found(tried: list[tuple[str, Place, str]]) -> ConnectionLost:
    lines = [f"  {path} ({hint}): {why}" for hint, path, why in tried]
    return ConnectionLost("no topicd daemon found; tried\n" + "\n".join(lines), tried=[str(p) for _, p, _ in tried])


@dataclass(frozen=True, slots=True)
class ShardMap:
    instance: str
    paths: tuple[str, ...]


class Directory:
    """The shard map as last heard. `learn` says whether topics may have moved and tells the listener."""

    def __init__(self, path: Place, hello: Hello) -> None:
        # The address may be that of any shard.
        self.path = path.of_shard(-hello.shard) if isinstance(path, Address) and hello.shard > 0 else path
        self.map = ShardMap(hello.instance, hello.shards)
        self._lock = threading.Lock()
        self._moved: list[Callable[[], None]] = []

    def forked(self) -> None:
        self._lock = threading.Lock()

    def on_move(self, listener: Callable[[], None]) -> None:
        self._moved.append(listener)

    def learn(self, hello: Hello) -> bool:
        with self._lock:
            moved = hello.shards != self.map.paths
            self.map = ShardMap(hello.instance, hello.shards)
        if moved:
            for listener in self._moved:
                listener()
        return moved

    def shard_of(self, topic: str) -> int:
        return delivery_shard(topic, len(self.map.paths))

    def shards(self) -> range:
        return range(len(self.map.paths))

    def path_of(self, shard: int) -> Place:
        if shard == SUPERVISOR:
            return self.path
        paths = self.map.paths
        if shard >= len(paths):
            raise WrongShard(f"there is no shard {shard} any more, the daemon has {len(paths)}")
        if isinstance(self.path, Address):
            return self.path.of_shard(shard)
        # A map seen through another mount or a relative run directory still names files next to the front
        # door.
        return self.path.parent / paths[shard]
