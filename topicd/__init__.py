"""Durable, ordered, replayable topics behind a Unix socket.

    import topicd

    with topicd.connect() as client:
        client.publish("orders", {"id": 7})
        for event in client.watch("orders", start="earliest"):
            print(event)

Everything below is imported on first use, so that the daemon's processes do not load the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topicd import compiled as _compiled  # noqa: F401  before any other module of the package

__version__ = "0.1.0"

if TYPE_CHECKING:
    from topicd.client.batch import Batch as Batch
    from topicd.client.batch import ReadResult as ReadResult
    from topicd.client.client import Client as Client
    from topicd.client.client import connect as connect
    from topicd.client.consumer import Consumer as Consumer
    from topicd.client.producer import Producer as Producer
    from topicd.client.records import Gap as Gap
    from topicd.client.records import Published as Published
    from topicd.client.records import Record as Record
    from topicd.client.records import RecordsMissed as RecordsMissed
    from topicd.errors import TopicdError as TopicdError
    from topicd.model import TagMatch as TagMatch
    from topicd.model import Tombstone as Tombstone
    from topicd.model import TopicConfig as TopicConfig

_WHERE = {
    "Batch": "topicd.client.batch",
    "Client": "topicd.client.client",
    "Consumer": "topicd.client.consumer",
    "Gap": "topicd.client.records",
    "Producer": "topicd.client.producer",
    "Published": "topicd.client.records",
    "ReadResult": "topicd.client.batch",
    "Record": "topicd.client.records",
    "RecordsMissed": "topicd.client.records",
    "TagMatch": "topicd.model",
    "Tombstone": "topicd.model",
    "TopicConfig": "topicd.model",
    "TopicdError": "topicd.errors",
    "connect": "topicd.client.client",
}
_MODULES = ("aio", "errors")

__all__ = [  # noqa: PLE0604
    "__version__",
    *_WHERE,
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"topicd.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'topicd' has no attribute {name!r}")
    found = getattr(import_module(_WHERE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
