"""What tests of routers do on a desk."""

from __future__ import annotations

from typing import Any

from tests.unit.delivery.desk import Desk
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCH


def make_router(desk: Desk, router: str, source: str, dest: str, **more: Any) -> dict[str, Any]:
    return desk.line().ask(Op.ROUTER_CREATE, router=router, source=source, dest=dest, **more)


def datas(desk: Desk, topic: str, from_seq: int = 0) -> list[bytes]:
    """What a reader gets."""
    found = desk.parts.catalog.get(topic)
    line = desk.line()
    return line.result(line.send(Op.FETCH, FETCH.pack(found.id, from_seq, 10_000, 0, 0))).datas()
