"""What the daemon tells about topics."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from topicd.errors import FormatError, InvalidRequest
from topicd.model import TopicConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A line of the list of topics."""

    topic: str
    topic_id: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durability: str


@dataclass(frozen=True, slots=True)
class TopicState:
    topic: str
    topic_id: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    evict_floor: int
    count: int
    bytes: int
    last_write_ts: int | None
    last_read_ts: int | None
    effective_priority: float
    config: TopicConfig
    settled_seq: int  # up to there nothing belongs to a commit that is under way
    open_commits: int  # commits under way of which something is published
    lost: list[list[int]]  # [first, last] of what a loss of power may have taken and nobody has forgiven


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a delete removed, and what is left."""

    deleted: int
    deleted_bytes: int
    examined: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    name: str
    acked_seq: int
    lag: int
    updated_ts: int


def info(cls: type[T], body: Any) -> T:
    """The dataclass of that answer; what a newer daemon adds is passed over."""
    if not isinstance(body, dict):
        raise FormatError(f"the daemon's answer is no map but {body!r:.100}")
    given: dict[str, Any] = {}
    for f in fields(cls):  # type: ignore[arg-type]
        if f.name not in body:
            raise FormatError(f"the daemon's answer lacks {f.name!r}")
        given[f.name] = config_of(body[f.name]) if f.name == "config" else body[f.name]
    return cls(**given)


def config_of(body: Any) -> TopicConfig:
    known = {f.name for f in fields(TopicConfig)}
    try:
        return TopicConfig.from_stored({k: v for k, v in dict(body).items() if k in known})
    except (InvalidRequest, TypeError, ValueError) as exc:
        raise FormatError(f"the daemon's topic configuration is malformed: {exc}") from None
