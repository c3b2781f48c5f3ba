"""The client's spool against a real daemon: away, back, killed, refusing; and `topicctl import` of a file channel."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import topicd
import topicd.aio
from tests.support.daemon import Daemon, drain_topic, wait_until
from topicd.client.blocking.client import Client
from topicd.client.blocking.numbered_writer import NumberedWriter
from topicd.client.core.batch import Batch
from topicd.client.spool.draining import Drain
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError
from topicd.filechannel import ChannelFull, FileChannel, InUse

BIN = Path(sys.executable).parent
WAIT_S = 60.0


def spooled(daemon: Daemon, directory: Path, **options: object) -> Client:
    return topicd.connect(daemon.run.socket, spool=directory, **options)  # type: ignore[arg-type]


def payloads(daemon: Daemon, topic: str) -> list[bytes]:
    with daemon.client() as client:
        return [record.data for record in drain_topic(client, topic)]


def test_publishing_goes_on_while_the_daemon_is_away(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d", wal_shards=1, delivery_shards=2)
    with spooled(daemon, tmp_path / "spool", node="n1") as client:
        client.publish("orders", {"id": 1}, tag="t", meta={"k": 1})
        assert client.publish_many("orders", [b"two", ("three", "x")]).count == 2
        client.publish("other", b"o1")
        client.publish("orders", b"four")
        assert client.spool.pending == 4
        assert not client.spool.wait(0.05)
        with pytest.raises(ConnectionLost):
            client.fetch("orders")
        with daemon:
            assert client.spool.wait(WAIT_S)
            assert (client.spool.pending, client.spool.error) == (0, None)
            found = drain_topic(client, "orders")
            assert [record.data for record in found] == [b'{"id":1}', b"two", b"three", b"four"]
            assert (found[0].tag, found[0].node, found[0].meta) == ("t", "n1", {"k": 1})
            assert payloads(daemon, "other") == [b"o1"]
            # With the daemon there it is the same: through the spool, and soon in the topic.
            client.publish("orders", b"five")
            assert client.spool.wait(WAIT_S)
            assert payloads(daemon, "orders")[-1] == b"five"
            # The shards die under it.
            daemon.kill_all()
            for number in range(50):
                client.publish("orders", b"%d" % number)
            daemon.restart()
            assert client.spool.wait(WAIT_S)
            assert payloads(daemon, "orders")[5:] == [b"%d" % number for number in range(50)]


def test_what_waits_is_sent_in_few_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    original = NumberedWriter.send_frames

    def counting(self: NumberedWriter, number: int, count: int, frames: bytearray) -> object:
        sent.append(count)
        return original(self, number, count, frames)

    monkeypatch.setattr(NumberedWriter, "send_frames", counting)
    daemon = Daemon(tmp_path / "d", wal_shards=1, delivery_shards=2)
    with spooled(daemon, tmp_path / "spool") as client:
        expected: dict[str, list[bytes]] = {"a": [], "b": []}
        for number in range(1500):
            topic = "ab"[number % 2]
            batch = [b"%d" % number] * (1 + number % 3)
            client.publish_many(topic, batch)
            expected[topic] += batch
        with daemon:
            assert client.spool.wait(WAIT_S)
            assert {topic: payloads(daemon, topic) for topic in expected} == expected
    # One for what was there when the thread looked first, then a thousand publishes at a time, for two topics each.
    assert sum(sent) == 3000
    assert len(sent) <= 8


def test_what_one_client_left_the_next_one_sends(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1)
    with spooled(daemon, tmp_path / "spool") as client:
        client.publish("orders", b"left")
        with pytest.raises(InUse):
            spooled(daemon, tmp_path / "spool")
    with pytest.raises(TopicdError):
        client.publish("orders", b"closed")
    with daemon, spooled(daemon, tmp_path / "spool") as client:
        client.publish("orders", b"next")
        assert client.spool.wait(WAIT_S)
        assert payloads(daemon, "orders") == [b"left", b"next"]


def test_a_full_spool_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1)
    with spooled(daemon, tmp_path / "spool", spool_bytes=64 * 1024) as client:
        taken = 0
        with pytest.raises(ChannelFull):
            while True:
                client.publish("orders", b"%06d" % taken)
                taken += 1
        assert client.spool.pending == taken > 100
        with daemon:
            assert client.spool.wait(WAIT_S)
            client.publish("orders", b"room again")
            assert client.spool.wait(WAIT_S)
            assert payloads(daemon, "orders") == [b"%06d" % number for number in range(taken)] + [b"room again"]


def test_bad_input_is_refused_before_it_is_spooled(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d")
    with spooled(daemon, tmp_path / "spool") as client:
        for call in (
            lambda: client.publish("no good name!", b""),
            lambda: client.publish("orders", bytes(2 << 20)),
            lambda: client.publish("orders", b"", key="k"),
            lambda: client.publish_many("orders", []),
            lambda: client.publish_many("orders", [b""], performance=True),
        ):
            with pytest.raises(TopicdError):
                call()
        assert client.spool.pending == 0
    with daemon, daemon.client() as plain, pytest.raises(InvalidRequest):
        plain.spool  # noqa: B018


def test_a_refused_publish_stops_the_spool_until_it_is_given_up(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon:
        with daemon.client() as plain:
            plain.configure("small", cap_records=2, discard="reject")
        with spooled(daemon, tmp_path / "spool") as client:
            for number in range(3):
                client.publish("small", b"%d" % number)
                assert number == 2 or client.spool.wait(WAIT_S)
            client.publish("orders", b"behind it")
            wait_until(lambda: client.spool.error is not None, "a refusal")
            assert client.spool.error is not None and client.spool.error.code == "topic_full"
            assert client.spool.pending == 2
            wait_until(lambda: _skipped(client), "the refused publish")
            assert client.spool.wait(WAIT_S)
            assert payloads(daemon, "orders") == [b"behind it"]
            assert payloads(daemon, "small") == [b"0", b"1"]


def test_what_other_topics_have_stored_of_a_refused_window_is_not_stored_again(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1)
    with daemon:
        with daemon.client() as plain:
            plain.configure("small", cap_records=2, discard="reject")
        daemon.stop()
        with spooled(daemon, tmp_path / "spool") as client:
            # One window: the batch of `orders` is stored before the one of `small` is refused.
            client.publish("orders", b"before")
            client.publish_many("small", [b"1", b"2", b"3"])
            client.publish("orders", b"behind")
            daemon.start().wait_ready()
            wait_until(lambda: client.spool.error is not None and not client.spool.error.retriable, "a refusal")
            wait_until(lambda: _skipped(client), "the refused publish")
            assert client.spool.wait(WAIT_S)
            client.publish("orders", b"later")
            assert client.spool.wait(WAIT_S)
            assert payloads(daemon, "orders") == [b"before", b"behind", b"later"]
            assert payloads(daemon, "small") == []


def _skipped(client: Client) -> bool:
    try:
        return client.spool.skip_refused() == "small"
    except InvalidRequest:
        return False


def test_a_topic_that_was_created_anew_gets_what_is_left(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon:
        with spooled(daemon, tmp_path / "spool") as client:
            for number in range(3):
                client.publish("orders", b"%d" % number)
                assert client.spool.wait(WAIT_S)
            with daemon.client() as plain:
                plain.delete_topic("orders")
            client.publish("orders", b"anew")
            assert client.spool.wait(WAIT_S)
            assert payloads(daemon, "orders") == [b"anew"]


class Died(BaseException):
    """In the place of a kill."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_around_the_sending_stores_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The batch of a note is sent again as it was, though more has come for the topic since."""
    original = NumberedWriter.send_frames

    def dies(self: NumberedWriter, number: int, count: int, frames: bytearray) -> object:
        if when == "after":
            original(self, number, count, frames)
        raise Died

    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon, daemon.client() as plain:
        with FileChannel(tmp_path / "c") as channel:
            channel.sender().send_many([b"1", b"2"])
            receiver = channel.receiver("daemon")
            drain = Drain(tmp_path / "c", channel.channel_id, receiver, name="draining", sync=False)
            receiver.recv_many(2)
            with monkeypatch.context() as patched:
                patched.setattr(NumberedWriter, "send_frames", dies)
                with pytest.raises(Died):
                    drain.store(plain, {"orders": (encoded(b"1", b"2"), 2)}, 18)
        with FileChannel(tmp_path / "c") as channel:
            channel.sender().send(b"3")
            receiver = channel.receiver("daemon")
            drain = Drain(tmp_path / "c", channel.channel_id, receiver, name="draining", sync=False)
            assert drain.noted == 18
            assert len(receiver.recv_many(3)) == 3
            drain.store(plain, {"orders": (encoded(b"1", b"2"), 2)}, 18)
            receiver.ack(2)
            assert drain.noted is None
            drain.store(plain, {"orders": (encoded(b"3"), 1)}, 27)
            receiver.ack(1)
        assert payloads(daemon, "orders") == [b"1", b"2", b"3"]


def encoded(*data: bytes) -> bytearray:
    from topicd.client.core.encode import encode

    return encode(data)


def topicctl(daemon: Daemon, *args: object) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "topicctl"), "-s", str(daemon.run.socket), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_import_stores_every_message_once(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon:
        with FileChannel(tmp_path / "c") as channel:
            channel.sender().send_many([b"%d" % number for number in range(12_000)])
            done = topicctl(daemon, "import", "--from-filechannel", tmp_path / "c", "orders", "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["count"] == 12_000
            channel.sender().send(b"more")
        for expected in (1, 0):
            done = topicctl(daemon, "import", "--from-filechannel", tmp_path / "c", "orders", "--json")
            assert json.loads(done.stdout)["count"] == expected
        assert payloads(daemon, "orders") == [b"%d" % number for number in range(12_000)] + [b"more"]
        missing = topicctl(daemon, "import", "--from-filechannel", tmp_path / "nowhere", "orders")
        assert (missing.returncode, "no file channel" in missing.stderr) == (4, True)
        with FileChannel(tmp_path / "big") as channel:
            channel.sender().send_many([b"fits", bytes(3 << 20)])
        done = topicctl(daemon, "import", "--from-filechannel", tmp_path / "big", "big")
        assert (done.returncode, "does not fit" in done.stderr) == (5, True)


def test_import_stops_at_damage_and_steps_over_it_on_request(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon:
        with FileChannel(tmp_path / "c") as channel:
            channel.sender().send_many([b"%02d" % number for number in range(30)])
        for number in (10, 11, 20):
            flip(tmp_path / "c" / "segment.0", 64 + 10 * number + 9)
        arguments = ("import", "--from-filechannel", tmp_path / "c", "orders")
        for _ in range(2):
            stopped = topicctl(daemon, *arguments)
            assert stopped.returncode == 1
            assert "offsets 100 to 1" in stopped.stderr and "--skip-damage" in stopped.stderr
            assert payloads(daemon, "orders") == [b"%02d" % number for number in range(10)]
        done = topicctl(daemon, *arguments, "--skip-damage", "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["count"]) == (0, 17)
        assert [span["end"] for span in answer["skipped"]][-1] == 210
        assert done.stderr.count("damage: offsets") == len(answer["skipped"])
        assert payloads(daemon, "orders") == [b"%02d" % number for number in range(30) if number not in (10, 11, 20)]
        again = topicctl(daemon, *arguments, "--json")
        assert (json.loads(again.stdout)["count"], json.loads(again.stdout)["skipped"]) == (0, [])


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0xFF
    path.write_bytes(raw)


def test_an_import_that_stored_nothing_leaves_nothing_behind(tmp_path: Path) -> None:
    """A receiver that nobody comes back for would hold everything in the channel for ever."""
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon:
        with daemon.client() as plain:
            plain.configure("small", cap_records=2, discard="reject")
        with FileChannel(tmp_path / "c") as channel:
            channel.sender().send_many([b"1", b"2", b"3"])
        before = sorted(path.name for path in (tmp_path / "c").iterdir())
        for topic, code in (("bad topic", 2), ("", 2), ("small", 5)):
            refused = topicctl(daemon, "import", "--from-filechannel", tmp_path / "c", topic)
            assert refused.returncode == code, refused.stderr
            assert sorted(path.name for path in (tmp_path / "c").iterdir()) == before
        done = topicctl(daemon, "import", "--from-filechannel", tmp_path / "c", "orders")
        assert done.returncode == 0
        assert payloads(daemon, "orders") == [b"1", b"2", b"3"]


# ---- asyncio ----


def test_asyncio_publishes_while_the_daemon_is_away_and_finds_it_by_itself(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d", wal_shards=1, delivery_shards=2)

    async def away_and_back() -> None:
        async with topicd.aio.connect(daemon.run.socket, spool=tmp_path / "spool", node="n1") as client:
            await client.publish("orders", {"id": 1}, tag="t", meta={"k": 1})
            assert (await client.publish_many("orders", [b"two", ("three", "x")])).count == 2
            places = await asyncio.gather(*(client.publish_soon("orders", b"%d" % n) for n in range(50)))
            assert places == sorted(set(places))
            assert client.spool.pending == 52
            assert not await client.spool.wait(0.05)
            with pytest.raises(ConnectionLost):
                await client.fetch("orders")
            with daemon:
                assert await client.spool.wait(WAIT_S)
                assert (client.spool.pending, client.spool.error) == (0, None)
                found = (await until_found(client, "orders")).records
                expected = [b'{"id":1}', b"two", b"three", *(b"%d" % n for n in range(50))]
                assert [record.data for record in found] == expected
                assert (found[0].tag, found[0].node, found[0].meta) == ("t", "n1", {"k": 1})
                await client.publish("orders", b"last")
                assert await client.spool.wait(WAIT_S)
            await client.publish("orders", b"left")
        with pytest.raises(InvalidRequest):
            await client.publish("orders", b"closed")
        await client.close()

    async def until_found(client: topicd.aio.AsyncClient, topic: str) -> Batch:
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await client.fetch(topic)
                except ConnectionLost:
                    await asyncio.sleep(0.01)

    asyncio.run(away_and_back())
    # What the asyncio client left, the blocking one sends: one directory, one form.
    with daemon, spooled(daemon, tmp_path / "spool") as client:
        assert client.spool.wait(WAIT_S)
        assert payloads(daemon, "orders")[-2:] == [b"last", b"left"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_asyncio_keeps_the_order_of_tasks_and_refuses_when_the_spool_is_full(
    tmp_path: Path, durability: Literal["os", "fsync"]
) -> None:
    daemon = Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1)

    async def fill() -> int:
        options = {"spool_durability": durability, "spool_bytes": 64 * 1024}
        async with topicd.aio.connect(daemon.run.socket, spool=tmp_path / "spool", **options) as client:  # type: ignore[arg-type]
            for wrong in (client.publish("no topic!", b""), client.publish("orders", b"", key="k")):
                with pytest.raises(InvalidRequest):
                    await wrong
            taken = 0
            with pytest.raises(ChannelFull):
                while True:
                    tasks = [client.publish("orders", b"%06d" % (taken + n) + b"." * 500) for n in range(10)]
                    done = await asyncio.gather(*tasks, return_exceptions=True)
                    good = [place for place in done if isinstance(place, int)]
                    assert good == done[: len(good)] == sorted(good)
                    taken += len(good)
                    if len(good) < len(done):
                        raise next(error for error in done if isinstance(error, BaseException))
            assert client.spool.pending == taken > 50
            with pytest.raises(InUse):
                await topicd.aio.connect(daemon.run.socket, spool=tmp_path / "spool")
            return taken

    taken = asyncio.run(fill())
    with daemon, spooled(daemon, tmp_path / "spool") as client:
        assert client.spool.wait(WAIT_S)
        assert [int(data[:6]) for data in payloads(daemon, "orders")] == list(range(taken))


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_options_of_a_spool_that_are_wrong_or_without_one_are_refused(tmp_path: Path, face: str) -> None:
    def connect(**options: Any) -> None:
        if face == "blocking":
            topicd.connect(tmp_path / "none.sock", **options).close()
            return

        async def run() -> None:
            async with topicd.aio.connect(tmp_path / "none.sock", **options):
                pass

        asyncio.run(run())

    spool = tmp_path / "spool"
    for wrong in (
        {"spool": ""},
        {"spool": 5},
        {"spool": spool, "spool_bytes": 1},
        {"spool": spool, "spool_bytes": "1"},
        {"spool": spool, "spool_durability": "buffered"},
        {"spool_bytes": 1 << 20},
        {"spool_durability": "fsync"},
    ):
        with pytest.raises(InvalidRequest) as refused:
            connect(**wrong)
        assert any(name in str(refused.value) for name in (*wrong, "directory"))
    assert not spool.exists()
    connect(spool=spool)
    assert spool.exists()


def test_whoever_closes_second_finds_the_spool_closed(tmp_path: Path) -> None:
    """Also after a close that was cut off."""
    client = topicd.connect(tmp_path / "none.sock", spool=tmp_path / "spool")
    client.publish("orders", b"1")
    client._client.close()  # type: ignore[attr-defined]  # what an interrupted close has done
    client.close()
    with topicd.connect(tmp_path / "none.sock", spool=tmp_path / "spool") as again:
        assert again.spool.pending == 1
        for wrong in ("x", -1, float("nan")):
            with pytest.raises(InvalidRequest):
                again.spool.wait(wrong)  # type: ignore[arg-type]
