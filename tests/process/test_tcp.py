"""TCP and TLS: who is let in, what they may do, and that whoever is refused leaves no trace but a line in the log."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import topicd
import topicd.aio
from tests.support.certs import Authority, Certificate
from tests.support.daemon import Daemon, drain_topic, wait_until
from tests.support.ports import free_ports
from topicd.cli.offline import token_file
from topicd.client.blocking.client import Client
from topicd.client.core import requests
from topicd.errors import ConnectionLost, Forbidden, InvalidRequest, TopicdError, Unauthorized
from topicd.ipc.protocol.wire import COPIED
from topicd.limits import STAGES
from topicd.placement import delivery_shard

SHARDS = 2
PAST = datetime(2020, 1, 1, tzinfo=UTC)
# One name per shard, all within the prefix.
NAMES = {delivery_shard(name, SHARDS): name for name in (f"orders.{i}" for i in range(20))}


def record(event: topicd.Record | topicd.Gap) -> topicd.Record:
    assert isinstance(event, topicd.Record)
    return event


class Site:
    """A daemon with listen_tcp, its authority and its tokens."""

    def __init__(self, root: Path, days: int = 2, tls: bool = True) -> None:
        self.authority = Authority(root)
        self.tokens = root / "tokens.toml"
        self.secrets = {
            "shop": token_file.create(self.tokens, "shop", ["read", "consume", "write"], ["orders."]),
            "reader": token_file.create(self.tokens, "reader", ["read"]),
            "writer": token_file.create(self.tokens, "writer", ["write"]),
            "job": token_file.create(self.tokens, "job", ["write", "stage"], ["orders."]),
            "boss": token_file.create(self.tokens, "boss", ["admin"]),
            "late": token_file.create(self.tokens, "late", ["admin"], expires=PAST),
        }
        self.port = free_ports(SHARDS)
        settings: dict[str, Any] = {"listen_tcp": f"127.0.0.1:{self.port}", "tokens_file": self.tokens}
        if tls:
            made = self.authority.issue("server", days)
            settings |= {"tls_cert": made.cert, "tls_key": made.key}
        self.scheme = "tls" if tls else "tcp"
        self.daemon = Daemon(root, wal_shards=1, delivery_shards=SHARDS, **settings)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def client(self, who: str, **options: Any) -> Client:
        if self.scheme == "tls":
            options = {"ca_file": self.authority.own.cert, **options}
        return topicd.connect(self.url, token=self.secrets[who], **options)

    def stored(self) -> int:
        """Records of all topics, asked from inside."""
        with self.daemon.client() as client:
            return sum(found.count for found in client.topics())

    def close(self) -> None:
        self.daemon.close()
        for secret in self.secrets.values():
            assert secret not in self.daemon.log


@pytest.fixture(scope="module", params=["tls", "tcp"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("s"), tls=request.param == "tls")
    with made.daemon:
        yield made
    made.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("t"))
    with made.daemon:
        yield made
    made.close()


# ---- who is let in works as a local client does ----


def test_publish_read_and_watch_on_every_shard(site: Site) -> None:
    with site.client("shop") as client:
        for name in NAMES.values():
            seq = client.publish(name, {"n": 1})
            client.publish_many(name, [b"x" * 500_000] * 3)
            assert [len(r.data) for r in drain_topic(client, name, seq)] == [500_000] * 3
            with client.watch(name, start=seq - 1) as events:
                assert [record(next(events)).seq for _ in range(4)] == [seq, seq + 1, seq + 2, seq + 3]
        assert {found.topic for found in client.topics()} >= set(NAMES.values())
        assert client.ping() < 30
        with pytest.raises(InvalidRequest, match="on the daemon's own machine"):
            client.status()


def test_a_producer_and_a_named_consumer(site: Site) -> None:
    name = f"orders.many.{site.scheme}"
    with site.client("shop") as client:
        with client.producer() as producer:
            for i in range(5_000):
                producer.send(name, f"{i}".encode())
        with client.consumer(name, "worker") as consumer:
            found = [record(next(consumer)).data for _ in range(5_000)]
        assert found == [f"{i}".encode() for i in range(5_000)]


def test_the_asyncio_face(site: Site) -> None:
    async def run() -> list[bytes]:
        ca_file = site.authority.own.cert if site.scheme == "tls" else None
        name = f"orders.aio.{site.scheme}"
        async with await topicd.aio.connect(site.url, token=site.secrets["shop"], ca_file=ca_file) as client:
            await asyncio.gather(*(client.publish(name, b"x" * 1000) for _ in range(100)))
            async with await client.watch(name, start="earliest") as events:
                return [record(await anext(events)).data for _ in range(100)]

    assert asyncio.run(run()) == [b"x" * 1000] * 100


def test_the_port_of_any_shard_will_do(tls: Site) -> None:
    url = f"tls://localhost:{tls.port + 1}"
    with topicd.connect(url, token=tls.secrets["shop"], ca_file=tls.authority.own.cert) as client:
        for name in NAMES.values():
            client.publish(name, b"x")


def test_topicctl_takes_token_and_authority_from_the_environment(tls: Site) -> None:
    env = {
        "TOPICD_SOCKET": tls.url,
        "TOPICD_TOKEN": tls.secrets["shop"],
        "TOPICD_CA_FILE": str(tls.authority.own.cert),
    }
    command = [sys.executable, "-m", "topicd.cli.main"]
    subprocess.run([*command, "publish", "orders.cli", "hello"], env=env, check=True, capture_output=True)
    found = subprocess.run([*command, "read", "orders.cli"], env=env, check=True, capture_output=True, text=True)
    assert "hello" in found.stdout


def test_a_watch_goes_on_after_its_shard_was_replaced(tls: Site) -> None:
    name = "orders.restart"
    shard = f"dlv-{delivery_shard(name, SHARDS):02d}"
    with tls.client("shop") as client, client.watch(name, start="earliest") as events:
        client.publish(name, b"1")
        assert record(next(events)).seq == 1
        tls.daemon.wait_replaced(shard, tls.daemon.kill(shard))
        client.publish(name, b"2")
        assert record(next(events)).seq == 2


# ---- who is not ----


def test_a_wrong_token_is_refused_and_logged_without_it(site: Site) -> None:
    site.secrets["guess"] = "tpd_guessed-secret"
    stored = site.stored()
    with pytest.raises(Unauthorized, match="the token is not known"):
        site.client("guess")
    wait_until(lambda: 'connection refused reason="the token is not known"' in site.daemon.log, "the log line")
    refused = next(line for line in site.daemon.log.splitlines() if 'reason="the token is not known"' in line)
    assert "127.0.0.1" in refused, "who it was"
    heard = [line for line in site.daemon.log.splitlines() if "listening on TCP" in line]
    assert heard and all("127.0.0.1" in line and "tls=" in line for line in heard)
    assert site.stored() == stored


def test_no_token_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPICD_TOKEN", raising=False)
    with pytest.raises(Unauthorized, match="a token is needed"):
        ca_file = site.authority.own.cert if site.scheme == "tls" else None
        topicd.connect(site.url, ca_file=ca_file)


def test_an_expired_token_is_refused_by_name(site: Site) -> None:
    with pytest.raises(Unauthorized, match="token 'late' has expired"):
        site.client("late")


def test_what_the_scopes_do_not_hold_is_refused_logged_and_not_stored(site: Site) -> None:
    with site.client("shop") as client:
        seq = client.publish("orders.scopes", b"x")
    stored = site.stored()
    with site.client("reader") as client:
        assert client.fetch("orders.scopes").records
        for refused in (
            lambda: client.publish("orders.scopes", b"x"),
            lambda: client.publish("orders.never", b"x"),
            lambda: client.configure("orders.scopes", cap_records=1),
            lambda: client.delete("orders.scopes", before_seq=seq + 1),
            lambda: client.delete_topic("orders.scopes"),
        ):
            with pytest.raises(Forbidden, match=r"token 'reader' has no (write|admin|delete) right"):
                refused()
    assert site.stored() == stored
    wait_until(lambda: "token 'reader' has no write right" in site.daemon.log, "the log line")


@pytest.mark.fault("AUTH-01")
def test_who_may_only_read_deletes_nothing_by_acknowledging_it(site: Site) -> None:
    name = f"orders.acked.{site.scheme}"
    with site.client("boss") as boss, site.client("reader") as reader:
        boss.configure(name, retain="acked")
        boss.publish_many(name, [b"x"] * 5)
        boss.open_consumer(name, "worker")
        boss.ack_consumer(name, "worker", 1)
        for refused in (
            lambda: reader.open_consumer(name, "thief"),
            lambda: reader.ack_consumer(name, "worker", 5),
            lambda: reader.reset_consumer(name, "worker", "latest"),
            lambda: reader.remove_consumer(name, "worker"),
        ):
            with pytest.raises(Forbidden, match="token 'reader' has no consume right"):
                refused()
        assert [found.name for found in reader.consumers(name)] == ["worker"]
        assert len(drain_topic(reader, name)) == 4


@pytest.mark.parametrize("topics", ["orders.scopes", "orders.*"])
def test_who_may_only_write_cannot_read_by_any_way(site: Site, topics: str) -> None:
    with site.client("writer") as client:
        client.publish("orders.scopes", b"x")
        with pytest.raises(Forbidden, match="token 'writer' has no read right"):
            client.fetch("orders.scopes")
        with pytest.raises(Forbidden, match="token 'writer' has no read right"):
            with client.watch(topics, start="earliest") as events:
                next(events)


def test_who_may_only_write_cannot_copy_what_he_may_not_read(site: Site) -> None:
    with site.client("writer") as client:
        client.publish("orders.copied", b"x")
        connection = client.caller.dial(client.caller.shard_map.shard_of("orders.copied"), 10.0)
        topic_id = connection.ask(requests.open_topic("orders.copied", create=True))
        with pytest.raises(Forbidden, match="token 'writer' has no read right"):
            connection.start_copy(topic_id, 0, 0, 1, COPIED.pack(topic_id, 0, 1))
            raise connection.finish_append()[1]  # type: ignore[misc]
        connection.close()
        with pytest.raises(Forbidden, match="token 'writer' has no stage right"):
            client.stages("a query of one who may only write").write_records(0, 0, "orders.copied", [b"y"])
    with site.client("job") as client:
        stages = client.stages("a query of one who may write and stage")
        stages.commit(0, [stages.write_records(0, 0, "orders.copied", [b"y"])])
    with site.client("boss") as client:
        assert [record.data for record in drain_topic(client, "orders.copied")] == [b"x", b"y"]


def test_a_job_reaches_its_own_stages_and_is_not_shown_those_of_others(site: Site) -> None:
    with site.client("boss") as boss:
        theirs = boss.stages(f"somebody else's {site.scheme}").write_records(0, 0, "orders.staged", [b"theirs"])
        with site.client("job") as job:
            mine = job.stages(f"mine {site.scheme}")
            part = mine.write_records(0, 0, "orders.staged", [b"mine"])
            assert not [one for one in job.topics(STAGES, internal=True) if one.topic in (part.topic, theirs.topic)]
            assert [one.topic for one in job.topics(part.topic[:-20])] == [part.topic]
            with pytest.raises(Forbidden, match="may not touch topic 'stock'"):
                mine.commit(0, [part, mine.write_records(0, 1, "stock", [b"x"])])
            mine.commit(0, [part])
        with site.client("reader") as reader, pytest.raises(Forbidden, match="no stage right"):
            reader.fetch(theirs.topic)
        assert b"mine" in [record.data for record in drain_topic(boss, "orders.staged")]
        assert theirs.topic in [one.topic for one in boss.topics(internal=True)]
        boss.stages(f"somebody else's {site.scheme}").drop(0)


def test_a_name_outside_the_prefix_is_refused_logged_and_not_shown(site: Site) -> None:
    with site.client("boss") as client:
        client.publish("secrets.a", b"x")
    stored = site.stored()
    with site.client("shop") as client:
        for refused in (
            lambda: client.publish("secrets.a", b"x"),
            lambda: client.publish("secrets.new", b"x"),
            lambda: client.fetch("secrets.a"),
            lambda: client.consumer("secrets.a", "c"),
        ):
            with pytest.raises(Forbidden, match=r"token 'shop' may not touch topic 'secrets\."):
                refused()
        assert all(found.topic.startswith("orders.") for found in client.topics())
    assert site.stored() == stored
    wait_until(lambda: "token 'shop' may not touch topic 'secrets.a'" in site.daemon.log, "the log line")


def test_one_connection_cannot_fill_the_log(tls: Site) -> None:
    with tls.client("reader") as client:
        for _ in range(50):
            with pytest.raises(Forbidden):
                client.publish("orders.flood", b"x")
    assert 0 < tls.daemon.log.count("no write right") <= 30


def test_a_revoked_token_is_refused_after_a_reload(tls: Site) -> None:
    secret = token_file.create(tls.tokens, "passing", ["read"])
    tls.daemon.kill("supervisor", 1)

    def known() -> bool:
        try:
            topicd.connect(tls.url, token=secret, ca_file=tls.authority.own.cert).close()
        except Unauthorized:
            return False
        return True

    wait_until(known, "the new token")
    with topicd.connect(tls.url, token=secret, ca_file=tls.authority.own.cert) as client, client.watch("soon") as watch:
        assert watch.poll(0.1) is None
        token_file.revoke(tls.tokens, "passing")
        tls.daemon.kill("supervisor", 1)
        with pytest.raises(Unauthorized):  # a connection that is open ends as well
            while True:
                watch.poll(1)
    wait_until(lambda: not known(), "its end")


# ---- certificates and mixed-up schemes ----


def test_an_authority_that_is_not_trusted_gets_no_token(tls: Site, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    with pytest.raises(Unauthorized, match=r"certificate of tls://127.0.0.1:.* is not trusted: "):
        tls.client("shop", ca_file=other.own.cert)
    with pytest.raises(Unauthorized, match="is not trusted"):
        topicd.connect(tls.url, token=tls.secrets["shop"])
    with pytest.raises(InvalidRequest, match=r"ca_file .*/none.pem cannot be used"):
        tls.client("shop", ca_file=tmp_path / "none.pem")


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, days=-1)
    with site.daemon:
        with pytest.raises(Unauthorized, match="is not trusted: certificate has expired"):
            site.client("shop")
        assert site.stored() == 0
    site.close()


def test_plain_tcp_to_a_tls_port_is_refused_with_a_hint(tls: Site) -> None:
    stored = tls.stored()
    with pytest.raises(TopicdError, match="a daemon with tls_cert is reached with tls://"):
        topicd.connect(f"tcp://127.0.0.1:{tls.port}", token=tls.secrets["shop"])
    assert tls.stored() == stored


def test_tls_to_a_plain_port_is_refused_with_a_hint(tmp_path: Path) -> None:
    site = Site(tmp_path, tls=False)
    with site.daemon:
        with pytest.raises(InvalidRequest, match="a daemon without tls_cert is reached with tcp://"):
            topicd.connect(f"tls://127.0.0.1:{site.port}", token=site.secrets["shop"])
    site.close()


def test_nobody_there_is_told_at_once() -> None:
    with pytest.raises(ConnectionLost, match=r"tls://127.0.0.1:1 \(the target given\): Connection refused"):
        topicd.connect("tls://127.0.0.1:1")


@pytest.mark.parametrize("target", ["tls://host", "tls://u:pw@h:1", "tcp://h:99999", "tls://h:1/x", "tls://h:1?x=1"])
def test_a_target_that_makes_no_sense_is_refused_without_repeating_it(target: str) -> None:
    with pytest.raises(InvalidRequest, match=r"must be t(ls|cp)://host:port") as caught:
        topicd.connect(target)
    assert "pw" not in str(caught.value)


# ---- starts that are refused ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen_tcp": "0.0.0.0:7410", "tokens_file": "tokens.toml"}, "tls_cert and tls_key are needed"),
        ({"listen_tcp": "example.org:7410", "tokens_file": "tokens.toml"}, "tls_cert and tls_key are needed"),
        ({"listen_tcp": "127.0.0.1:7410"}, "nobody is let in without a token"),
    ],
)
def test_a_start_without_keys_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    daemon = Daemon(tmp_path, **settings)
    try:
        daemon.start()
        wait_until(lambda: not daemon.running, "the refusal")
        assert message in " ".join(daemon.log.split())
    finally:
        daemon.close()


def test_a_token_file_or_certificate_that_cannot_be_used_refuses_the_start(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    token_file.create(tokens, "a", ["read"])
    bad = Certificate(tmp_path / "bad.pem", tmp_path / "bad.key")
    bad.cert.write_text("nonsense")
    bad.key.write_text("nonsense")
    port = free_ports(1)
    listen: dict[str, Any] = {"listen_tcp": f"127.0.0.1:{port}", "wal_shards": 1, "delivery_shards": 1}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tokens_file": tmp_path / "none.toml"}, "cannot be read"),
        ({"tokens_file": tokens, "tls_cert": bad.cert, "tls_key": bad.key}, "cannot be used"),
    ]
    for settings, message in wrong:
        daemon = Daemon(tmp_path / message, **listen, **settings)
        try:
            daemon.start()
            wait_until(lambda: not daemon.running, "the refusal")  # noqa: B023
            assert message in daemon.log
        finally:
            daemon.close()
