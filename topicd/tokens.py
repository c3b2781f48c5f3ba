"""Tokens for connections that no user id vouches for. Promise: only digests are at rest, a comparison takes the same
time whichever token is wrong, and a file that cannot be understood refuses the start instead of letting everybody in.

The file is TOML, one table per token:

    [[token]]
    name = "spark"
    sha256 = "<64 hex digits>"
    scopes = ["read", "consume", "write"]
    prefixes = ["orders.", "events."]     # optional; none: every topic
    expires = 2027-01-01T00:00:00Z        # optional
    subject = "ann"                       # optional; the user it stands for, in channels and chat

Scopes: read (records, states, lists), consume (open, acknowledge, reset and remove named consumers: where a topic keeps
what is not acknowledged, that deletes), write, delete, sync (another chat store, see docs/chat.md), admin (everything).
Short: r, w, d, a; rw for the first two.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from topicd.errors import Forbidden, FormatError, Unauthorized
from topicd.limits import CHANNELS, CHATS, COMMITS, STAGE_KEY_DIGITS, STAGES, USER_NAME, USER_NAME_RULE
from topicd.model import is_internal, is_staged

SCOPES = ("read", "consume", "write", "delete", "admin", "stage", "sync")
SHORT = {"r": ("read",), "w": ("write",), "d": ("delete",), "a": ("admin",), "rw": ("read", "write")}
_FIELDS = {"name", "sha256", "scopes", "prefixes", "expires", "subject"}


class Rights(NamedTuple):
    """What a connection may do. The default is everything: a local user that is on the list."""

    name: str = "local"
    scopes: frozenset[str] = frozenset(SCOPES)
    prefixes: tuple[str, ...] = ()
    subject: str | None = None

    def require(self, scope: str, topic: str | None = None) -> None:
        if topic is not None and topic.startswith((CHANNELS, CHATS)) and "admin" not in self.scopes:
            what = "channels" if topic.startswith(CHANNELS) else "chat"
            raise Forbidden(f"token {self.name!r} may not touch the logs of {what}", token=self.name, topic=topic)
        if topic is not None and is_staged(topic):
            self._require_stage(topic)
            return
        # Journals of topicd's own are kept by whoever writes.
        wanted = {scope, "admin", "write"} if topic is not None and is_internal(topic) else {scope, "admin"}
        if self.scopes.isdisjoint(wanted):
            raise Forbidden(f"token {self.name!r} has no {scope} right", token=self.name, scope=scope)
        if topic is not None and not self.allows(topic):
            raise Forbidden(f"token {self.name!r} may not touch topic {topic!r}", token=self.name, topic=topic)

    def _require_stage(self, topic: str) -> None:
        """A job does with its stages what it wants, whatever its prefixes: it knows their names, and is not shown those
        of others (see lists)."""
        if "stage" in self.scopes:
            return
        if "admin" not in self.scopes:
            raise Forbidden(f"token {self.name!r} has no stage right", token=self.name, scope="stage")
        if not self.allows(topic):
            raise Forbidden(f"token {self.name!r} may not touch topic {topic!r}", token=self.name, topic=topic)

    def lists(self, topic: str, prefix: str) -> bool:
        """Is it shown to somebody who asks for names with this beginning? Stages, to a job that may stage and no more,
        only if it knows whose they are."""
        if not is_staged(topic) or "admin" in self.scopes:
            return self.allows(topic)
        own = STAGES if topic.startswith(STAGES) else COMMITS
        return "stage" in self.scopes and len(prefix) >= len(own) + STAGE_KEY_DIGITS

    def require_any(self, scopes: tuple[str, ...], topic: str) -> None:
        """For a request that any of these rights allows."""
        if not self.prefixes and "admin" in self.scopes:
            return  # everything: asked for every claim and every acknowledgement
        self.require(next((scope for scope in scopes if scope in self.scopes), scopes[0]), topic)

    def require_channel(self, scope: str, handler: str) -> None:
        """Prefixes mean channels as they mean topics."""
        if self.scopes.isdisjoint({scope, "admin"}):
            raise Forbidden(f"token {self.name!r} has no {scope} right", token=self.name, scope=scope)
        if self.prefixes and not handler.startswith(self.prefixes):
            raise Forbidden(f"token {self.name!r} may not touch channel {handler!r}", token=self.name, channel=handler)

    def allows(self, topic: str) -> bool:
        """Also of names that are given over HTTP: what is in these logs is for members only."""
        if topic.startswith((CHANNELS, CHATS)) and "admin" not in self.scopes:
            return False
        if is_staged(topic) and "admin" not in self.scopes:
            return False
        return not self.prefixes or topic.startswith(self.prefixes)


EVERYTHING = Rights()


class Token(NamedTuple):
    rights: Rights
    digest: bytes
    expires_ms: int | None


def new_token() -> tuple[str, str]:
    """(the secret, to be shown once; its digest, to be stored)."""
    import secrets

    secret = f"tpd_{secrets.token_urlsafe(32)}"
    return secret, digest_of(secret).hex()


def digest_of(secret: str) -> bytes:
    import hashlib

    return hashlib.sha256(secret.encode()).digest()


class TokenFile:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @classmethod
    def load(cls, path: Path) -> TokenFile:
        import tomllib

        try:
            body = tomllib.loads(path.read_text())
        except OSError as exc:
            raise FormatError(f"token file {path} cannot be read: {exc.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise FormatError(f"token file {path} is not TOML: {exc}") from None
        rows = body.get("token")
        if not isinstance(rows, list) or not rows or set(body) != {"token"}:
            raise FormatError(f"token file {path} must hold [[token]] tables and nothing else")
        return cls([_parse(path, number, row) for number, row in enumerate(rows, 1)])

    def expiries(self) -> list[tuple[str, int]]:
        """Of those that end: name, ms."""
        return [(token.rights.name, token.expires_ms) for token in self._tokens if token.expires_ms is not None]

    def knows(self, digest: bytes, now_ms: int) -> bool:
        """Does a connection that was let in with this one stay?"""
        import hmac

        found = [token for token in self._tokens if hmac.compare_digest(token.digest, digest)]
        return any(token.expires_ms is None or now_ms < token.expires_ms for token in found)

    def authorize(self, secret: Any, now_ms: int) -> Rights:
        """The rights behind a secret. Every token is compared, so that time tells nothing."""
        import hmac

        if not isinstance(secret, str) or not secret:
            raise Unauthorized("a token is needed on this connection")
        given = digest_of(secret)
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, given):
                found = token
        if found is None:
            raise Unauthorized("the token is not known")
        if found.expires_ms is not None and now_ms >= found.expires_ms:
            raise Unauthorized(f"token {found.rights.name!r} has expired", token=found.rights.name)
        return found.rights


def _parse(path: Path, number: int, row: Any) -> Token:
    where = f"token file {path}, token {number}"
    if not isinstance(row, dict) or not {"name", "sha256", "scopes"} <= set(row) <= _FIELDS:
        raise FormatError(f"{where}: needs name, sha256, scopes; may have prefixes, expires, subject; nothing else")
    digest = row["sha256"]
    if not isinstance(digest, str) or len(digest) != 64 or not all(c in "0123456789abcdef" for c in digest):
        raise FormatError(f"{where}: sha256 must be 64 lower-case hex digits")
    scopes, prefixes = row["scopes"], row.get("prefixes", [])
    if not isinstance(scopes, list) or not scopes or any(scope not in (*SCOPES, *SHORT) for scope in scopes):
        raise FormatError(f"{where}: scopes must be some of {', '.join(SCOPES)}")
    if not isinstance(prefixes, list) or any(not isinstance(prefix, str) or not prefix for prefix in prefixes):
        raise FormatError(f"{where}: prefixes must be a list of texts")
    subject = row.get("subject")
    if subject is not None and not (isinstance(subject, str) and USER_NAME.fullmatch(subject)):
        raise FormatError(f"{where}: subject must be a user name: {USER_NAME_RULE}")
    rights = Rights(str(row["name"]), frozenset(_whole(scopes)), tuple(prefixes), subject)
    return Token(rights, bytes.fromhex(digest), _expiry(where, row.get("expires")))


def _whole(scopes: list[str]) -> list[str]:
    """Without short words."""
    return [whole for scope in scopes for whole in SHORT.get(scope, (scope,))]


def _expiry(where: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    else:
        raise FormatError(f"{where}: expires must be a date or a time")
    return int(moment.timestamp() * 1000)
