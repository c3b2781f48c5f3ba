"""Operations that are one request and its answer, declared once for both faces (see operations.py). Promise: each face
has them as methods of its own, with the arguments, types and documentation of the declaration; what the blocking one
returns the asyncio one lets its caller await.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from topicd.client.core.requests import Request

P = ParamSpec("P")
T = TypeVar("T")


class Asks(Protocol):
    def ask(self, request: Request[T]) -> T: ...


class AsksAndAwaits(Protocol):
    async def ask(self, request: Request[T]) -> T: ...


class BlockingFace(Protocol):
    @property
    def _caller(self) -> Asks: ...


class AwaitedFace(Protocol):
    @property
    def _caller(self) -> AsksAndAwaits: ...


class verb(Generic[P, T]):
    """Of a static method that builds the request: the declaration of an operation. On a face it is the operation."""

    def __init__(self, build: Callable[P, Request[T]]) -> None:
        self.build = build

    @overload
    def __get__(self, face: None, owner: object) -> Self: ...

    @overload
    def __get__(self, face: BlockingFace, owner: object) -> Callable[P, T]: ...

    @overload
    def __get__(self, face: AwaitedFace, owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, face: Any, owner: object) -> Any:
        """What a face has instead is a method: see give_methods."""
        return self


def give_methods(face: type, verbs: type, *, awaited: bool) -> None:
    """What is declared in verbs, as methods of a face."""
    for name, declared in vars(verbs).items():
        if isinstance(declared, verb):
            method = _awaited(declared) if awaited else _blocking(declared)
            method.__name__, method.__qualname__ = name, f"{face.__qualname__}.{name}"
            method.__module__, method.__doc__ = face.__module__, inspect.getdoc(declared.build)
            method.__signature__ = _signature(declared.build)  # type: ignore[attr-defined]
            setattr(face, name, method)


def _blocking(declared: verb[..., Any]) -> Callable[..., Any]:
    build = declared.build

    def method(self: BlockingFace, *args: Any, **options: Any) -> Any:
        return self._caller.ask(build(*args, **options))

    return method


def _awaited(declared: verb[..., Any]) -> Callable[..., Any]:
    build = declared.build

    async def method(self: AwaitedFace, *args: Any, **options: Any) -> Any:
        return await self._caller.ask(build(*args, **options))

    return method


def _signature(build: Callable[..., Any]) -> inspect.Signature:
    """That of the method: with self, and what the request is answered with."""
    declared = inspect.signature(build)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    returned = str(declared.return_annotation).removeprefix("Request[").removesuffix("]")
    return declared.replace(parameters=[itself, *declared.parameters.values()], return_annotation=returned)
