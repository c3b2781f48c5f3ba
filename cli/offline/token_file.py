"""Changes to a token file. Promise: a reader sees the old file or the new one, never half of one; only its owner may
read it; a file that is not understood is left as it is. Layout: topicd.tokens.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from topicd import tokens
from topicd.channel import check_user
from topicd.disk.fs import RealFs
from topicd.errors import Conflict, InvalidRequest
from topicd.tokens import TokenFile

NAME_MAX = 64
_MODE = 0o600
_HEAD = "# Tokens of topicd, made by `topicctl token create`. Only digests: a lost secret cannot be recovered.\n"


def create(
    path: Path,
    name: str,
    scopes: Sequence[str],
    prefixes: Sequence[str] = (),
    expires: datetime | None = None,
    subject: str | None = None,
) -> str:
    """Adds a token and returns its secret, which nothing else keeps."""
    if not name.isprintable() or not 0 < len(name) <= NAME_MAX:
        raise InvalidRequest(f"a token's name has 1 to {NAME_MAX} printable characters, not {name!r:.100}")
    if not all(prefix and prefix.isprintable() for prefix in prefixes):
        raise InvalidRequest("a prefix must not be empty")
    if subject is not None:
        check_user(subject)
    with _alone(path):
        known = rows(path) if path.exists() else []
        if any(row["name"] == name for row in known):
            raise Conflict(f"there is a token {name!r} in {path} already")
        secret, digest = tokens.new_token()
        row = {"name": name, "sha256": digest, "scopes": list(dict.fromkeys(scopes)), "prefixes": list(prefixes)}
        _write(path, [*known, {**row, "expires": expires, "subject": subject}])
    return secret


def revoke(path: Path, name: str) -> bool:
    """False if there is no such token."""
    with _alone(path):
        known = rows(path)
        left = [row for row in known if row["name"] != name]
        if not left:
            # A daemon refuses an empty file and keeps the tokens it has.
            raise Conflict(f"{name!r} is the last token in {path}; make another one first, or turn listen_tcp off")
        _write(path, left)
    return len(left) < len(known)


def rotate(path: Path, name: str) -> str | None:
    """A new secret for a token that is otherwise as it was; the old one is worth nothing. None: there is no such."""
    with _alone(path):
        known = rows(path)
        if name not in {row["name"] for row in known}:
            return None
        secret, digest = tokens.new_token()
        _write(path, [{**row, "sha256": digest} if row["name"] == name else row for row in known])
    return secret


def rows(path: Path) -> list[dict[str, Any]]:
    """Every token as it stands in the file, with every field."""
    TokenFile.load(path)
    import tomllib

    found = tomllib.loads(path.read_text())["token"]
    return [
        {
            **row,
            "prefixes": row.get("prefixes", []),
            "subject": row.get("subject"),
            "expires": _moment(row.get("expires")),
        }
        for row in found
    ]


def _moment(value: date | datetime | None) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _write(path: Path, known: list[dict[str, Any]]) -> None:
    text = _HEAD + "".join(_table(row) for row in known)
    fs = RealFs()
    temporary = path.with_name(f".{path.name}.tmp")
    fs.unlink(temporary, missing_ok=True)
    file = fs.open(temporary, write=True, create=True, exclusive=True)
    try:
        os.fchmod(file.fileno(), _MODE)  # while it is still empty
        if path.exists():
            # The daemon's user must be able to read what root has changed.
            found = path.stat()
            os.fchown(file.fileno(), found.st_uid, found.st_gid)
        file.pwrite([text.encode()], 0)
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_dir(path.parent)


def _table(row: dict[str, Any]) -> str:
    lines = [f"{key} = {_toml(row[key])}" for key in ("name", "sha256", "scopes")]
    if row["prefixes"]:
        lines.append(f"prefixes = {_toml(row['prefixes'])}")
    if row["subject"] is not None:
        lines.append(f"subject = {_toml(row['subject'])}")
    if row["expires"] is not None:
        lines.append(f"expires = {row['expires'].isoformat()}")
    return "\n[[token]]\n" + "\n".join(lines) + "\n"


def _toml(value: str | list[str]) -> str:
    # A JSON string of printable characters is a TOML basic string.
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One change at a time, by whoever makes it."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
