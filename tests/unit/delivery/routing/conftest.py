"""A desk on which routers run."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk


@pytest.fixture
def routed(desk: Desk) -> Desk:
    return desk.route()
