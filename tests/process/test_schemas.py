"""Topics with a schema, on a real daemon: refused with the path that fails, in every face, and after a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import topicd
import topicd.aio
from tests.process.cli_kit import run_ctl
from tests.support.daemon import Daemon
from tests.support.web import Web
from topicd.cli.exits import Exit
from topicd.client.blocking.client import Client
from topicd.errors import InvalidRequest, SchemaViolation

SETTINGS = {"http_listen": "127.0.0.1:0"}
ENVIRON = {"TOPICD_HTTP": "true"}
ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


def test_a_write_is_refused_whole_with_the_path_that_fails(client: Client, topic: str) -> None:
    client.configure(topic, schema=ORDER)
    assert client.publish(topic, {"id": 1}) == 1
    with pytest.raises(SchemaViolation) as caught:
        client.publish_many(topic, [{"id": 2}, {"id": "three"}])
    assert (caught.value.detail["index"], caught.value.detail["path"]) == (1, "/id")
    assert "/id" in str(caught.value) and "integer" in str(caught.value)
    assert [record.json() for record in client.read(topic)] == [{"id": 1}]
    client.configure(topic, schema=None)
    assert client.publish(topic, b"anything") == 2


def test_a_bad_schema_makes_no_topic(client: Client, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="schema"):
        client.configure(topic, schema={"type": "nonsense"})
    assert topic not in [info.topic for info in client.topics(topic)]


def test_a_producer_stores_the_good_ones_and_hands_the_bad_ones_back(client: Client, topic: str) -> None:
    client.configure(topic, schema=ORDER)
    producer = client.producer(linger=5.0)
    sent = [producer.send(topic, {"id": n if n % 10 else "bad"}) for n in range(1, 41)]
    outcomes = [delivery.exception(30) for delivery in sent]
    producer.close()
    assert [type(error) for error in outcomes] == [SchemaViolation if n % 10 == 0 else type(None) for n in range(1, 41)]
    assert [record.json()["id"] for record in client.read(topic)] == [n for n in range(1, 41) if n % 10]
    failed = [delivery.record for delivery, error in zip(sent, outcomes, strict=True) if error is not None]
    assert [record.json() for record in failed if record is not None] == [{"id": "bad"}] * 4


def test_asyncio_hears_the_same(module_daemon: Daemon, topic: str) -> None:
    async def run() -> None:
        async with topicd.aio.connect(module_daemon.run.root) as client:
            await client.configure(topic, schema=ORDER)
            with pytest.raises(SchemaViolation, match="/id"):
                await client.publish(topic, {"id": None})

    asyncio.run(run())


def test_the_command_line_takes_a_file(module_daemon: Daemon, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps(ORDER, indent=2))
    run_ctl(module_daemon, "topic", "create", topic, f"schema=@{file}")
    refused = run_ctl(module_daemon, "publish", topic, '{"id": "x"}', code=Exit.REFUSED)
    assert "/id" in refused.stderr and "integer" in refused.stderr
    missing = run_ctl(module_daemon, "topic", "config", topic, "schema=@/nowhere", code=Exit.USAGE)
    assert "/nowhere" in missing.stderr
    run_ctl(module_daemon, "topic", "config", topic, "schema=none")
    run_ctl(module_daemon, "publish", topic, "anything")


def test_http_takes_and_tells_it(module_daemon: Daemon, topic: str) -> None:
    ask = Web(module_daemon)
    made = ask("PUT", f"/v0/topics/{topic}", {"schema": ORDER})
    assert made.status == 201 and made.body["config"]["schema"] == ORDER
    refused = ask("POST", f"/v0/topics/{topic}", {"records": [{"data": {"id": "x"}}]})
    assert (refused.status, refused.code, refused.error["detail"]["path"]) == (422, "schema_violation", "/id")
    ask.close()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_it_holds_after_a_restart(tmp_path: Path, how: str) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as daemon:
        daemon.client().configure("orders", schema=ORDER)
        daemon.kill_all() if how == "killed" else daemon.stop()
        daemon.start().wait_ready()
        with pytest.raises(SchemaViolation):
            daemon.client().publish("orders", b"no")
