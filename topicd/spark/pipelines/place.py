"""Where the daemon is and which topics are meant, for a driver and its executors alike."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from topicd.client.blocking.client import Client
from topicd.client.core.address import CA_FILE_ENV, TOKEN_ENV, is_remote
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.model import check_topic_name
from topicd.spark import connection
from topicd.spark.options import ConnectionOptions


def connection_options(target: str | None, timeout: float) -> ConnectionOptions:
    """What the environment says is settled here: executors may have another one."""
    target = target or os.environ.get("TOPICD_SOCKET")
    remote = target is not None and is_remote(target)
    if target and not remote and "://" not in target:
        target = str(Path(target).expanduser().absolute())
    tls = remote and str(target).startswith("tls://")
    return ConnectionOptions(
        target=target,
        token=os.environ.get(TOKEN_ENV) if remote else None,
        ca_file=os.environ.get(CA_FILE_ENV) if tls else None,
        timeout=timeout,
    )


def source_options(place: ConnectionOptions) -> dict[str, str]:
    """The same place as options of format("topicd")."""
    given = {"socket": place.target, "token": place.token, "caFile": place.ca_file, "timeout": f"{place.timeout:g}"}
    return {name: value for name, value in given.items() if value}


def client(place: ConnectionOptions) -> Client:
    """The process's client; a daemon that is not there is told at once."""
    return connection.client(place, wait=0.0)


def resolve(found: Client, given: Iterable[str]) -> list[str]:
    """Names, and all topics behind beginnings like `orders.*`, each once and sorted."""
    names: set[str] = set()
    for text in given:
        if text.endswith("*"):
            names |= {info.topic for info in found.topics(text[:-1])}
        else:
            names.add(found.state(check_topic_name(text), touch=False).topic)
    if not names:
        raise TopicNotFound("no topic has such a name") if list(given) else InvalidRequest("name at least one topic")
    return sorted(names)
