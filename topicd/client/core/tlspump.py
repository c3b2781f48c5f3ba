"""Carries bytes between a TLS connection and a plain socket. Promise: what was written before the plain side closed
is sent on, for LINGER_S at most; at most CHUNK bytes per direction are held.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading

from topicd.limits import KIB

CHUNK = 64 * KIB
LINGER_S = 5.0


def start(secured: ssl.SSLSocket) -> socket.socket:
    """The plain side, for the caller; closing it ends everything."""
    ours, theirs = socket.socketpair()
    pump = _Pump(secured, theirs)
    threading.Thread(target=pump.run, name="topicd-tls", daemon=True).start()
    return ours


class _Pump:
    def __init__(self, secured: ssl.SSLSocket, plain: socket.socket) -> None:
        secured.setblocking(False)
        plain.setblocking(False)
        self._secured = secured
        self._plain = plain
        self._out = memoryview(b"")  # to the daemon
        self._in = memoryview(b"")  # to the client
        self._client_left = self._daemon_left = self._hung_up = False
        self._wants = 0  # poll events the TLS side waits for

    def run(self) -> None:
        try:
            while self._turn():
                pass
        except OSError:
            pass
        finally:
            self._plain.close()
            self._secured.close()

    def _turn(self) -> bool:
        self._wants = 0
        moved = self._outward() | self._inward()
        if (self._client_left and not self._out) or (self._daemon_left and not self._in):
            return False
        return moved or self._wait()

    def _outward(self) -> bool:
        if not self._out and not self._client_left:
            try:
                self._out = memoryview(self._plain.recv(CHUNK))
                self._client_left = not self._out
            except BlockingIOError:
                return False
        if not self._out:
            return False
        try:
            self._out = self._out[self._secured.send(self._out) :]
        except ssl.SSLWantReadError:
            self._wants |= select.POLLIN
            return False
        except ssl.SSLWantWriteError:
            self._wants |= select.POLLOUT
            return False
        return True

    def _inward(self) -> bool:
        if not self._in and not self._daemon_left:
            try:
                self._in = memoryview(self._secured.recv(CHUNK))
                self._daemon_left = not self._in
            except ssl.SSLWantReadError:
                self._wants |= select.POLLIN
                return False
            except ssl.SSLWantWriteError:
                self._wants |= select.POLLOUT
                return False
        if not self._in:
            return False
        if self._hung_up:
            self._in = memoryview(b"")
            return True
        try:
            self._in = self._in[self._plain.send(self._in) :]
        except BlockingIOError:
            return False
        return True

    def _wait(self) -> bool:
        """False when the client has left and the daemon takes nothing more."""
        poll = select.poll()
        if self._wants:
            poll.register(self._secured, self._wants)
        if not self._hung_up:
            wanted = (0 if self._out else select.POLLIN) | (select.POLLOUT if self._in else 0)
            poll.register(self._plain, wanted)
        ready = dict(poll.poll(LINGER_S * 1000 if self._hung_up else None))
        if ready.get(self._plain.fileno(), 0) & (select.POLLHUP | select.POLLERR):
            # It stays ready for ever; what is left in it is read without asking.
            self._hung_up = True
        return bool(ready)
