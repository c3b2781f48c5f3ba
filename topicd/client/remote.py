"""Daemons on other machines: tcp://host:port and tls://host:port. Promise: a certificate that cannot be trusted ends
the attempt before the token is sent.

The port is that of shard 0; shard i is reached at port + i. Behind TLS the rest of the client sees a plain socket: a
thread per connection carries the bytes between the two, so that waiting, timeouts and batching are the same everywhere.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from topicd.errors import ConnectionLost, FormatError, InvalidRequest, TopicdError, Unauthorized

if TYPE_CHECKING:
    import ssl

TOKEN_ENV = "TOPICD_TOKEN"
CA_FILE_ENV = "TOPICD_CA_FILE"
SCHEMES = ("tcp", "tls")
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


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


def is_remote(target: str) -> bool:
    return target.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def address(target: str, environ: Mapping[str, str]) -> Address:
    """tls://host:port, perhaps with ?ca_file=/path."""
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
    from urllib.parse import quote

    return f"{text}?ca_file={quote(os.fspath(ca_file))}"


def connect(where: Address, timeout: float) -> socket.socket:
    """A connected socket for the protocol's bytes; OSError, or the error that says what is wrong with the peer."""
    sock = socket.create_connection((where.host, where.port), timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if where.scheme == "tcp":
            return sock
        return _secured(where, sock)
    except BaseException:
        sock.close()
        raise


def _secured(where: Address, sock: socket.socket) -> socket.socket:
    import ssl

    from topicd.client import tlspump

    try:
        secured = _context(where.ca_file, _changed(where.ca_file)).wrap_socket(sock, server_hostname=where.host)
    except ssl.SSLCertVerificationError as exc:
        raise Unauthorized(f"the certificate of {where} is not trusted: {exc.verify_message}") from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):
        raise ConnectionLost(f"{where} closed the connection during the TLS handshake") from None
    except ssl.SSLError as exc:
        raise InvalidRequest(
            f"{where} does not speak TLS as expected ({exc.reason}); a daemon without tls_cert is reached with tcp://"
        ) from None
    return tlspump.start(secured)


@lru_cache(maxsize=8)
def _context(ca_file: str | None, changed: int) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise InvalidRequest(f"ca_file {ca_file} cannot be used: {exc.strerror or exc}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _changed(ca_file: str | None) -> int:
    """So that a new file is read, and an unchanged one only once."""
    try:
        return os.stat(ca_file).st_mtime_ns if ca_file else 0
    except OSError:
        return 0


def explained(where: object, error: TopicdError) -> TopicdError:
    """What may be behind an answer that is none."""
    if isinstance(where, Address) and where.scheme == "tcp" and isinstance(error, FormatError | ConnectionLost):
        hint = f"{where} does not answer as topicd does: {error.message}; a daemon with tls_cert is reached with tls://"
        return type(error)(hint)
    return error
