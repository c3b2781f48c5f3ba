"""The asyncio face of the client; works on plain asyncio and on uvloop.

import topicd.aio

async with topicd.aio.connect() as client:
    await client.publish("orders", {"id": 7})
    async with client.watch("orders", start="earliest") as records:
        async for record in records:
            print(record)
"""

from __future__ import annotations

from topicd.client.aio.channels import AsyncChannels, AsyncChannelWatch
from topicd.client.aio.chat import AsyncChat
from topicd.client.aio.client import AsyncClient, connect
from topicd.client.aio.consumer import AsyncConsumer
from topicd.client.aio.job import AsyncJob, AsyncJobs
from topicd.client.aio.opening import Opening
from topicd.client.aio.pipeline import AsyncPipeline
from topicd.client.aio.producer import AsyncProducer
from topicd.client.aio.queue import AsyncQueue
from topicd.client.aio.receipts import AsyncDeliveries, AsyncDelivery
from topicd.client.aio.stages import AsyncStages
from topicd.client.aio.watch import AsyncWatch
from topicd.client.aio.work import AsyncWork
from topicd.client.core.batch import Batch, ReadResult
from topicd.client.core.channels import ChannelEvent, ChannelInfo, ChannelMessage
from topicd.client.core.records import Gap, Published, Record, RecordsMissed

__all__ = [
    "AsyncChannelWatch",
    "AsyncChannels",
    "AsyncChat",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeliveries",
    "AsyncDelivery",
    "AsyncJob",
    "AsyncJobs",
    "AsyncPipeline",
    "AsyncProducer",
    "AsyncQueue",
    "AsyncStages",
    "AsyncWatch",
    "AsyncWork",
    "Batch",
    "ChannelEvent",
    "ChannelInfo",
    "ChannelMessage",
    "Gap",
    "Opening",
    "Published",
    "ReadResult",
    "Record",
    "RecordsMissed",
    "connect",
]
