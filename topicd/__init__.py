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
    from topicd.client.blocking.client import Client as Client
    from topicd.client.blocking.client import connect as connect
    from topicd.client.blocking.consumer import Consumer as Consumer
    from topicd.client.blocking.producer import Producer as Producer
    from topicd.client.core.batch import Batch as Batch
    from topicd.client.core.batch import ReadResult as ReadResult
    from topicd.client.core.records import Gap as Gap
    from topicd.client.core.records import Published as Published
    from topicd.client.core.records import Record as Record
    from topicd.client.core.records import RecordsMissed as RecordsMissed
    from topicd.errors import TopicdError as TopicdError
    from topicd.model import TagMatch as TagMatch
    from topicd.model import Tombstone as Tombstone
    from topicd.model import TopicConfig as TopicConfig

_WHERE = {
    "Batch": "topicd.client.core.batch",
    "Client": "topicd.client.blocking.client",
    "Consumer": "topicd.client.blocking.consumer",
    "Gap": "topicd.client.core.records",
    "Producer": "topicd.client.blocking.producer",
    "Published": "topicd.client.core.records",
    "ReadResult": "topicd.client.core.batch",
    "Record": "topicd.client.core.records",
    "RecordsMissed": "topicd.client.core.records",
    "TagMatch": "topicd.model",
    "Tombstone": "topicd.model",
    "TopicConfig": "topicd.model",
    "TopicdError": "topicd.errors",
    "connect": "topicd.client.blocking.client",
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
