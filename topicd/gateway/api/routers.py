"""Routers: created, looked at, listed, deleted. Contract: docs/http.md."""

from __future__ import annotations

from typing import Any

from topicd.errors import RouterNotFound
from topicd.gateway import errors
from topicd.gateway.api.paging import cursor_of, next_cursor, page_size
from topicd.gateway.api.records import match_of
from topicd.gateway.api.topics import check_name
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.errors import Refusal
from topicd.gateway.keys import require_name
from topicd.gateway.schemas import Router
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.messages import CreateRouter, DeleteRouter, GetRouter, ListRouters
from topicd.limits import PATTERN_MAX, ROUTER_NAME, ROUTER_NAME_RULE, ROUTERS

_OPTIONS = ("source", "dest", "preserve_node", "preserve_tag", "filter", "allow_cycle", "guarantee")


def is_name(router: str) -> bool:
    return ROUTER_NAME.fullmatch(router) is not None


def _told(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in _OPTIONS}


def _absent(router: str) -> Refusal:
    return Refusal(404, "router_not_found", f"there is no router named {router!r:.300}", {"router": router})


def _check_reach(call: Call, *names: str) -> None:
    for name in names:
        require_name(call.rights, name, in_body=True)


@endpoint(
    "PUT",
    "/v0/routers/{router}",
    "admin",
    body=Router,
    answers={200: "there", 201: "created", 404: "no such topic", 409: "does not go together with what is there"},
)
async def put_router(call: Call, router: str, body: Router) -> Reply:
    """Copy what comes to a topic into another; again: with other options."""
    if not is_name(router):
        raise errors.invalid(f"router name {router!r:.300} is not allowed: {ROUTER_NAME_RULE}")
    check_name(body.source)
    check_name(body.dest)
    if body.source == body.dest:
        raise errors.invalid("source and dest must be different topics")
    match = None if body.filter is None else match_of(body.filter)
    _check_reach(call, body.source, body.dest)
    want = CreateRouter(
        router=router,
        source=body.source,
        dest=body.dest,
        create_dest=body.create_dest,
        preserve_node=body.preserve_node,
        preserve_tag=body.preserve_tag,
        filter=match,
        allow_cycle=body.allow_cycle,
        guarantee=body.guarantee,
        keep=True,  # what this face has no names for
    )
    found = await call.service.shards.ask(ROUTERS, want)
    created = bool(found["created"])
    return call.answer({"router": router, "created": created, **_told(found)}, 201 if created else 200)


async def _get(call: Call, router: str) -> dict[str, Any]:
    if not is_name(router):
        raise _absent(router)
    try:
        return await call.service.shards.ask(ROUTERS, GetRouter(router=router))
    except RouterNotFound:
        raise _absent(router) from None


@endpoint("GET", "/v0/routers/{router}", "read", answers={200: "it", 404: "no such router"})
async def get_router(call: Call, router: str) -> Reply:
    """A router and how much it has copied."""
    found = await _get(call, router)
    _check_reach(call, found["source"], found["dest"])
    return call.answer({"router": router, **_told(found), "forwarded_total": found["forwarded_total"]})


@endpoint(
    "GET",
    "/v0/routers",
    "read",
    answers={200: "a page", 400: "broken cursor"},
    query={
        "prefix": "of names",
        "source": "only from this topic",
        "dest": "only to this topic",
        "page_size": "1 to 1000, default 100",
        "cursor": "next_cursor of the page before",
    },
)
async def list_routers(call: Call) -> Reply:
    """Routers by name."""
    params, size = call.params, page_size(call)
    after: str | None = cursor_of(params["cursor"]) if params.get("cursor") else None
    rows: list[dict[str, Any]] = []
    given = {name: params.get(name, "") for name in ("prefix", "source", "dest")}
    more = all(len(text) <= PATTERN_MAX for text in given.values())  # else nothing has such a name
    while more and len(rows) <= size:
        want = ListRouters(
            prefix=given["prefix"],
            source=given["source"] or None,
            dest=given["dest"] or None,
            after=after,
            limit=size,
        )
        page = await call.service.shards.ask(ROUTERS, want)
        rows += [row for row in page["routers"] if _is_shown(call, row)]
        after = page.get("next")
        more = after is not None
    names = ("router", "source", "dest", "guarantee")
    told = [{**{name: row[name] for name in names}, "forwarded_total": row.get("forwarded_total", 0)} for row in rows]
    body: dict[str, Any] = {"routers": told[:size]}
    if more or len(rows) > size:
        body["next_cursor"] = next_cursor(rows[size - 1]["router"])
    return call.answer(body)


def _is_shown(call: Call, row: dict[str, Any]) -> bool:
    prefixes = call.rights.prefixes
    return not prefixes or all(row[name].startswith(prefixes) for name in ("router", "source", "dest"))


@endpoint("DELETE", "/v0/routers/{router}", "delete")
async def delete_router(call: Call, router: str) -> Reply:
    """Delete a router; what it copied stays."""
    try:
        if call.rights.prefixes:
            found = await _get(call, router)
            _check_reach(call, found["source"], found["dest"])
        if not is_name(router):
            raise _absent(router)
        answer = await call.service.shards.ask(ROUTERS, DeleteRouter(router=router))
        deleted = bool(answer["deleted"])
    except (Refusal, RouterNotFound) as exc:
        if isinstance(exc, Refusal) and exc.status != 404:
            raise
        deleted = False
    return call.answer({"router": router, "deleted": deleted})
