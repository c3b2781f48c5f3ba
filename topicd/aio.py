"""The asyncio face of the client; works on plain asyncio and on uvloop.

import topicd.aio

async with await topicd.aio.connect() as client:
    await client.publish("orders", {"id": 7})
    async with await client.watch("orders", start="earliest") as events:
        async for event in events:
            print(event)
"""

from __future__ import annotations

from topicd.client.aio.client import AsyncClient, connect
from topicd.client.aio.consumer import AsyncConsumer
from topicd.client.aio.pipeline import AsyncPipeline
from topicd.client.aio.producer import AsyncProducer
from topicd.client.aio.receipts import AsyncDeliveries, AsyncDelivery
from topicd.client.aio.watch import AsyncWatch
from topicd.client.core.batch import Batch, ReadResult
from topicd.client.core.records import Gap, Published, Record, RecordsMissed

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeliveries",
    "AsyncDelivery",
    "AsyncPipeline",
    "AsyncProducer",
    "AsyncWatch",
    "Batch",
    "Gap",
    "Published",
    "ReadResult",
    "Record",
    "RecordsMissed",
    "connect",
]
