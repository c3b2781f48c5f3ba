"""Durable, ordered, replayable topics behind a Unix socket.

    import topicd

    with topicd.connect() as client:
        client.publish("orders", {"id": 7})
        for record in client.watch("orders", start="earliest"):
            print(record)

Everything below is imported on first use, so that the daemon's processes do not load the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topicd import compiled as _compiled  # noqa: F401  before any other module of the package

__version__ = "0.1.0"

if TYPE_CHECKING:
    from topicd.client.blocking.channels import Channels as Channels
    from topicd.client.blocking.channels import ChannelWatch as ChannelWatch
    from topicd.client.blocking.chat import Chat as Chat
    from topicd.client.blocking.client import Client as Client
    from topicd.client.blocking.client import connect as connect
    from topicd.client.blocking.consumer import Consumer as Consumer
    from topicd.client.blocking.job import Job as Job
    from topicd.client.blocking.pipeline import Pipeline as Pipeline
    from topicd.client.blocking.producer import Producer as Producer
    from topicd.client.blocking.queue import Queue as Queue
    from topicd.client.blocking.receipts import Deliveries as Deliveries
    from topicd.client.blocking.receipts import Delivery as Delivery
    from topicd.client.blocking.watch import Watch as Watch
    from topicd.client.core.answers import ConnectionInfo as ConnectionInfo
    from topicd.client.core.answers import ConsumerInfo as ConsumerInfo
    from topicd.client.core.answers import Deleted as Deleted
    from topicd.client.core.answers import TopicInfo as TopicInfo
    from topicd.client.core.answers import TopicState as TopicState
    from topicd.client.core.batch import Batch as Batch
    from topicd.client.core.batch import ReadResult as ReadResult
    from topicd.client.core.channels import ChannelEvent as ChannelEvent
    from topicd.client.core.channels import ChannelInfo as ChannelInfo
    from topicd.client.core.channels import ChannelMessage as ChannelMessage
    from topicd.client.core.chat import ChatMember as ChatMember
    from topicd.client.core.chat import ChatMessage as ChatMessage
    from topicd.client.core.chat import ChatRow as ChatRow
    from topicd.client.core.chat import InboxChange as InboxChange
    from topicd.client.core.chat import InboxPage as InboxPage
    from topicd.client.core.chat import MessagePage as MessagePage
    from topicd.client.core.chat import Sent as Sent
    from topicd.client.core.chat import Signal as Signal
    from topicd.client.core.events import Disconnected as Disconnected
    from topicd.client.core.events import Reconnected as Reconnected
    from topicd.client.core.records import Gap as Gap
    from topicd.client.core.records import Published as Published
    from topicd.client.core.records import Record as Record
    from topicd.client.core.records import RecordsMissed as RecordsMissed
    from topicd.client.spool.spool import Spool as Spool
    from topicd.client.staging.stages import Stages as Stages
    from topicd.client.worker.tasks import GiveUp as GiveUp
    from topicd.client.worker.tasks import Middleware as Middleware
    from topicd.client.worker.tasks import Retry as Retry
    from topicd.client.worker.tasks import current_job as current_job
    from topicd.client.worker.worker import Worker as Worker
    from topicd.errors import TopicdError as TopicdError
    from topicd.model import TagMatch as TagMatch
    from topicd.model import Tombstone as Tombstone
    from topicd.model import TopicConfig as TopicConfig

_WHERE = {
    "Signal": "topicd.client.core.chat",
    "Sent": "topicd.client.core.chat",
    "MessagePage": "topicd.client.core.chat",
    "InboxPage": "topicd.client.core.chat",
    "InboxChange": "topicd.client.core.chat",
    "ChatRow": "topicd.client.core.chat",
    "ChatMessage": "topicd.client.core.chat",
    "ChatMember": "topicd.client.core.chat",
    "Chat": "topicd.client.blocking.chat",
    "Batch": "topicd.client.core.batch",
    "ChannelEvent": "topicd.client.core.channels",
    "ChannelInfo": "topicd.client.core.channels",
    "ChannelMessage": "topicd.client.core.channels",
    "ChannelWatch": "topicd.client.blocking.channels",
    "Channels": "topicd.client.blocking.channels",
    "Client": "topicd.client.blocking.client",
    "Consumer": "topicd.client.blocking.consumer",
    "ConnectionInfo": "topicd.client.core.answers",
    "ConsumerInfo": "topicd.client.core.answers",
    "Deleted": "topicd.client.core.answers",
    "Deliveries": "topicd.client.blocking.receipts",
    "Delivery": "topicd.client.blocking.receipts",
    "Disconnected": "topicd.client.core.events",
    "Gap": "topicd.client.core.records",
    "GiveUp": "topicd.client.worker.tasks",
    "Job": "topicd.client.blocking.job",
    "Middleware": "topicd.client.worker.tasks",
    "Pipeline": "topicd.client.blocking.pipeline",
    "Producer": "topicd.client.blocking.producer",
    "Published": "topicd.client.core.records",
    "Queue": "topicd.client.blocking.queue",
    "ReadResult": "topicd.client.core.batch",
    "Reconnected": "topicd.client.core.events",
    "Record": "topicd.client.core.records",
    "RecordsMissed": "topicd.client.core.records",
    "Retry": "topicd.client.worker.tasks",
    "TagMatch": "topicd.model",
    "Spool": "topicd.client.spool.spool",
    "Stages": "topicd.client.staging.stages",
    "Tombstone": "topicd.model",
    "TopicConfig": "topicd.model",
    "TopicInfo": "topicd.client.core.answers",
    "TopicState": "topicd.client.core.answers",
    "TopicdError": "topicd.errors",
    "Worker": "topicd.client.worker.worker",
    "Watch": "topicd.client.blocking.watch",
    "connect": "topicd.client.blocking.client",
    "current_job": "topicd.client.worker.tasks",
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
