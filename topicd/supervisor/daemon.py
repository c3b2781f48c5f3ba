"""The daemon from its settings to its exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicd import config, telemetry
from topicd.config import ConfigError, Loaded, Settings
from topicd.errors import FormatError

if TYPE_CHECKING:
    from topicd.supervisor.template import Template

log = logging.getLogger(__name__)


def load(flags: Mapping[str, Any]) -> Loaded:
    """The settings of every source; flags as text, by name, `config_file` among them."""
    given = dict(flags)
    file = given.pop("config_file", None)
    return config.load(given, file=Path(file) if file else None)


def run(loaded: Loaded, flags: Mapping[str, Any]) -> int:
    """Until it has stopped; the flags are needed again when the settings are reloaded."""
    settings = loaded.settings
    telemetry.setup("supervisor", settings.log_level, settings.log_format)
    from topicd.supervisor.template import Template

    template = Template()
    template.open()  # first of all: it loads the shards' code while the supervisor's own is loaded
    try:
        return _supervise(settings, flags, template)
    finally:
        template.close()


def _supervise(settings: Settings, flags: Mapping[str, Any], template: Template) -> int:
    from topicd.disk.datadir import LockHeld
    from topicd.supervisor import kinds, loop

    supervisor = loop.Supervisor(settings, lambda: load(flags).settings, _announce, kinds.KINDS, template)
    try:
        return supervisor.run()
    except LockHeld as exc:
        log.error("topicd is not started", extra={"reason": exc})
        return loop.LOCK_HELD
    except ConfigError as exc:
        log.error("topicd is not started", extra={"reason": exc})
        return loop.BAD_CONFIG
    except (FormatError, OSError) as exc:
        log.error("topicd failed", extra={"reason": exc, "data_dir": settings.data_dir})
        return loop.FAILED


def _announce(text: str) -> None:
    # Nobody needs to read it: a closed stdout is no reason to stop.
    with suppress(OSError):
        if sys.stdout is not None:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
