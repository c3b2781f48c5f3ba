"""The description of the API, made of the declarations that check requests. Promise: an endpoint that is declared is in
it, with the body that is checked and the answers that it may give.
"""

from __future__ import annotations

from typing import Any

import msgspec

from topicd import __version__
from topicd.gateway.endpoints import ENDPOINTS, Endpoint

_ERROR = {"$ref": "#/components/schemas/Error"}
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "additionalProperties": False,
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string", "minLength": 1},
                "detail": {"type": "object"},
            },
        }
    },
}
# What any request may get: by kind of endpoint.
_COMMON = {401: "key missing or unknown", 403: "scope or name not allowed", 429: "too many", 503: "not ready, stopping"}
_NUMBERS = ("page_size", "max", "lease_ms")
_FLAGS = ("touch", "if_empty", "return_seqs", "lenient")


def describe() -> dict[str, Any]:
    bodies = {one.body for one in ENDPOINTS if one.body is not None}
    ordered = sorted(bodies, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_body = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, by_body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "topicd", "version": __version__, "description": "Durable topics over HTTP: docs/http.md."},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR_SCHEMA},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(one: Endpoint, by_body: dict[type, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in one.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    parameters += [
        {"name": name, "in": "query", "description": what, "schema": _query_schema(name)}
        for name, what in one.query.items()
    ]
    described: dict[str, Any] = {"summary": one.summary, "parameters": parameters, "responses": _responses(one)}
    if one.scopes:
        described["description"] = f"Scopes: {', '.join(one.scopes)}."
    if one.body is not None:
        content = {"application/json": {"schema": by_body[one.body]}}
        described["requestBody"] = {"required": not one.empty_body, "content": content}
    return described


def _query_schema(name: str) -> dict[str, Any]:
    if name in _FLAGS:
        return {"type": "boolean"}
    return {"type": "integer", "minimum": 0} if name in _NUMBERS else {"type": "string"}


def _responses(one: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kinds = {"events": "text/event-stream", "session": "text/event-stream", "pulse": "text/event-stream"}
    for status, what in (one.answers or {200: "done"}).items():
        if status < 200:
            found[str(status)] = {"description": what}
        elif status < 300:
            content: dict[str, Any] = {kinds.get(one.kind, "application/json"): {"schema": {}}}
            if one.path == "/v0/metrics":
                content = {"text/plain": {"schema": {"type": "string"}}, **content}
            found[str(status)] = {"description": what, "content": content}
        else:
            found[str(status)] = _error(what)
    refusals = dict(_COMMON)
    if one.body is not None:
        refusals |= {400: "malformed", 413: "body too large", 415: "not JSON"}
    if one.kind in ("events", "session"):
        refusals[406] = "not acceptable"
    for status, what in refusals.items():
        found.setdefault(str(status), _error(what))
    found["500"] = _error("our fault")
    return found


def _error(what: str) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": _ERROR}}}
