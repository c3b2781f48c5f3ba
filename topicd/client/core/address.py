"""Daemons on other machines: tcp://host:port and tls://host:port, perhaps with ?ca_file=/path. The port is that of
shard 0; shard i is reached at port + i.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

from topicd.errors import ConnectionLost, FormatError, InvalidRequest, TopicdError

TOKEN_ENV = "TOPICD_TOKEN"
CA_FILE_ENV = "TOPICD_CA_FILE"
SCHEMES = ("tcp", "tls")


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    host: str
    port: int
    ca_file: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def of_shard(self, shard: int) -> Address:
        return replace(self, port=self.port + shard)


Target: TypeAlias = Path | Address  # a socket on this machine, or a port on another


def is_remote(target: str) -> bool:
    return target.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def parse(target: str, environ: Mapping[str, str]) -> Address:
    scheme = target.partition(":")[0]
    # The target is not repeated in the message: it may hold a secret.
    wrong = InvalidRequest(f"a target of scheme {scheme} must be {scheme}://host:port, perhaps with ?ca_file=/path")
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    options = parse_qs(parts.query, keep_blank_values=True)
    if not host or not port or parts.path or parts.username is not None or parts.fragment:
        raise wrong
    if not set(options) <= {"ca_file"}:
        raise wrong
    ca_file = options["ca_file"][-1] if options else environ.get(CA_FILE_ENV)
    return Address(scheme, host, port, ca_file or None)


def with_ca_file(target: str | os.PathLike[str] | None, ca_file: str | os.PathLike[str] | None) -> str | None:
    """The target as text, with the file as its option."""
    text = None if target is None else os.fspath(target)
    if ca_file is None:
        return text
    if text is None or not text.startswith("tls://") or "?" in text:
        raise InvalidRequest("ca_file belongs to a target tls://host:port")
    return f"{text}?ca_file={quote(os.fspath(ca_file))}"


def explained(where: object, error: TopicdError) -> TopicdError:
    """What may be behind an answer that is none."""
    if isinstance(where, Address) and where.scheme == "tcp" and isinstance(error, FormatError | ConnectionLost):
        hint = f"{where} does not answer as topicd does: {error.message}; a daemon with tls_cert is reached with tls://"
        return type(error)(hint)
    return error
