"""Every behaviour test of the codec runs over both implementations."""

from __future__ import annotations

import pytest
from native_cases import native

from topicd._native import pure
from topicd._native.interface import Core


@pytest.fixture(params=["native", "pure"])
def codec(request: pytest.FixtureRequest) -> Core:
    if request.param == "pure":
        return pure
    if native is None:
        pytest.skip("the native core is not built")
    return native
