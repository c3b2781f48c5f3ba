"""What the file channel asks of the C core, and what its pure-Python twin offers as well. Promise: same input, same
output, same error, as in interface.py; the twin cannot sleep on shared memory, so it looks again every POLL_S.

The words of a writer's private state, u64 each, in native byte order:

    0  end     offset behind the last message that was written
    8  shift   what an offset is less in its file: position = offset - shift
   16  cut     from this end on nothing more goes into the file
   24  full    no message may end behind this offset
   32  most    bytes of a payload
   40  from    where in the file the window begins that is mapped
   48  to      where it ends; 0: there is none
   56  cleared up to this position of the window pages have been made by writing zeros
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from topicd._native.interface import Buffer

END_AT, SHIFT_AT, CUT_AT, FULL_AT, MOST_AT, FROM_AT, TO_AT, CLEARED_AT = range(0, 64, 8)
STATE_BYTES = 64
FOREVER_NS = 2**64 - 1

Split = tuple[list[bytes], list[int], int, str]  # payloads, offsets behind them, position, why it ended there


class ChannelCore(Protocol):
    """A fault is "" or why the message at the position is none: short, length or checksum."""

    def crc32(self, data: Buffer, start: int, /) -> int: ...

    def message_head(self, payload: Buffer, most: int, /) -> bytes: ...

    def measure_messages(self, messages: Sequence[Buffer], most: int, /) -> int:
        """Their bytes with heads; TypeError for what is no buffer, record_too_large for what exceeds most."""
        ...

    def encode_messages(
        self, messages: Sequence[Buffer], first: int, into: Buffer, at: int, most: int, /
    ) -> tuple[int, int]:
        """Messages from number `first` on, as many as find room in `into` behind `at`: which is next, where it ends."""
        ...

    def send_message(
        self,
        fd: int,
        state: Buffer,
        payload: Buffer,
        memory: Buffer | None,
        value_at: int,
        signal_at: int,
        window: Buffer | None,
        /,
    ) -> int:
        """Write the message at the state's end, move the end, publish it if memory is given. 0: cut, full, large.
        What is small and lies in the window as a whole is stored there; the twin writes it to the file, which is the
        same. The window's pages are made on the way, by zeros behind the end; the twin leaves that to the system."""
        ...

    def reserve(self, fd: int, offset: int, length: int, /) -> bool:
        """Room on the disk for a part of the file, which grows by zeros to have it. False: this filesystem cannot."""
        ...

    def split_messages(self, buffer: Buffer, start: int, end: int, base: int, most: int, limit: int, /) -> Split:
        """Payloads of whole, good messages; base is the offset of the buffer's first byte."""
        ...

    def scan_messages(self, buffer: Buffer, start: int, end: int, most: int, /) -> tuple[int, int, str]: ...

    def find_message(self, buffer: Buffer, start: int, end: int, most: int, /) -> int:
        """The first position from start on where a good message begins and what follows makes sense; else end."""
        ...

    def publish(self, memory: Buffer, value_at: int, value: int, signal_at: int, /) -> None: ...

    def signal_count(self, memory: Buffer, signal_at: int, /) -> int: ...

    def raise_signal(self, memory: Buffer, signal_at: int, /) -> None: ...

    def await_signal(
        self, memory: Buffer, signal_at: int, seen: int, value_at: int, known: int, timeout_ns: int, /
    ) -> int:
        """The value, once it differs from known, the signal was raised since `seen`, or the time is over."""
        ...
