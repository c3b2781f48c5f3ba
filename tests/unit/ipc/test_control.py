"""The channel between supervisor and child."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading

import pytest

from topicd.errors import FormatError
from topicd.ipc import control
from topicd.ipc.control import BootInfo, ControlChannel, process_name
from topicd.ipc.shardboot import DELIVERY, WAL, ShardBoot
from topicd.limits import MAX_CONTROL_MESSAGE
from topicd.paths import Instance


@pytest.fixture
def ends() -> tuple[ControlChannel, ControlChannel]:
    ours, theirs = ControlChannel.pair()
    return ours, ControlChannel(theirs)


def shard_boot() -> ShardBoot:
    return ShardBoot(
        kind=WAL,
        index=1,
        instance="0123456789abcdef",
        run=3,
        wal_shards=2,
        delivery_shards=4,
        bell_fds={"wal-00": 7, "wal-01": 12, "dlv-03": 9},
        wal_seed=2**64 - 1,
        old_instance=Instance("fedcba9876543210", 8, 16),
    )


def boot_info() -> BootInfo:
    settings = {"log_level": "info", "ring_bytes": 4096}
    return BootInfo(WAL, 1, "0123456789abcdef", 3, settings, shard_boot().extras())


def test_messages_arrive_in_order(ends: tuple[ControlChannel, ControlChannel]) -> None:
    for number in range(100):
        ends[0].send({"event": "n", "number": number})
    assert [m["number"] for m in ends[1].receive()] == list(range(100))
    assert ends[1].receive() == []


def test_both_directions_are_apart(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ends[0].send({"to": "child"})
    ends[1].send({"to": "supervisor"})
    assert ends[0].receive() == [{"to": "supervisor"}]
    assert ends[1].receive() == [{"to": "child"}]


def test_last_words_are_heard_before_the_end(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ends[1].send({"event": "failed", "message": "disk on fire"})
    ends[1].close()
    assert ends[0].receive() == [{"event": "failed", "message": "disk on fire"}]
    with pytest.raises(EOFError):
        ends[0].receive()
    with pytest.raises(EOFError):
        ends[0].receive_one(1.0)


def test_sending_to_a_closed_channel_is_an_end(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ends[1].close()
    with pytest.raises(EOFError):
        ends[0].send({"event": "stop"})


def test_receive_one_takes_one_and_keeps_the_rest(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ends[0].send({"n": 1})
    ends[0].send({"n": 2})
    assert ends[1].receive_one(1.0) == {"n": 1}
    assert ends[1].receive() == [{"n": 2}]


def test_receive_one_gives_up_after_its_timeout(ends: tuple[ControlChannel, ControlChannel]) -> None:
    assert ends[1].receive_one(0.01) is None


def test_receive_one_waits_for_a_message(ends: tuple[ControlChannel, ControlChannel]) -> None:
    threading.Timer(0.05, ends[0].send, [{"late": True}]).start()
    assert ends[1].receive_one(30.0) == {"late": True}


def test_message_larger_than_the_socket_buffer_arrives_whole(
    ends: tuple[ControlChannel, ControlChannel],
) -> None:
    body = {"blob": b"x" * (MAX_CONTROL_MESSAGE - 100)}
    ends[0].send(body)
    assert ends[0].wants_write
    received: list[dict[str, object]] = []
    while not received:
        received = ends[1].receive()
        ends[0].flush()
    assert received == [body]
    assert not ends[0].wants_write


def test_pieces_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    channel = ControlChannel(ours)
    raw = struct.pack("<I", 4) + b"\x81\xa1a\x01"
    for byte in raw * 2:
        theirs.send(bytes([byte]))
        found = channel.receive()
        if found:
            assert found == [{"a": 1}]
    assert channel.receive() == []


def test_too_large_a_message_is_refused(ends: tuple[ControlChannel, ControlChannel]) -> None:
    with pytest.raises(FormatError, match="at most"):
        ends[0].send({"blob": b"x" * MAX_CONTROL_MESSAGE})


def test_a_peer_that_never_reads_cannot_fill_memory(ends: tuple[ControlChannel, ControlChannel]) -> None:
    with pytest.raises(BufferError):
        for _ in range(10):
            ends[0].send({"blob": b"x" * (MAX_CONTROL_MESSAGE // 2)})


@pytest.mark.parametrize("raw", [struct.pack("<I", 2**31), b"\x01\0\0\0\xc1", b"\x01\0\0\0\x07"])
def test_nonsense_is_a_format_error(raw: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.send(raw)
    with pytest.raises(FormatError):
        ControlChannel(ours).receive()


def test_boot_info_survives_the_wire(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ends[0].send(boot_info().to_wire())
    body = ends[1].receive_one(1.0)
    assert body is not None
    assert BootInfo.from_wire(body) == boot_info()


def test_boot_message_with_a_missing_field_is_a_format_error() -> None:
    body = boot_info().to_wire()
    del body["instance"]
    with pytest.raises(FormatError, match="instance"):
        BootInfo.from_wire(body)


def test_names_follow_kind_and_index() -> None:
    assert process_name(WAL, 0) == "wal-00"
    assert process_name(DELIVERY, 12) == "dlv-12"
    assert boot_info().name == shard_boot().name == "wal-01"


def test_a_shard_finds_in_its_boot_message_what_the_supervisor_put_there() -> None:
    assert ShardBoot.of(boot_info()) == shard_boot()
    nothing_left = shard_boot()._replace(old_instance=None)
    assert ShardBoot.of(boot_info()._replace(extras=nothing_left.extras())) == nothing_left
    assert [shard_boot().bell_word(name) for name in ("wal-00", "wal-01", "dlv-03")] == [0, 1, 2]


def test_a_boot_message_that_is_none_of_a_shard_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="wal_seed"):
        ShardBoot.of(boot_info()._replace(extras={"wal_shards": 1, "delivery_shards": 1, "bell_fds": {}}))
    with pytest.raises(FormatError, match="port"):
        ShardBoot.of(boot_info()._replace(extras={**shard_boot().extras(), "port": 80}))


CHILD = """
from topicd.ipc.control import attach_child
channel, boot = attach_child()
channel.send({"event": "serving", "name": boot.name, "seed": boot.extras["wal_seed"]})
"""


def test_child_finds_its_channel_and_its_boot_message() -> None:
    ours, theirs = ControlChannel.pair()
    ours.send(boot_info().to_wire())
    env = {**os.environ, control.CONTROL_FD_ENV: str(theirs.fileno())}
    child = subprocess.Popen([sys.executable, "-c", CHILD], env=env, pass_fds=[theirs.fileno()])
    theirs.close()
    assert ours.receive_one(30.0) == {"event": "serving", "name": "wal-01", "seed": 2**64 - 1}
    assert child.wait(30) == 0


def test_a_child_started_by_hand_is_told_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(control.CONTROL_FD_ENV, raising=False)
    with pytest.raises(FormatError, match="supervisor only"):
        control.attach_child()
