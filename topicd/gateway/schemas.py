"""Bodies of requests, declared: these check what arrives, and docs and /openapi.json are made of them. A field that is
not here is ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from topicd.gateway.errors import invalid
from topicd.limits import MAX_NODE, MAX_SEQ
from topicd.model import Durability, TopicConfig

DAY_MS = 86_400_000

Unsigned = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
Nodes = str | list[str] | None


class Config(Struct, rename=None):
    """What a topic promises. A field that is left out has its default."""

    type: Literal["log", "queue"] = "log"
    ttl_ms: Unsigned = 0
    cap_records: Unsigned = 0
    cap_bytes: Unsigned = 0
    discard: Literal["old", "reject"] = "old"
    durability: Literal["ephemeral", "memory", "disk", "fsync"] | UnsetType = UNSET
    durable: bool = False
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: Unsigned = 120_000
    dedupe_node: bool = True
    retain: Literal["all", "acked"] = "all"
    lease_ms: Unsigned = 30_000
    claim_jitter_ms: Unsigned = 0
    max_deliveries: Unsigned = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    schema: dict[str, Any] | None = None

    def fields(self, topic: str) -> dict[str, Any]:
        """As the native protocol has it: clamped, durability explicit."""
        if self.dead_letter == topic:
            raise invalid("dead_letter must be another topic than the queue itself")
        found: dict[str, Any] = {name: getattr(self, name) for name in TopicConfig.__slots__ if hasattr(self, name)}
        if self.durability is UNSET:
            found["durability"] = str(Durability.FSYNC if self.durable else Durability.DISK)
        if self.priority is not None:
            found["priority"] = max(-1000, min(1000, self.priority))
        found["lease_ms"] = clamp(self.lease_ms, 100, DAY_MS)
        found["claim_jitter_ms"] = clamp(self.claim_jitter_ms, 0, 5_000)
        found["max_deliveries"] = clamp(self.max_deliveries, 0, 1_000_000)
        return found


class Record(Struct, gc=False):
    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw | UnsetType = UNSET


class Write(Struct):
    records: list[Record]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: Config | None = None
    disable_backpressure: bool = False


class Diff(Struct):
    from_seq: Unsigned = 0
    limit: Unsigned = 0
    max_batch_bytes: Unsigned = 0
    node: Nodes = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: Unsigned = 0


class Delete(Struct):
    before_seq: Unsigned | None = None
    match: str | list[Any] | None = None


class Start(Struct):
    """Where a topic is followed from."""

    from_seq: Unsigned = 0
    tail: bool = False


class Watch(Struct):
    topics: dict[str, Start]
    node: Nodes = None
    limit: Unsigned = 256
    max_batch_bytes: Unsigned = 262_144
    heartbeat_ms: Unsigned = 15_000
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"


class Claim(Struct):
    node: str | None = None
    max: Unsigned = 1
    lease_ms: Unsigned | None = None


class Ack(Struct):
    seqs: list[Unsigned]
    node: str | None = None
    lease_ids: list[str] | None = None


class Nack(Ack):
    delay_ms: Unsigned = 0


class Extend(Ack, kw_only=True):
    lease_ms: Unsigned


class Router(Struct):
    source: str
    dest: str
    create_dest: bool = True
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: str | list[Any] | None = None
    allow_cycle: bool = False
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"


# ---- commands of a WebSocket ----


class Command(Struct):
    op: Any = None  # whatever it is, its refusal names the request
    request_id: Raw | UnsetType = UNSET


class Subscribe(Struct):
    topic: str | None = None
    from_seq: Unsigned = 0
    tail: bool = False
    topics: dict[str, Start] | None = None
    node: Nodes = None
    limit: Unsigned = 1_000
    max_batch_bytes: Unsigned = 1_048_576
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool = True
    lenient: bool = False


class Unsubscribe(Struct):
    topic: str | None = None
    topics: list[str] | None = None


class Publish(Write):
    topic: str = ""
    return_seqs: bool = True


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def nodes_of(given: Nodes) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given or []
    if len(names) > 256:
        raise invalid(f"node has at most 256 names, not {len(names)}")
    # A longer one is nobody's: leaving it out changes nothing.
    return tuple(name for name in dict.fromkeys(names) if name and len(name.encode()) <= MAX_NODE)


_decoders: dict[type, Any] = {}


def decode(kind: type[Any], body: bytes) -> Any:
    """A body of that kind; what is wrong with it is said."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except UnicodeDecodeError:
        raise invalid("the body is not UTF-8") from None
    except msgspec.ValidationError as exc:
        raise invalid(_words(str(exc))) from None
    except msgspec.DecodeError as exc:
        raise invalid(f"the body is not JSON: {exc}") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None


def _words(message: str) -> str:
    return message.replace("`$.", "`").replace("`$`", "the body")
