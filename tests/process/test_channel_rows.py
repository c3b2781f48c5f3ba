"""Rows of channels that need a daemon of their own settings, or what lies on the disk between two of its lives. The
others: test_channels.py and test_channel_logs.py; FakeDisk: tests/faults/channel_sweep.py.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.process.cli_kit import run_ctl, shell
from tests.support import webget
from tests.support.daemon import LIVELY, Daemon, wait_until
from tests.support.promtext import Exposition
from topicd import errors
from topicd.channel import ChannelState, channel_hash, channel_topic
from topicd.client.blocking.channels import Channels
from topicd.client.core import channels as requests
from topicd.disk import envelope
from topicd.disk.fs import RealFs
from topicd.placement import delivery_shard
from topicd.shards.storage import channel_file

SHARDS = 3


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=SHARDS) as running:
        yield running


@pytest.fixture
def channels(daemon: Daemon) -> Channels:
    return daemon.client().channels


def persistent(channels: Channels, name: str, *members: str, **config: int) -> None:
    for user in members or ("ann",):
        channels.join(name, user=user)
    channels.set_config(name, persist=True, **config)


def directory(daemon: Daemon, name: str) -> Path:
    return daemon.data.channels / channel_hash(name)


def impatient(daemon: Daemon) -> Channels:
    """Of a client that does not wait long for a disk that fails."""
    return daemon.client(timeout=0.2).channels


def state_of(daemon: Daemon, name: str) -> ChannelState:
    return channel_file.load(RealFs(), directory(daemon, name) / "metadata.bin")


def scrape(daemon: Daemon) -> Exposition:
    return Exposition(webget.get(daemon.run.metrics_socket, "/metrics").body)


def test_c1_the_directory_is_what_sha256sum_says(daemon: Daemon) -> None:
    shell(daemon, "topicctl channel join room/1 --as ann; topicctl channel config room/1 persist=true")
    wanted = shell(daemon, "printf %s room/1 | sha256sum").split()[0]
    assert os.listdir(daemon.data.channels) == [wanted]
    assert len(wanted) == 64
    # As it is written, and not as it looks: the same letters in another form are another channel.
    for name in ("caf\u00e9", "cafe\u0301"):
        persistent(daemon.client().channels, name)
    assert len(os.listdir(daemon.data.channels)) == 3


def test_c3_every_field_comes_back(daemon: Daemon, channels: Channels) -> None:
    persistent(channels, "full", "ann", "bob", max_clients=7, max_payload_size=8, max_persist_messages=9)
    channels.set_config("full", message_flush_interval=10)
    for access, users in (("join", ["ann"]), ("publish", ["bob", "ann"]), ("read", ["eve"])):
        channels.set_acl("full", access, users)  # type: ignore[arg-type]
    persistent(channels, "nobody")
    channels.leave("nobody", user="ann")
    before = [(channels.get(name), channels.members(name)) for name in ("full", "nobody")]
    assert (before[1][0].owner, before[1][1].users) == (None, [])
    daemon.kill_all()
    daemon.start().wait_ready()
    channels = daemon.client().channels
    assert [(channels.get(name), channels.members(name)) for name in ("full", "nobody")] == before
    assert before[0][0].config.to_fields() == {
        "max_clients": 7,
        "max_payload_size": 8,
        "max_persist_messages": 9,
        "persist": True,
        "message_flush_interval": 10,
    }
    assert before[0][0].acl.to_fields() == {"join": ["ann"], "publish": ["ann", "bob"], "read": ["eve"]}


def test_c4_a_file_with_one_more_field_is_refused_and_nothing_of_it_believed(
    daemon: Daemon, channels: Channels
) -> None:
    for name in ("more", "less", "later"):
        persistent(channels, name)
    daemon.stop()
    for name, change in (
        ("more", lambda body: [*body, 5]),
        ("less", lambda body: body[:-1]),
        ("later", lambda body: body),
    ):
        path = directory(daemon, name) / "metadata.bin"
        body = envelope.unpack(path, channel_file.MAGIC, channel_file.VERSION, path.read_bytes())
        version = channel_file.VERSION + (name == "later")
        path.write_bytes(envelope.pack(path, channel_file.MAGIC, version, change(body)))
    daemon.restart()
    channels = daemon.client().channels
    assert list(channels.list()) == []
    for name in ("more", "less", "later"):
        with pytest.raises(errors.StorageCorrupt, match=r"metadata\.bin"):
            channels.members(name)
        assert str(directory(daemon, name) / "metadata.bin") in daemon.log


def test_c9_saves_are_counted_one_for_each_of_four_and_none_for_anything_else(
    daemon: Daemon, channels: Channels
) -> None:
    published = 0

    def costs(change: Callable[[], object]) -> float:
        """How many saves; a message behind the change shows that the metrics know of it."""
        nonlocal published
        before = scrape(daemon).value("topicd_store_saves_total", result="ok")
        change()
        channels.publish("lobby", b"x", user="ann")
        published += 1
        found = wait_until(
            lambda: (seen := scrape(daemon)).value("topicd_channel_published_total") == published and seen,
            "the metrics to come",
        )
        return found.value("topicd_store_saves_total", result="ok") - before

    def watched() -> None:
        channels.watch("lobby", user="ann").close()

    assert costs(lambda: channels.join("lobby", user="ann")) == 0  # it is not persistent
    assert costs(lambda: channels.set_config("lobby", persist=True)) == 1
    assert costs(lambda: channels.join("lobby", user="bob")) == 1
    assert costs(lambda: channels.join("lobby", user="bob")) == 0  # he is in it
    assert costs(lambda: channels.set_acl("lobby", "read", ["bob"])) == 1
    assert costs(lambda: channels.set_config("lobby", max_clients=50)) == 1
    assert costs(lambda: channels.leave("lobby", user="bob")) == 1
    assert costs(lambda: [channels.join("lobby", user=f"u{n}") for n in range(5)]) == 5  # none is put together
    assert costs(watched) == 0
    assert costs(lambda: (channels.history("lobby", user="ann"), channels.members("lobby"))) == 0
    assert costs(lambda: None) == 0


def test_c11_what_is_foreign_keeps_the_directory_and_a_delete_may_be_repeated(
    daemon: Daemon, channels: Channels
) -> None:
    for name in ("clean", "shared"):
        persistent(channels, name)
    (directory(daemon, "shared") / "00000000000000000001.log").write_bytes(b"whose?")
    for name in ("clean", "shared"):
        shell(daemon, f"topicctl channel delete {name} --yes")
        assert "no channel" in run_ctl(daemon, "channel", "delete", name, "--yes", code=4).stderr
    assert not directory(daemon, "clean").exists()
    assert os.listdir(directory(daemon, "shared")) == ["00000000000000000001.log"]
    persistent(channels, "shared", "bob")  # it may be made again beside it
    assert channels.members("shared").users == ["bob"]


def test_c12_c14_what_a_crash_in_a_delete_leaves_is_swept(daemon: Daemon, channels: Channels) -> None:
    """The metadata goes first here (docs/adr/0016): behind it a crash leaves the directory, the cursor and the log."""
    for name in ("empty", "queue", "stays"):
        persistent(channels, name)
        channels.publish(name, b"x", user="ann")
    channels.set_type("queue", "fifo")
    topics = {name: state_of(daemon, name).topic for name in ("empty", "queue", "stays")}
    daemon.kill_all()
    for name in ("empty", "queue"):
        (directory(daemon, name) / "metadata.bin").unlink()
    daemon.start().wait_ready()
    assert os.listdir(daemon.data.channels) == [channel_hash("stays")]
    assert os.listdir(daemon.data.trash) == [f"channel-{channel_hash('queue')}"]
    client = daemon.client()
    wait_until(
        lambda: {found.topic for found in client.topics("topicd.channel.")} == {topics["stays"]}, "their logs to go"
    )
    assert daemon.log.count("stray directory in channels/") == 2
    wait_until(lambda: scrape(daemon).value("topicd_channel_strays_total") == 2, "both to be counted")
    assert client.channels.join("empty", user="eve").created


def test_c15_a_hundred_channels_in_three_shards_each_in_exactly_one(daemon: Daemon, channels: Channels) -> None:
    names = [f"room/{n}" for n in range(100)]
    for name in names:
        persistent(channels, name)
    daemon.restart()
    pids = {shard: daemon.pids()[f"dlv-{shard:02d}"] for shard in range(SHARDS)}
    assert len(set(pids.values())) == SHARDS
    caller = daemon.client(timeout=0.5).channels._caller
    served = {
        shard: {row.channel for row in caller.ask_shard(shard, requests.rows_page("", "", None)).rows} for shard in pids
    }
    assert sorted(name for those in served.values() for name in those) == sorted(names)
    assert all(those for those in served.values())
    for shard, those in served.items():
        assert those == {name for name in names if delivery_shard(channel_topic(name), SHARDS) == shard}
        name = min(those)
        for other in set(pids) - {shard}:
            with pytest.raises(errors.TopicdError) as refused:
                caller.ask_shard(other, requests.info(name, None))
            assert refused.value.code == "wrong_shard"
    # With another number of shards each is in one again.
    daemon.restart(delivery_shards=2)
    assert [row.channel for row in daemon.client().channels.list()] == sorted(names)
    loads = wait_until(
        lambda: (seen := scrape(daemon)).value("topicd_channels_active") == len(names) and seen, "the metrics"
    )
    assert loads.value("topicd_store_loads_total") == len(names)


def test_c19_members_come_back_and_nobody_is_connected(daemon: Daemon, channels: Channels) -> None:
    persistent(channels, "lobby", "ann", "bob")
    watch = channels.watch("lobby", user="bob")
    assert channels.members("lobby").connected == ["bob"]
    assert channels.publish("lobby", b"x", user="ann") == 1
    watch.close()
    daemon.kill_all()
    daemon.start().wait_ready()
    channels = daemon.client().channels
    found = channels.members("lobby")
    assert (found.users, found.connected) == (["ann", "bob"], [])
    with channels.watch("lobby", user="bob"):
        assert channels.members("lobby").connected == ["bob"]
    assert channels.publish("lobby", b"y", user="ann") == 2


def test_c21_a_forced_failure_is_scraped(daemon: Daemon, channels: Channels) -> None:
    persistent(channels, "lobby")

    def seen(result: str) -> float:
        return scrape(daemon).value("topicd_store_saves_total", result=result)

    wait_until(lambda: (seen("ok"), seen("error")) == (1, 0), "the first save to be counted")
    in_the_way = directory(daemon, "lobby") / "metadata.bin.tmp"
    in_the_way.mkdir()
    with pytest.raises(errors.StorageFailed):
        impatient(daemon).join("lobby", user="bob")
    found = wait_until(
        lambda: (now := scrape(daemon)).value("topicd_store_saves_total", result="error") >= 1 and now,
        "the failure to be counted",
    )
    buckets = [key for key in found.samples if key[0] == "topicd_store_save_duration_seconds_bucket"]
    bounds = sorted({float(dict(labels)["le"]) for _, labels in buckets if dict(labels)["le"] != "+Inf"})
    assert len(bounds) == 16
    assert all(high == pytest.approx(2 * low) for low, high in pairwise(bounds))
    assert bounds[0] == pytest.approx(100e-6)
    assert found.value("topicd_store_saves_total", result="ok") == 1
    tried = sum(found.value("topicd_store_saves_total", result=result) for result in ("ok", "error"))
    assert found.value("topicd_store_save_duration_seconds_count") == tried


def test_c22_shards_stay_on_a_core_each_where_that_is_wanted(daemon: Daemon) -> None:
    def cores(name: str) -> str:
        asked = subprocess.run(["taskset", "-cp", str(daemon.pids()[name])], capture_output=True, text=True, check=True)
        return asked.stdout.rpartition(": ")[2].strip()

    allowed = sorted(os.sched_getaffinity(0))
    assert len({cores(f"dlv-{shard:02d}") for shard in range(SHARDS)}) == 1  # as the system has it
    daemon._env["TOPICD_PIN_SHARDS"] = "true"
    daemon.restart()
    found = [cores(f"dlv-{shard:02d}") for shard in range(SHARDS)]
    assert found == [str(allowed[shard % len(allowed)]) for shard in range(SHARDS)]
    assert cores("wal-00") == str(allowed[SHARDS % len(allowed)])
    persistent(daemon.client().channels, "lobby")
    assert daemon.client().channels.publish("lobby", b"x", user="ann") == 1


def test_c23_a_save_that_failed_gives_the_slot_back(daemon: Daemon, channels: Channels) -> None:
    for n in range(4):
        persistent(channels, f"room/{n}", "bob")
    daemon.restart(max_channels_per_user=2)
    channels = daemon.client().channels
    in_the_way = directory(daemon, "room/0") / "metadata.bin.tmp"
    in_the_way.mkdir()
    for _ in range(5):
        with pytest.raises(errors.StorageFailed):
            impatient(daemon).join("room/0", user="ann")
    for name in ("room/1", "room/2"):
        assert channels.join(name, user="ann").joined
    with pytest.raises(errors.ChannelLimit):
        channels.join("room/3", user="ann")
    assert [row.channel for row in channels.list(member="ann")] == ["room/1", "room/2"]
    in_the_way.rmdir()
    channels.leave("room/1", user="ann")
    assert channels.join("room/0", user="ann").joined


def test_c25_the_index_has_an_entry_for_each_message(tmp_path: Path) -> None:
    """Not each 4096 bytes one, but each message one: entries of 20 bytes that tile the data (docs/formats.md)."""
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1, **LIVELY) as daemon:
        channels = daemon.client().channels
        persistent(channels, "lobby", message_flush_interval=50)
        for n in range(600):
            channels.publish("lobby", b"%d" % n * 10, user="ann")
        state = state_of(daemon, "lobby")
        folder = daemon.data.topic(daemon.client().state(state.topic).topic_id)
        wait_until(lambda: list(folder.glob("*.tags")), "a sealed segment")
        (sealed,) = (path.with_suffix("") for path in folder.glob("*.tags"))
        index, size = sealed.with_suffix(".idx").read_bytes(), sealed.with_suffix(".data").stat().st_size
        entries = list(struct.iter_unpack("<IIQB3x", index))
        assert len(entries) == 500
        at = 0
        for offset, length, _, _ in entries:
            assert offset == at
            at += length
        assert at == size
        daemon.stop()
        dumped = shell(daemon, f"topicctl segment dump {state.topic} --data-dir {daemon.data.root} --json --limit 3")
        assert [json.loads(line)["seq"] for line in dumped.splitlines()] == [1, 2, 3]


def test_c27_history_and_seq(daemon: Daemon, channels: Channels) -> None:
    persistent(channels, "lobby", "ann", "bob")
    for n in range(1, 131):
        channels.publish("lobby", b"%d" % n, user="ann")

    def history(arguments: str) -> list[int]:
        found = json.loads(shell(daemon, f"topicctl channel history lobby --as bob --json {arguments}"))
        assert all(row["data"] == str(row["seq"]) for row in found)
        return [row["seq"] for row in found]

    assert history("--from 50 --limit 10") == list(range(50, 60))
    assert history("--from 126 --limit 10") == list(range(126, 131))
    assert history("--from 131") == []
    assert history("--limit 500") == list(range(1, 101))
    assert shell(daemon, "topicctl channel seq lobby --as bob") == "1 130\n"
    channels.set_config("lobby", max_persist_messages=20)
    assert history("--from 1 --limit 3") == [111, 112, 113]
    assert channels.seq("lobby", user="ann") == (111, 130)
    # Members on the list of those who may read, nobody else.
    channels.set_acl("lobby", "read", ["eve"])
    for ask in (channels.history, channels.seq):
        for user, refusal in (("bob", errors.Forbidden), ("eve", errors.NotMember)):
            with pytest.raises(refusal):
                ask("lobby", user=user)
        ask("lobby", user="ann")
    for line in ("history lobby --from 0", "history lobby --limit 0"):
        run_ctl(daemon, "channel", *line.split(), code=2)
    channels.join("live", user="ann")
    channels.publish("live", b"x", user="ann")
    for verb in ("history", "seq"):
        assert "not persistent" in run_ctl(daemon, "channel", verb, "live", code=5).stderr
    persistent(channels, "new")
    assert shell(daemon, "topicctl channel seq new") == "0 0\n"


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_c28_a_cursor_that_cannot_be_read_needs_a_clear(daemon: Daemon, channels: Channels, damage: str) -> None:
    persistent(channels, "jobs", "ann", "bob")
    channels.set_type("jobs", "fifo")
    for n in range(3):
        channels.push("jobs", b"%d" % n)
    assert shell(daemon, "topicctl channel pop jobs --as bob") == "0\n"
    cursor = directory(daemon, "jobs") / "cursor.bin"
    raw = cursor.read_bytes()
    assert (len(raw), raw[:8], raw[12:]) == (16, b"\x02" + bytes(7), bytes(4))
    daemon.stop()
    if damage == "missing":
        cursor.unlink()
    else:
        cursor.write_bytes(raw[:-5] if damage == "cut" else bytes([raw[0] ^ 1]) + raw[1:])
    found = json.loads(run_ctl(daemon, "fsck", "--data-dir", str(daemon.data.root), "--json", code=1).stdout)
    assert [row["path"] for row in found["findings"] if row["severity"] == "damage"] == [str(cursor)]
    daemon.restart()
    for line in (["push", "jobs", "x"], ["pop", "jobs"]):
        refused = json.loads(run_ctl(daemon, "channel", *line, "--json", code=5).stdout or "{}")
        assert refused.get("error", {}).get("code", "needs_recovery") == "needs_recovery"
    channels = daemon.client().channels
    with pytest.raises(errors.NotOwner):
        channels.clear("jobs", user="bob")
    run_ctl(daemon, "channel", "clear", "jobs", "--as", "ann", "--yes")
    run_ctl(daemon, "channel", "push", "jobs", "new")
    assert shell(daemon, "topicctl channel pop jobs") == "new\n"


def test_the_audit_tells_what_differs(daemon: Daemon, channels: Channels) -> None:
    for name in ("same", "other", "owned", "lost", "gone", "bare"):
        persistent(channels, name, "ann", "bob")
    for name, change in (("other", {"members": ("ann", "zoe")}), ("owned", {"owner": "bob"})):
        path = directory(daemon, name) / "metadata.bin"
        path.write_bytes(channel_file.encode(path, replace(state_of(daemon, name), **change)))  # type: ignore[arg-type]
    (directory(daemon, "lost") / "metadata.bin").unlink()
    directory(daemon, "lost").rmdir()
    (directory(daemon, "bare") / "metadata.bin").unlink()
    channels.delete("gone")
    stray = daemon.data.channels / channel_hash("stray")
    stray.mkdir()
    audit = ("pipeline", "run", "membership-audit", "--data-dir", str(daemon.data.root), "--json")
    found = json.loads(run_ctl(daemon, *audit, code=1).stdout)
    assert {row["channel"]: row["verdict"] for row in found["rows"]} == {
        "same": "same",
        "other": "differs",
        "owned": "differs",
        "lost": "not stored",
        "bare": "not stored",
        str(stray): "corrupt",
    }
    notes = "\n".join(found["notes"])
    assert "other: only in the file: zoe; only in the daemon: bob" in notes
    assert "owned: owner bob in the file, ann in the daemon" in notes
