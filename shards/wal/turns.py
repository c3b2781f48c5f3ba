"""The turns of a committer in C (topicd/_native/commit.c), many of them in one call. Promise: what they did is in the
committer and its log when run() returns, and what they leave to Python they have not begun.

Only where the log lies in files of the system and time is the system's: whoever watches or fails its calls, or moves
its clock, gets Committer.turn(), which is the reference. The page both sides share, words of eight bytes:

      what             of        meaning
  0   fd               Python    the file in use
  1   limit            Python    up to this offset it takes groups without further ado
  2   group_limit      Python
  3   first_lsn        Python
  4   lsn              both
  5   synced_lsn       both
  6   run, seed        Python    of the group headers
  8   last_sync_ns     both
  9   disk_sync_ns     Python
 10   until_ns         Python    return then
 11   enough_bytes     Python    return once so much was written
 12   state_number     both      of the newest value in the state's slots
 13   bell_at, bell_fd Python    this process's own bell
 15   channel_fd       Python    of the supervisor's orders
 16   lone_bytes       Python    a group up to this is the write of somebody who waits for it
 17   lone             both      such a group was written, and nothing was looked for since
 18   answered         both      most_ns, misses, pause of a Linger
 21   groups, bytes, syncs, error  C   of this call
 25   samples_max      Python
 26   samples          C         how many
 27   aside            Python    of the sync beside (aside.py), set by its thread
 28   inlets           both      written, synced (both), bell_at, bell_fd (Python; all bits set: no bell) of each ring
  .   samples          C         what each sync took, ns
"""

from __future__ import annotations

import os
from enum import IntEnum

from topicd import _native
from topicd.clock import Clock, SystemClock
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.linger import Linger
from topicd.ipc.pressure import Board
from topicd.limits import MIB
from topicd.shards.wal.committer import Committer
from topicd.shards.wal.log import WalLog

_ASIDE = 27
_INLETS = 28
_WORDS_PER_INLET = 4
_SAMPLES = 1024
_ENOUGH = 1 * MIB  # then figures are counted
_NO_BELL = (1 << 64) - 1
_NS = 1_000_000_000


class Why(IntEnum):
    """Why a call returns."""

    TICK = 1
    MESSAGE = 2
    SIGNAL = 3
    PRESSURE = 4
    ROOM = 5
    ENOUGH = 6
    WRITE_FAILED = 7
    SYNC_FAILED = 8
    ASIDE = 9  # a sync beside the turns is due, has ended, or is in the way of one that is awaited


LEFT_TO_PYTHON = frozenset({Why.PRESSURE, Why.ROOM, Why.ASIDE})


class NativeTurns:
    def __init__(
        self,
        committer: Committer,
        bell: Doorbell,
        channel_fd: int,
        board: Board,
        answered: Linger,
        lone_bytes: int,
    ) -> None:
        self._committer = committer
        self._log = committer.log
        self._board = board
        self._bells = bell.memory
        inlets = committer.inlets
        self._rings = tuple(inlet.ring.memory for inlet in inlets)
        self._page = bytearray(8 * (_INLETS + _WORDS_PER_INLET * len(inlets) + _SAMPLES))
        words = self._words = memoryview(self._page).cast("Q")
        words[6], words[7] = self._log.run, self._log.seed
        words[11] = _ENOUGH
        words[13], words[14], words[15] = bell.at, bell.fd, channel_fd
        words[16] = lone_bytes
        words[18] = answered.most_ns
        words[25] = _SAMPLES
        self._log.aside.show_in(self._page, 8 * _ASIDE)
        for number, inlet in enumerate(inlets):
            at = _INLETS + _WORDS_PER_INLET * number
            words[at + 2] = inlet.bell.at if inlet.bell is not None else 0
            words[at + 3] = inlet.bell.fd if inlet.bell is not None else _NO_BELL

    def run(self, until: float) -> Why:
        """Turn until something happens that only Python does, or it is `until` by the system's monotonic clock."""
        assert _native.commit is not None
        committer, wal, words = self._committer, self._log, self._words
        fd, limit = wal.native_room()
        if limit == 0:
            return Why.ROOM
        words[0], words[1], words[2] = fd, limit, committer.group_limit
        words[3], words[4], words[5] = wal.first_lsn, wal.lsn, wal.synced_lsn
        words[8], words[9] = round(committer.last_sync * _NS), round(committer.disk_sync_s * _NS)
        words[10] = round(until * _NS)
        words[12] = committer.state.number
        for number, inlet in enumerate(committer.inlets):
            at = _INLETS + _WORDS_PER_INLET * number
            words[at], words[at + 1] = inlet.written, inlet.synced
        state, board = committer.state.memory, self._board.memory
        wal.live_lsn = self._live_lsn
        why = Why(_native.commit(self._page, state, self._bells, board, self._rings))
        self._take_back()
        wal.live_lsn = None
        if why is Why.WRITE_FAILED:
            committer.write_failed(wal.lsn, self._error())
        elif why is Why.SYNC_FAILED:
            committer.sync_failed(self._error())
        return why

    def _live_lsn(self) -> int:
        return self._words[4]

    def _take_back(self) -> None:
        committer, wal, words = self._committer, self._log, self._words
        if words[21]:
            wal.lsn = words[4]
        wal.synced_lsn = words[5]
        wal.send_ahead()
        committer.state.number = words[12]
        for number, inlet in enumerate(committer.inlets):
            at = _INLETS + _WORDS_PER_INLET * number
            inlet.written, inlet.synced = words[at], words[at + 1]
        first = _INLETS + _WORDS_PER_INLET * len(committer.inlets)
        for took_ns in words[first : first + words[26]]:
            committer.sync_latency.note(took_ns / _NS)
        committer.count(groups=words[21], size=words[22], syncs=words[23], last_sync=words[8] / _NS)

    def _error(self) -> OSError:
        code = self._words[24]
        return OSError(code, os.strerror(code))


def possible(wal: WalLog, clock: Clock) -> bool:
    """May these turns be taken in C?"""
    return _native.commit is not None and isinstance(clock, SystemClock) and wal.native_room()[1] > 0
