"""Requests about routers, built once for both faces. They go to the shard that owns the topic of their definitions."""

from __future__ import annotations

from typing import Any, NamedTuple

from topicd.client.core.answers import RouterInfo, router_of
from topicd.client.core.arguments import Match, tag_match
from topicd.client.core.requests import Request, of_topic
from topicd.errors import InvalidRequest
from topicd.ipc.protocol import messages
from topicd.limits import LIST_PAGE_MAX, ROUTERS


class Created(NamedTuple):
    """The router; whether it was made just now, or has other options since."""

    router: RouterInfo
    created: bool
    changed: bool = False


class Skipped(NamedTuple):
    """Seqs of the source that a router has given up, first and last; and those of its destination that nobody writes
    instead (None: none are missing)."""

    skipped: tuple[int, int]
    hole: tuple[int, int] | None


class Page(NamedTuple):
    routers: list[RouterInfo]
    next: str | None


class RoutersOfTopic(NamedTuple):
    """Names of the routers that lead from a topic, and to it."""

    leaving: list[str]
    reaching: list[str]


def create(router: str, source: str, dest: str, filter: Match, sample: int, **options: Any) -> Request[Created]:
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise InvalidRequest(f"sample is a whole number from 1, one record in so many, not {sample!r:.50}")
    message = messages.CreateRouter(
        router=router, source=source, dest=dest, filter=tag_match(filter), sample=sample, **options
    )
    return of_topic(message, ROUTERS, _created)


def _created(answer: dict[str, Any]) -> Created:
    return Created(router_of(answer), bool(answer.get("created")), bool(answer.get("changed")))


def get(router: str) -> Request[RouterInfo]:
    return of_topic(messages.GetRouter(router=router), ROUTERS, router_of)


def page(prefix: str, source: str | None, dest: str | None, after: str) -> Request[Page]:
    def parse(answer: dict[str, Any]) -> Page:
        return Page([router_of(row) for row in answer.get("routers") or []], answer.get("next"))

    message = messages.ListRouters(prefix=prefix, source=source, dest=dest, after=after, limit=LIST_PAGE_MAX)
    return of_topic(message, ROUTERS, parse)


def delete(router: str) -> Request[bool]:
    return of_topic(messages.DeleteRouter(router=router), ROUTERS, lambda answer: bool(answer.get("deleted")))


def skip(router: str, up_to_seq: int) -> Request[Skipped]:
    def parse(answer: dict[str, Any]) -> Skipped:
        (first, last), hole = answer["skipped"], answer.get("hole")
        return Skipped((int(first), int(last)), None if hole is None else (int(hole[0]), int(hole[1])))

    return of_topic(messages.SkipUnreadable(router=router, up_to_seq=up_to_seq), ROUTERS, parse)


def of(topic: str) -> Request[RoutersOfTopic]:
    def parse(answer: dict[str, Any]) -> RoutersOfTopic:
        return RoutersOfTopic(
            [str(name) for name in answer.get("from") or []], [str(n) for n in answer.get("to") or []]
        )

    return of_topic(messages.RoutersOf(topic=topic), topic, parse)
