"""Both faces offer the same: what one can do, the other can, under the same name and with the same arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import pytest

import topicd
import topicd.aio
from topicd.client.aio.channels import AsyncChannels, AsyncChannelWatch
from topicd.client.aio.receipts import AsyncDeliveries, AsyncDelivery
from topicd.client.aio.spool import AsyncSpool
from topicd.client.aio.stages import AsyncStages
from topicd.client.blocking.channels import Channels, ChannelWatch
from topicd.client.blocking.job import Jobs
from topicd.client.blocking.pipeline import Pipeline
from topicd.client.blocking.receipts import Deliveries, Delivery
from topicd.client.blocking.watch import Watch
from topicd.client.blocking.work import Work
from topicd.client.staging.stages import Stages

PAIRS = [
    (topicd.Client, topicd.aio.AsyncClient),
    (topicd.Chat, topicd.aio.AsyncChat),
    (topicd.Producer, topicd.aio.AsyncProducer),
    (Delivery, AsyncDelivery),
    (Deliveries, AsyncDeliveries),
    (Pipeline, topicd.aio.AsyncPipeline),
    (Watch, topicd.aio.AsyncWatch),
    (topicd.Consumer, topicd.aio.AsyncConsumer),
    (Stages, AsyncStages),
    (Channels, AsyncChannels),
    (ChannelWatch, AsyncChannelWatch),
    (topicd.Queue, topicd.aio.AsyncQueue),
    (topicd.Job, topicd.aio.AsyncJob),
    (Jobs, topicd.aio.AsyncJobs),
    (Work, topicd.aio.AsyncWork),
]
# What one face alone has, and why.
EXCEPTIONS = {
    "forked": "a loop does not outlive a fork, so asyncio clients have nothing to do after one",
    "publish_soon": "a future of the loop; in the blocking client that is a producer's delivery",
    "max_connections": "threads share connections; the asyncio client has one to each shard",
}
SPECIAL = {"__iter__": "__aiter__", "__next__": "__anext__", "__enter__": "__aenter__", "__exit__": "__aexit__"}


def members(cls: type[Any]) -> dict[str, Any]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_") and name not in EXCEPTIONS}


def shape(thing: Any) -> list[tuple[str, ...]]:
    """Names, kinds, defaults and types of the arguments and what is returned; classes are known by their blocking
    names, what is awaited or entered by what comes of it."""
    signature = inspect.signature(thing)
    parts = [(p.name, str(p.kind), repr(p.default), str(p.annotation)) for p in signature.parameters.values()]
    parts.append(("returns", str(signature.return_annotation)))
    return [tuple(re.sub(r"^Opening\[(.*)\]$", r"\1", text.replace("Async", "")) for text in part) for part in parts]


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_the_faces_have_the_same_members(blocking: type[Any], asynchronous: type[Any]) -> None:
    assert sorted(members(blocking)) == sorted(members(asynchronous))
    for name, twin in SPECIAL.items():
        if issubclass(blocking, Sequence):
            continue  # All of it is there: nothing to wait for.
        assert hasattr(blocking, name) == hasattr(asynchronous, twin), name


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_the_members_take_and_return_the_same(blocking: type[Any], asynchronous: type[Any]) -> None:
    for name, member in members(blocking).items():
        twin = members(asynchronous)[name]
        assert isinstance(member, property) == isinstance(twin, property), name
        if inspect.isfunction(member):
            assert shape(member) == shape(twin), name


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_everything_is_documented_on_both_faces(blocking: type[Any], asynchronous: type[Any]) -> None:
    for cls in (blocking, asynchronous):
        assert inspect.getdoc(cls)
        for name, member in members(cls).items():
            if inspect.isfunction(member) and name != "parcel_settled":
                assert inspect.getdoc(member), f"{cls.__name__}.{name}"


def test_what_a_spool_offers_its_users_is_the_same() -> None:
    inside = {"put", "stop", "close"}  # called by the client that it belongs to
    mine = {name: member for name, member in members(topicd.Spool).items() if name not in inside}
    twin = members(AsyncSpool)
    assert sorted(mine) == sorted(twin)
    for name, member in mine.items():
        assert inspect.getdoc(twin[name]), name
        if inspect.isfunction(member):
            assert shape(member) == shape(twin[name]), name


def test_both_connect_alike() -> None:
    blocking = [part for part in shape(topicd.connect) if part[0] not in EXCEPTIONS]
    asynchronous = shape(topicd.aio.connect)
    assert blocking[:-1] == asynchronous[:-1]
    assert blocking[-1] == asynchronous[-1]


def test_a_missing_member_and_a_different_argument_are_found() -> None:
    """The test itself: it can fail."""

    class One:
        def read(self, topic: str, *, limit: int = 0) -> int: ...  # type: ignore[empty-body]
        def write(self) -> None: ...

    class Other:
        async def read(self, topic: str, *, limit: int = 1) -> int: ...  # type: ignore[empty-body]

    assert sorted(members(One)) != sorted(members(Other))
    assert shape(One.read) != shape(Other.read)
