"""Connected sockets, wherever the daemon is; both faces of the client use them. Promise: a certificate that cannot be
trusted ends the attempt before the token is sent.

Behind TLS the rest of the client sees a plain socket: a thread per connection carries the bytes between the two, so
that waiting, timeouts and batching are the same everywhere.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from topicd.client.core.address import Address
from topicd.errors import ConnectionLost, Forbidden, InvalidRequest, Unauthorized
from topicd.ipc.protocol import unixsock

if TYPE_CHECKING:
    import ssl

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def open_socket(target: str | os.PathLike[str] | Address, timeout: float) -> socket.socket:
    """Connected and blocking. Raises ConnectionLost, or what is wrong with a certificate."""
    try:
        if isinstance(target, Address):
            return _connect(target, timeout)
        return unixsock.connect(Path(target), timeout)
    except PermissionError as exc:
        raise not_allowed(target) from exc
    except OSError as exc:
        raise ConnectionLost(f"cannot connect to {target}: {exc.strerror or exc}") from exc


def not_allowed(target: object) -> Forbidden:
    """A socket that the rights of files keep from us: who may use it, as far as one can see."""
    uid, owner = os.geteuid(), ""
    for place in (Path(str(target)), *Path(str(target)).parents):
        try:
            found = place.stat()
        except OSError:
            continue
        owner = f"; {place} belongs to {user_name(found.st_uid)}, mode {found.st_mode & 0o777:03o}"
        break
    return Forbidden(
        f"a daemon may be at {target}, but {user_name(uid)} may not connect{owner}: run as that user, or let the "
        f"daemon have socket_mode 0666 and allowed_uids with {uid}",
        uid=uid,
        target=str(target),
    )


def user_name(uid: int) -> str:
    import pwd

    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"


def _connect(where: Address, timeout: float) -> socket.socket:
    sock = socket.create_connection((where.host, where.port), timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return sock if where.scheme == "tcp" else _secured(where, sock)
    except BaseException:
        sock.close()
        raise


def _secured(where: Address, sock: socket.socket) -> socket.socket:
    import ssl

    from topicd.client.core import tlspump

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
