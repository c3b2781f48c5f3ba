"""The endpoints, by what they are about."""

from __future__ import annotations

from importlib import import_module

_MODULES = (
    *("topics", "records", "watch", "ws", "queues", "routers", "channels", "chat", "metrics", "service"),
    *("dashboard", "dashboard_topics", "dashboard_consumers", "dashboard_queues"),
)


def load() -> None:
    """Every module declares its endpoints when it is imported."""
    for name in _MODULES:
        import_module(f"{__name__}.{name}")
