"""The daemon's front door: which daemon answers, and where its shards are."""

from __future__ import annotations

import os
from collections.abc import Mapping

from topicd.client.blocking.connection import dial
from topicd.client.core.address import Target
from topicd.client.core.daemon import candidates, not_found
from topicd.client.core.options import DIAL_S
from topicd.client.core.shardmap import ShardMap
from topicd.errors import ConnectionLost, Forbidden, FormatError, TopicdError
from topicd.ipc.protocol.codec import Hello
from topicd.ipc.protocol.retry import Patience, Tempo


def ask(target: Target, timeout: float, token: str | None) -> Hello:
    """What the daemon there says of itself."""
    front = dial(target, min(timeout, DIAL_S), token)
    front.close()
    if front.hello is None:
        raise FormatError("the daemon sent no hello")
    return front.hello


def find_daemon(
    target: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    *,
    timeout: float,
    token: str | None,
    wait: float,
    tempo: Tempo,
) -> ShardMap:
    """The first daemon that answers. A missing one is an error at once unless `wait` gives it time to
    appear; one that is there but not ready is waited for."""
    ready = Patience(tempo, timeout)
    there = Patience(tempo, wait)
    while True:
        tried: list[tuple[str, Target, str]] = []
        forbidden: Forbidden | None = None
        for hint, path in candidates(target, environ):
            try:
                return ShardMap(path, ask(path, timeout, token))
            except ConnectionLost as exc:
                tried.append((hint, path, exc.message.removeprefix(f"cannot connect to {path}: ")))
            except Forbidden as exc:
                forbidden = forbidden or exc  # another one of the usual places may let us in
            except TopicdError as exc:
                ready.pause(exc)
                break
        else:
            there.pause(forbidden or not_found(tried))
