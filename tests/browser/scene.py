"""A daemon with something of everything, for screenshots and for what is looked at in every view."""

from __future__ import annotations

from typing import Any

from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web

SETTINGS: dict[str, Any] = {"wal_shards": 2, "delivery_shards": 2, "checkpoint_ms": 50}
ENVIRON = {"TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0", "TOPICD_CHAT": "true"}


def set_up(daemon: Daemon) -> Web:
    web = Web(daemon)
    for shop in ("eu", "uk", "us"):
        for part in ("paid", "shipped", "returned"):
            web.write(f"orders.{shop}.{part}", *({"id": n, "total": n * 1.5} for n in range(40)))
    for source, dest in (("orders", "audit"), ("orders", "billing"), ("billing", "ledger"), ("orders", "search")):
        put(web, f"/v0/routers/{source}-%3E{dest}", {"source": source, "dest": dest})
    rows = [{"data": _order(n), "tag": f"customer:{n % 7}", "node": "shop-1"} for n in range(1, 161)]
    web("POST", "/v0/topics/orders", {"records": rows})
    _queues(web)
    _rooms(web)
    with daemon.client() as client:
        client.open_consumer("orders", "billing-app")
        client.ack_consumer("orders", "billing-app", 120)
        client.open_consumer("orders", "warehouse", "latest")
        client.open_consumer("audit", "archive")
    return web


def _order(number: int) -> dict[str, Any]:
    state = ("paid", "open", "shipped")[number % 3]
    return {"id": number, "state": state, "total": round(number * 3.7, 2), "lines": [{"sku": f"A-{number}", "n": 2}]}


def put(web: Web, path: str, body: Any) -> None:
    answer = web("PUT", path, body)
    assert answer.status in (200, 201), answer.raw


def _queues(web: Web) -> None:
    put(web, "/v0/topics/thumbs", {"type": "queue", "max_deliveries": 1, "dead_letter": "thumbs.dead"})
    web.write("thumbs", *({"file": f"photo-{n}.jpg"} for n in range(12)))
    web("POST", "/v0/topics/thumbs/claim", {"node": "worker-1", "max": 3})
    web("POST", "/v0/topics/thumbs/nack", {"node": "worker-1", "seqs": [1, 2, 3]})
    web("POST", "/v0/topics/thumbs/claim", {"node": "worker-2", "max": 2, "lease_ms": 600_000})
    put(web, "/v0/topics/mails", {"type": "queue"})
    web.write("mails", {"to": "ada"}, {"to": "bob"})
    web("POST", "/dashboard/queues/mails/mode", {"action": "pause", "reason": "the provider is away"})
    web("POST", "/dashboard/queues/mails/cron", {"name": "nightly", "schedule": "0 3 * * *", "data": "all"})
    wait_until(lambda: web("POST", "/dashboard/queues/thumbs/dead", {}).body["letters"], "dead letters")


def _rooms(web: Web) -> None:
    for user in ("ann", "bob", "eve"):
        web("POST", f"/v0/channels/lobby/join?as={user}")
    put(web, "/v0/channels/lobby/config?as=ann", {"persist": True, "max_persist_messages": 100})
    for user, words in (("ann", "the shop opens at nine"), ("bob", "on my way")):
        web("POST", f"/v0/channels/lobby/publish?as={user}", {"data": words})
    web("POST", "/v0/chat/team/messages", {"text": "good morning", "user": "ann"})
    web("POST", "/v0/chat/team/members", {"member": "bob", "user": "ann"})
    web("POST", "/v0/chat/team/messages", {"text": "morning! coffee?", "user": "bob"})
