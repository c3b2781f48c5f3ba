"""/openapi.json: made of the declarations, and true."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.web import Web
from topicd.gateway import api
from topicd.gateway.endpoints import ENDPOINTS

EXAMPLES = 5  # of each operation
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# They do not end by themselves.
STREAMS = (
    *("/v0/watch/{wid}", "/v0/topics/{topic}/work", "/v0/stats", "/v0/ws"),
    *("/v0/channels/{channel}/watch", "/v0/chat/{room}/events", "/v0/chat/inbox-events"),
    "/dashboard/stream",
)


def test_every_endpoint_is_described(web: Web) -> None:
    api.load()
    found = web("GET", "/openapi.json").body
    assert found["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert described == {(one.method, one.path) for one in ENDPOINTS}
    write = found["components"]["schemas"]["Write"]
    assert write["required"] == ["records"] and "idempotency_key" in write["properties"]


def test_whatever_fits_the_description_is_answered_as_described(web1: Web) -> None:
    schema = schemathesis.openapi.from_dict(web1("GET", "/openapi.json").body)
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in STREAMS:
            continue

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate(base_url=web1.base, checks=CHECKS)

        ask()
    assert tried > 50
