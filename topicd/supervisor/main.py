"""`topicd`. A daemon that is started with plain flags starts at once; for all else (commands, help, mistakes) the
library of the command line is loaded, which takes as long as all the rest.

Exit codes: 0 clean stop, 1 failed (the log says why), 2 wrong usage or settings, 3 the data directory is
in use.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from topicd import config
from topicd.config import ConfigError
from topicd.supervisor import daemon


def main(prog_name: str | None = None) -> None:
    gc.disable()  # until it serves: what is made before stays
    flags = plain_flags(sys.argv[1:])
    if flags is not None:
        try:
            loaded = daemon.load(flags)
        except ConfigError:
            pass  # found again below, and told with the usage
        else:
            sys.exit(daemon.run(loaded, flags))
    from topicd.supervisor.command import command

    command(prog_name=prog_name)


def plain_flags(arguments: Sequence[str]) -> dict[str, str] | None:
    """Settings by name as the command line would read them; None if there is anything else than flags with values."""
    names = {f"--{name.replace('_', '-')}": name for name, f in config.FIELDS.items() if f.metadata["kind"] != "flag"}
    names["--config"] = "config_file"
    found = {}
    left = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        if not equals:
            value = next(left, "-")
        if option not in names or (not equals and value.startswith("-")):
            return None
        found[names[option]] = value
    return found
