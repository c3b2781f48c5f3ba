"""The sending end of a channel. Any number of them, in any number of threads: each one's messages keep their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from topicd.errors import InvalidRequest, TopicdError
from topicd.filechannel.arguments import check_timeout, is_buffer
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
        if timeout is not None:
            check_timeout(timeout)
        if self._encode is None:
            return self._send(message, timeout)
        return self._send(self._encoded(message, self._encode), timeout)

    def send_many(self, messages: Iterable[T], timeout: float | None = None) -> int:
        """In one go, in order. After an error those before it may have been sent. The offset behind the last."""
        check_list(messages, "messages", "; send takes one")
        check_timeout(timeout)
        encode = self._encode
        if encode is None:
            return self._send_many(messages if isinstance(messages, list) else list(messages), timeout)
        return self._send_many([self._encoded(message, encode) for message in messages], timeout)

    def _encoded(self, message: T, encode: Callable[[T], bytes]) -> bytes:
        try:
            made = encode(message)
        except TopicdError:
            raise
        except Exception as error:
            raise InvalidRequest(f"a message of type {type(message).__name__} cannot be encoded: {error}") from error
        if not is_buffer(made):
            raise InvalidRequest(f"the codec made {type(made).__name__}, not bytes")
        return made

    def close(self) -> None:
        self._send = self._send_many = _closed

    def __enter__(self) -> Sender[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _closed(message: object, timeout: float | None) -> int:
    raise ChannelClosed("the sender is closed")
