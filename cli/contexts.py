"""Named daemons of this user, so that nobody types addresses and tokens. Promise: the file is its owner's alone, holds
paths of secrets and no secrets, and one that is not understood is left as it is.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from topicd.cli.exits import CliError, Exit

CONTEXT_ENV = "TOPICD_CONTEXT"


@dataclass(frozen=True)
class Context:
    name: str
    target: str
    token_file: str = ""
    ca_file: str = ""

    def token(self) -> str | None:
        if not self.token_file:
            return None
        try:
            found = Path(self.token_file).expanduser().read_text().strip()
        except OSError as exc:
            raise CliError(
                f"context {self.name}: token file {self.token_file}: {exc.strerror}", Exit.NOT_FOUND
            ) from None
        if not found:
            raise CliError(f"context {self.name}: token file {self.token_file} is empty", Exit.USAGE)
        return found


@dataclass
class Contexts:
    path: Path
    current: str
    known: dict[str, Context]

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> Contexts:
        home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/nonexistent"), ".config")
        path = Path(home) / "topicd" / "contexts.toml"
        try:
            body = tomllib.loads(path.read_text())
            rows = body.get("context", {})
            known = {name: Context(name, **row) for name, row in rows.items()}
            return cls(path, str(body.get("current", "")), known)
        except FileNotFoundError:
            return cls(path, "", {})
        except (OSError, ValueError, TypeError) as exc:
            raise CliError(f"{path} cannot be used: {exc}", Exit.USAGE, "mend it or move it away") from None

    def get(self, name: str) -> Context:
        if name not in self.known:
            known = f"there are {', '.join(self.known)}" if self.known else "`topicctl context add` makes one"
            raise CliError(f"there is no context {name!r}", Exit.NOT_FOUND, known)
        return self.known[name]

    def chosen(self, said: str | None, environ: Mapping[str, str] = os.environ) -> Context | None:
        """Said on the command line or in TOPICD_CONTEXT; else the current one, unless a variable names a daemon."""
        elsewhere = environ.get("TOPICD_SOCKET") or environ.get("TOPICD_RUN_DIR")
        name = said or environ.get(CONTEXT_ENV) or ("" if elsewhere else self.current)
        return self.get(name) if name else None

    def save(self) -> None:
        lines = ["# Made by `topicctl context`."]
        if self.current:
            lines.append(f"current = {json.dumps(self.current)}")
        for context in self.known.values():
            lines.append(f"\n[context.{json.dumps(context.name)}]")
            lines += [f"{n} = {json.dumps(v)}" for n, v in vars(context).items() if n != "name" and v]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")
        fresh.replace(self.path)
