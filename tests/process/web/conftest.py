"""One daemon for all tests of the HTTP contract; each test has topics of its own, and speaks both versions of HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.conftest import SETTINGS
from tests.support.daemon import Daemon
from tests.support.web import Web

ENVIRON = {"TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0"}


@pytest.fixture(scope="session")
def http_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("http"), env=ENVIRON, **SETTINGS) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def webs(http_daemon: Daemon) -> Iterator[dict[str, Web]]:
    found = {version: Web(http_daemon, version) for version in ("1.1", "2")}
    yield found
    for web in found.values():
        web.close()


@pytest.fixture(params=["1.1", "2"])
def web(webs: dict[str, Web], request: pytest.FixtureRequest) -> Web:
    return webs[request.param]


@pytest.fixture
def web1(webs: dict[str, Web]) -> Web:
    """For what HTTP/2 has no part in."""
    return webs["1.1"]


def one(*data: Any) -> dict[str, Any]:
    return {"records": [{"data": each} for each in data]}
