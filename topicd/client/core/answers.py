"""What the daemon tells about topics."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
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
    settled_seq: int  # up to there nothing belongs to a commit that is under way
    type: str  # log or queue
    effective_priority: float = 0.0  # who is served first when not everybody can be served at once


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
    compacted: dict[str, int] | None = None  # through_seq, deleted, left (seqs), where compact is set


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
    holder: str = ""  # who reads as it at present


@dataclass(frozen=True, slots=True)
class RouterInfo:
    """A router: what it does, and how far it is. The latter is None where its shard did not tell."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None  # ["tag", "Eq" or "Glob", text]
    allow_cycle: bool
    guarantee: str
    sample: int
    set_tag: str | None
    set_node: str | None
    forwarded_total: int | None = None
    cursor: int | None = None  # seq of the source up to which everything is copied, or not wanted
    lag: int | None = None  # records of the source behind that
    lag_ms: int | None = None  # how long it has been behind
    waiting: str | None = None  # why it stands still
    kind: str | None = None  # of its destination: derived or logged
    why: str | None = None  # it is logged
    unreadable: list[int] | None = None  # [first, last] of the source, where it stands: they cannot be read


def router_of(body: Any) -> RouterInfo:
    if not isinstance(body, dict):
        raise FormatError(f"the daemon's answer is no map but {body!r:.100}")
    known = {f.name: f for f in fields(RouterInfo)}
    missing = [name for name, f in known.items() if name not in body and f.default is MISSING]
    if missing:
        raise FormatError(f"the daemon's answer lacks {missing[0]!r}")
    return RouterInfo(**{name: value for name, value in body.items() if name in known})


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """Somebody who is connected to a shard."""

    shard: int
    who: str  # process and user, or address
    client: str  # what it calls itself
    since_ts: int
    token: str
    bytes_in: int
    bytes_out: int
    subscriptions: list[str]  # topics and patterns that it watches, the first of them
    topics: int  # how many it watches


def info(cls: type[T], body: Any) -> T:
    """The dataclass of that answer; what a newer daemon adds is passed over."""
    if not isinstance(body, dict):
        raise FormatError(f"the daemon's answer is no map but {body!r:.100}")
    given: dict[str, Any] = {}
    for f in fields(cls):  # type: ignore[arg-type]
        if f.name not in body:
            if f.default is not MISSING:
                continue
            raise FormatError(f"the daemon's answer lacks {f.name!r}")
        given[f.name] = config_of(body[f.name]) if f.name == "config" else body[f.name]
    return cls(**given)


def config_of(body: Any) -> TopicConfig:
    known = {f.name for f in fields(TopicConfig)}
    try:
        return TopicConfig.from_stored({k: v for k, v in dict(body).items() if k in known})
    except (InvalidRequest, TypeError, ValueError) as exc:
        raise FormatError(f"the daemon's topic configuration is malformed: {exc}") from None
