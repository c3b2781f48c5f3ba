"""Routers: asked of the shard that owns the topic topicd.routers; the last ones between delivery shards."""

from __future__ import annotations

from topicd import limits
from topicd.ipc.protocol.fields import flag, number, numbers, router_name, tag_match, text, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ, MAX_U64
from topicd.model import TagMatch

_OPTIONS = "source, dest, preserve_node, preserve_tag, filter, allow_cycle, guarantee, sample, set_tag, set_node"
_PROGRESS = (
    "forwarded_total, cursor, lag, lag_ms, waiting (nil, or why it stands still), "
    "kind (derived, logged, or nil as long as that is not decided), why (copies are logged), "
    "unreadable ([first, last] of the source, where it stands and they cannot be read; or nil)"
)


class CreateRouter(Request, op=Op.ROUTER_CREATE, changes=True, answer=f"router, created, changed, {_OPTIONS}"):
    """Records that come to source from now on are copied to dest. Again: other options, but the same way. It needs the
    right `admin` for both topics; both are created if they are missing."""

    router: str = router_name()
    source: str = topic_name()
    dest: str = topic_name()
    create_dest: bool = flag(default=True, help="false: topic_not_found if there is none")
    preserve_node: bool = flag(default=True)
    preserve_tag: bool = flag(default=True)
    filter: TagMatch | None = tag_match(help="only these are copied")
    allow_cycle: bool = flag(default=False, help="records may come back; they go on 8 times")
    guarantee: str = text(16, default="at_least_once", help="or exactly_once: each copy says what it is a copy of")
    sample: int = number(1, 1 << 32, default=1, help="one of so many, chosen by a hash")
    set_tag: str | None = text(limits.TEMPLATE_MAX, default=None, help="tag of the copies: {tag}, {node}, {source}")
    set_node: str | None = text(limits.TEMPLATE_MAX, default=None, help="node of the copies, likewise")
    keep: bool = flag(default=False, help="sample, set_tag and set_node of a router that is there stay as they are")


class GetRouter(Request, op=Op.ROUTER_GET, answer=f"router, {_OPTIONS}, {_PROGRESS}"):
    """With the right `read` for both topics. What was acknowledged in source before has its copy."""

    router: str = router_name()


class ListRouters(
    Request,
    op=Op.ROUTER_LIST,
    answer=f"routers [{{router, {_OPTIONS}, {_PROGRESS}}}] by name (the latter if its shard answers), "
    "next (name to continue after, or nil)",
):
    prefix: str = text(limits.PATTERN_MAX, default="")
    source: str | None = text(limits.PATTERN_MAX, default=None, help="only from this topic")
    dest: str | None = text(limits.PATTERN_MAX, default=None, help="only to this topic")
    after: str | None = text(limits.PATTERN_MAX, default=None, help="names behind this one")
    limit: int = number(1, limits.LIST_PAGE_MAX, default=limits.LIST_PAGE_DEFAULT)


class DeleteRouter(Request, op=Op.ROUTER_DELETE, changes=True, answer="router, deleted"):
    """With the right `delete` for both topics. Copies that are made stay."""

    router: str = router_name()


class SkipUnreadable(
    Request,
    op=Op.ROUTER_SKIP,
    changes=True,
    answer="router, skipped [first, last], hole ([first, last] of dest, or nil)",
):
    """Records of the source that cannot be read, where the router stands, are given up: it goes on behind them, and
    dest has a hole (source_trim) of at least as many seqs. With the right `admin` for both topics. Refused unless it
    stands there because of them."""

    router: str = router_name()
    up_to_seq: int = number(1, MAX_SEQ, help="of the source: no record behind it is given up")


# ---- between delivery shards ----


class RoutersOf(Request, op=Op.ROUTERS_OF, right="read", answer="from [router], to [router]"):
    """Of a topic; asked of any shard."""

    topic: str = topic_name()


class SourceHead(
    Request,
    op=Op.SOURCE_HEAD,
    right="read",
    answer="topic_id, head_seq, durability, logged (why copies of its records are logged, or empty)",
):
    """How far a source has come."""

    topic: str = topic_name()
    synced: bool = flag(default=False, help="answered when all of that is durable")


class RouterProgress(Request, op=Op.ROUTER_PROGRESS, answer=f"routers {{id: {{{_PROGRESS}}}}} of those that run here"):
    """Asked of the shard of their destinations, by shards only."""

    routers: tuple[int, ...] = numbers(1, MAX_SEQ, limits.LIST_PAGE_MAX, help="their ids")
    fresh: bool = flag(default=False, help="answered when what their sources hold now has its copies")


class ApplyRouters(Request, op=Op.ROUTERS_APPLY, answer="applied"):
    """Answered when this shard runs what the definitions up to this seq say. Asked by shards only."""

    topic_id: int = number(1, MAX_U64, help="of topicd.routers")
    up_to: int = number(0, MAX_SEQ)


class LogCopies(Request, op=Op.ROUTERS_LOG, changes=True, answer=""):
    """Destinations of these routers are logged from now on; answered when that is durable. Asked of their shard, by
    shards only."""

    routers: tuple[int, ...] = numbers(1, MAX_SEQ, limits.LIST_PAGE_MAX, help="their ids")
    why: str = text(256)


class StepOver(Request, op=Op.ROUTERS_SKIP, changes=True, answer="skipped, hole"):
    """ROUTER_SKIP, asked of the shard that the router runs in, by shards only."""

    router_id: int = number(1, MAX_SEQ)
    up_to_seq: int = number(1, MAX_SEQ)


class RoutersPassed(Request, op=Op.ROUTERS_PASSED, answer=""):
    """So far these routers have come for good: their sources may let go of what lies before. Told by shards only."""

    routers: tuple[int, ...] = numbers(1, MAX_SEQ, limits.LIST_PAGE_MAX, help="their ids")
    cursors: tuple[int, ...] = numbers(0, MAX_SEQ, limits.LIST_PAGE_MAX, help="one of each")


class ForgetRouters(Request, op=Op.ROUTERS_FORGET, right="delete", changes=True, answer="removed [router]"):
    """A topic is about to be deleted: its routers go. Asked by shards only."""

    topic: str = topic_name()
    topic_id: int = number(1, MAX_U64)
