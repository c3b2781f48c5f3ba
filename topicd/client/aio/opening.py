"""What is opened by waiting for it: `await` it, or enter it with `async with`, which closes it at the end."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Protocol, TypeVar


class Closing(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


T_co = TypeVar("T_co", bound=Closing, covariant=True)


class Opening(Coroutine[Any, Any, T_co]):
    """What `connect`, `watch` and `consumer` return: `await` it, or enter it with `async with`, which closes what it
    gives at the end. Good for one of both, once; a task can be made of it."""

    def __init__(self, opens: Coroutine[Any, Any, T_co]) -> None:
        self._opens = opens
        self._opened: T_co | None = None

    def send(self, value: Any) -> Any:
        """As a coroutine's."""
        return self._opens.send(value)

    def throw(self, *what: Any) -> Any:
        """As a coroutine's."""
        return self._opens.throw(*what)

    def close(self) -> None:
        """Gives it up before it was begun."""
        self._opens.close()

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._opens.__await__()

    async def __aenter__(self) -> T_co:
        self._opened = await self._opens
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, exc, trace)
