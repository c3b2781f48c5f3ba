"""The daemon's settings as they would be loaded here and now."""

from __future__ import annotations

from pathlib import Path

from topicd import config
from topicd.cli.exits import CliError, Exit


def load(file: str | None) -> config.Loaded:
    try:
        return config.load(file=Path(file) if file else None)
    except config.ConfigError as exc:
        raise CliError(str(exc), Exit.USAGE) from None
