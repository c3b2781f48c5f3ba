"""Rows into a stage. Promise: what `write` returned is synced, whole and in order; until somebody commits it, nobody
sees it, and what nobody commits expires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from topicd.client.blocking.bulk import publish_batches
from topicd.client.blocking.operations import Operations
from topicd.client.core.encode import Encoded
from topicd.client.staging.names import create_internal
from topicd.client.staging.plan import Run, Staged, content_bytes
from topicd.errors import InvalidRequest
from topicd.model import check_topic_name, is_internal

# (destination, frames, records): one batch of append frames as `encode_batch` makes them
Laid = tuple[str, bytearray, int]


def check_destination(topic: str) -> str:
    if is_internal(check_topic_name(topic)):
        raise InvalidRequest(f"topic {topic!r} is topicd's own and nothing can be published to it")
    return topic


def write_stage(client: Operations, topic_for: Callable[[str], str], laid: Iterable[Laid], *, ttl_ms: int) -> Staged:
    """Pulls batches as fast as the daemon takes them, into a topic that is named after the first destination. Without
    any there is no topic."""
    runs: list[Run] = []

    def encoded() -> Iterator[Encoded]:
        for destination, frames, records in laid:
            runs.append(Run(destination, records, content_bytes(len(frames), records)))
            yield frames, records

    source = encoded()
    first = next(source, None)
    if first is None:
        return Staged("")
    topic = topic_for(runs[0].destination)
    create_internal(client, topic, {"durability": "fsync", "ttl_ms": ttl_ms})
    publish_batches(client.caller, topic, _chained(first, source))
    return Staged(topic, tuple(runs))


def _chained(first: Encoded, rest: Iterator[Encoded]) -> Iterator[Encoded]:
    yield first
    yield from rest
