"""The sending end of a channel. Any number of them, in any number of threads: each one's messages keep their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from topicd.filechannel.errors import ChannelClosed
from topicd.filechannel.writer import Writer
from topicd.lists import check_list

T = TypeVar("T")


class Sender(Generic[T]):
    def __init__(self, writer: Writer, encode: Callable[[T], bytes] | None) -> None:
        self._encode = encode
        self._send: Callable[[Any, float | None], int] = writer.send
        self._send_many: Callable[[list[Any], float | None], int] = writer.send_many

    def send(self, message: T, timeout: float | None = None) -> int:
        """The offset behind the message. timeout: how long to wait for room in a full channel; None: for ever."""
        if self._encode is None:
            return self._send(message, timeout)
        return self._send(self._encode(message), timeout)

    def send_many(self, messages: Iterable[T], timeout: float | None = None) -> int:
        """In one go, in order. After an error those before it may have been sent. The offset behind the last."""
        check_list(messages, "messages", "; send takes one")
        if self._encode is None:
            return self._send_many(messages if isinstance(messages, list) else list(messages), timeout)
        return self._send_many([self._encode(message) for message in messages], timeout)

    def close(self) -> None:
        self._send = self._send_many = _closed

    def __enter__(self) -> Sender[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _closed(message: object, timeout: float | None) -> int:
    raise ChannelClosed("the sender is closed")
