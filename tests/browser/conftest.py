"""One browser and one daemon for all tests here; each test has topics of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import scene
from tests.browser.browsing import Visit, browser, visit
from tests.support.daemon import Daemon
from tests.support.web import Web


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("b"), env=scene.ENVIRON, **scene.SETTINGS) as started:
        scene.set_up(started)
        yield started


@pytest.fixture(scope="session")
def opened() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def web(daemon: Daemon) -> Web:
    return Web(daemon)


@pytest.fixture
def me(opened: Browser, daemon: Daemon) -> Iterator[Visit]:
    """Somebody in front of the page; at the end nothing may have been said on the console."""
    with visit(opened, daemon) as found:
        yield found
        assert found.said == []


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^A-Za-z0-9.:-]+", "-", request.node.name)[:100] + f".{os.urandom(3).hex()}"
