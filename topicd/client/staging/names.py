"""What staging calls its topics and producers.

    topicd.stage.<key>.<batch>.<partition>.<made, ms>-<chance>    what one attempt at one part of a batch wrote
    topicd.commits.<key>                                          what was decided about the batches of one query

The key stands for the query, whose name may be anything.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any, NamedTuple

from topicd import limits
from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.limits import LASTING, STAGE_KEY_DIGITS

STAGES = limits.STAGES
COMMITS = limits.COMMITS

_STAGE = re.compile(rf"{re.escape(STAGES)}([0-9a-f]{{{STAGE_KEY_DIGITS}}})\.(\d+)\.(\d+)\.(\d+)-([0-9a-f]+)")


class StageName(NamedTuple):
    key: str
    batch: int
    partition: int
    made_ms: int


def query_key(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()[:STAGE_KEY_DIGITS]


def commits_topic(query: str) -> str:
    return COMMITS + query_key(query)


def stage_topic(query: str, batch: int, partition: int, made_ms: int) -> str:
    """A name that no other attempt has."""
    return f"{STAGES}{query_key(query)}.{batch}.{partition}.{made_ms}-{secrets.token_hex(8)}"


def parse_stage(topic: str) -> StageName | None:
    found = _STAGE.fullmatch(topic)
    return None if found is None else StageName(found[1], int(found[2]), int(found[3]), int(found[4]))


def producer_id(query: str, destination: str) -> int:
    """The same for whoever publishes that query's batches; one that the daemon remembers until it is released."""
    digest = hashlib.sha256(f"{query}\0{destination}".encode()).digest()
    return LASTING | int.from_bytes(digest[:6], "little")


def create_internal(client: Operations, topic: str, config: dict[str, Any]) -> None:
    client.caller.ask(requests.configure(topic, config, internal=True))
