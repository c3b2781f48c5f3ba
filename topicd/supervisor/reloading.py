"""What SIGHUP may change. Settings that need a restart are named in the log and keep their value."""

from __future__ import annotations

import logging

from topicd.config import RELOADABLE, Settings, format_value

log = logging.getLogger(__name__)


def merge(current: Settings, wanted: Settings) -> tuple[Settings, dict[str, str]]:
    """(current with the reloadable part of wanted, what changed as text)."""
    before, after = current.to_wire(), wanted.to_wire()
    changed = {name for name in before if before[name] != after[name]}
    for name in sorted(changed - RELOADABLE):
        log.warning("setting needs a restart", extra={name: format_value(name, getattr(wanted, name))})
    live = {name: getattr(wanted, name) for name in sorted(changed & RELOADABLE)}
    return current.replace(**live), {name: format_value(name, value) for name, value in live.items()}
