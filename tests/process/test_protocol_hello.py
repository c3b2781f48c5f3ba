"""The first words on a connection, the cutting of messages, and who may connect."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.process.conftest import SETTINGS as SHARED
from tests.process.conftest import SHARDS, Served
from tests.process.procstat import pss_bytes
from tests.process.wire import Reply, Wire, packed
from tests.support.daemon import Daemon, wait_until
from topicd import limits
from topicd.errors import Forbidden, InvalidRequest, Throttled, TopicdError, UnsupportedVersion
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, HEADER, PROTOCOL_VERSION

ROLES = ["supervisor", "delivery"]


def greet(served: Served, role: str, **options: Any) -> Wire:
    return served.supervisor(**options) if role == "supervisor" else served.shard(0, **options)


def refusal(reply: Reply) -> TopicdError:
    with pytest.raises(TopicdError) as caught:
        reply.checked(reply.op)
    return caught.value


# ---- hello ----


def test_hello_gives_the_shard_map(served: Served) -> None:
    first = served.supervisor().hello
    assert first["role"] == "supervisor"
    assert (first["version"], first["wal_shards"], first["delivery_shards"]) == (PROTOCOL_VERSION, SHARDS, SHARDS)
    assert len(first["shards"]) == SHARDS
    for index, path in enumerate(first["shards"]):
        second = served.connect(Path(path)).hello
        assert (second["role"], second["shard"], second["instance"]) == ("delivery", index, first["instance"])
        assert second["shards"] == first["shards"]
        assert second["limits"]["max_batch_records"] == limits.MAX_BATCH_RECORDS


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("version", [0, 1, PROTOCOL_VERSION + 1, -1, "2", 2.0, True, None, [2], {}, 2**63])
def test_another_version_is_refused_and_a_better_hello_is_welcome(served: Served, role: str, version: object) -> None:
    wire = greet(served, role, greet=False)
    with pytest.raises(UnsupportedVersion):
        wire.ask(Op.HELLO, {"version": version})
    with pytest.raises(InvalidRequest, match="HELLO"):
        wire.ask(Op.PING)
    assert wire.ask(Op.HELLO, {"version": PROTOCOL_VERSION})["role"] == role


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("op", [op for op in Op if op not in (Op.HELLO, Op.CREDIT) and op < ANSWER])
def test_nothing_comes_before_hello(served: Served, role: str, op: int) -> None:
    wire = greet(served, role, greet=False)
    error = refusal(wire.wait(wire.send(op, {})))
    assert error.code == "invalid_request"
    assert "HELLO" in error.message
    assert wire.ask(Op.HELLO, {"version": PROTOCOL_VERSION})["role"] == role


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "body", [b"\xc1", b"\x92\x01\x02", msgpack.packb([1]), msgpack.packb("x"), b"\x81\xa1", b"\x81\x01\x02"]
)
def test_a_body_that_is_no_map_is_an_error_and_no_more(served: Served, role: str, body: bytes) -> None:
    wire = greet(served, role)
    assert refusal(wire.wait(wire.send(Op.HELLO, body))).code == "invalid_request"
    assert wire.ask(Op.PING) == {}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("op", [0x00, 0x0F, 0x1F, 0x7F, 0x80, 0x81, 0xB8, 0xB9, 0xFE, 0xFF])
def test_an_unknown_op_is_refused_by_its_id(served: Served, role: str, op: int) -> None:
    wire = greet(served, role)
    error = refusal(wire.wait(wire.send(op, {})))
    assert error.code == "invalid_request"
    assert f"0x{op:02x}" in error.message
    assert wire.ask(Op.PING) == {}


def test_status_is_asked_of_the_supervisor(served: Served) -> None:
    names = [row["name"] for row in served.supervisor().ask(Op.STATUS)["processes"]]
    assert names == ["supervisor", "wal-00", "wal-01", "dlv-00", "dlv-01"]
    with pytest.raises(InvalidRequest):
        served.shard(0).ask(Op.STATUS)
    with pytest.raises(InvalidRequest, match="delivery"):
        served.supervisor().ask(Op.OPEN, {"topic": "x"})


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("request_id", [0, 1, 2**31, 2**32 - 1])
def test_the_request_id_is_repeated(served: Served, role: str, request_id: int) -> None:
    wire = greet(served, role)
    wire.send_raw(packed(Op.PING, request_id, {}))
    assert wire.receive()[:3] == (Op.PING | ANSWER, 0, request_id)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("unit", [b"\x91", b"\xdd\x00\x00\xff\xff", b"\xdf\x00\x00\xff\xff", b"\x81\xa1k"])
def test_nested_lies_about_sizes_cost_nothing(served: Served, role: str, unit: bytes) -> None:
    wire = greet(served, role)
    name = "supervisor" if role == "supervisor" else "dlv-00"
    before = pss_bytes(served.daemon.pids()[name])
    for _ in range(5):
        assert refusal(wire.wait(wire.send(Op.HELLO, unit * 10_000))).code == "invalid_request"
    assert pss_bytes(served.daemon.pids()[name]) - before < 16 * limits.MIB


# ---- cutting ----


@pytest.mark.parametrize("role", ROLES)
def test_messages_may_come_together_or_byte_by_byte(served: Served, role: str) -> None:
    wire = greet(served, role)
    wire.send_raw(b"".join(packed(Op.PING, number, {}) for number in range(100, 300)))
    assert [wire.receive().request_id for _ in range(200)] == list(range(100, 300))
    for byte in packed(Op.PING, 7, {}):
        wire.send_raw(bytes([byte]))
    assert wire.receive().request_id == 7


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("length", [0, 5, limits.MAX_CONTROL_MESSAGE + 1, 2**31, 2**32 - 1])
def test_a_stream_that_cannot_be_cut_gets_one_error_and_is_closed(served: Served, role: str, length: int) -> None:
    wire = greet(served, role)
    wire.send_raw(HEADER.pack(length, Op.PING, 0, 9))
    replies = wire.wait_closed()
    assert [(reply.op, reply.request_id) for reply in replies] == [(Op.ERROR, 0)]
    assert refusal(replies[0]).code == "invalid_request"


def test_what_came_before_the_bad_length_is_answered(served: Served) -> None:
    wire = served.shard(0)
    wire.send_raw(packed(Op.PING, 5, {}) + HEADER.pack(2**32 - 1, Op.APPEND, 0, 9) + packed(Op.PING, 6, {}))
    assert [(reply.op, reply.request_id) for reply in wire.wait_closed()] == [(Op.PING | ANSWER, 5), (Op.ERROR, 0)]


def test_a_control_message_of_the_full_size_is_read(served: Served) -> None:
    wire = served.shard(0)
    room = limits.MAX_CONTROL_MESSAGE - (HEADER.size - 4)
    fixed = len(msgpack.packb({"version": PROTOCOL_VERSION, "x": bytes(70_000)})) - 70_000
    body = msgpack.packb({"version": PROTOCOL_VERSION, "x": bytes(room - fixed)})
    assert len(body) == room
    assert wire.wait(wire.send(Op.HELLO, body)).op == Op.HELLO | ANSWER


def test_a_field_that_is_not_declared_is_refused_by_name(served: Served) -> None:
    wire = served.shard(0)
    error = refusal(wire.wait(wire.send(Op.STATE, {"topic": "t", "touch": False, "tuoch": True})))
    assert error.code == "invalid_request"
    assert "'tuoch'" in error.message and "touch" in error.message


@pytest.mark.parametrize("role", ROLES)
def test_half_a_message_keeps_nobody_waiting(served: Served, role: str) -> None:
    half = greet(served, role)
    half.send_raw(packed(Op.PING, 1, {"x": bytes(1000)})[:500])
    other = greet(served, role)
    began = time.monotonic()
    assert other.ask(Op.PING) == {}
    assert time.monotonic() - began < 5.0
    assert half.quiet(0.05)


# ---- who may connect ----


def test_a_uid_that_is_not_allowed_is_refused_at_every_socket_until_it_is_allowed(tmp_path: Path) -> None:
    settings = tmp_path / "topicd.toml"
    settings.write_text("")
    with Daemon(tmp_path / "d", config=settings, **SHARED) as daemon:
        paths = [daemon.run.socket, *(daemon.run.delivery_socket(index) for index in range(SHARDS))]
        settings.write_text('allowed_uids = "54321"\n')
        daemon.kill("supervisor", signal.SIGHUP)
        for path in paths:
            wait_until(lambda path=path: _welcome(path) == Forbidden.code, f"{path} to refuse us")
        settings.write_text("")
        daemon.kill("supervisor", signal.SIGHUP)
        for path in paths:
            wait_until(lambda path=path: _welcome(path) == "hello", f"{path} to let us in")


def test_the_number_of_connections_is_bounded_and_a_place_that_is_free_again_is_used(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", max_connections=3, **SHARED) as daemon:
        path = daemon.run.delivery_socket(0)
        wires = [Wire(path) for _ in range(3)]
        [reply] = Wire(path, greet=False).wait_closed()
        error = refusal(reply)
        assert (error.code, error.detail["limit"]) == (Throttled.code, "max_connections")
        wires.pop().close()
        wait_until(lambda: _welcome(path) == "hello", "a free place")
        for wire in wires:
            wire.close()


def _welcome(path: Path) -> str:
    """How a connection begins: with hello, or with the code of a refusal."""
    with Wire(path, greet=False) as wire:
        with suppress(BrokenPipeError):  # refused before a word was said
            wire.send(Op.HELLO, {"version": PROTOCOL_VERSION})
        reply = wire.receive()
    return str(reply.map["code"]) if reply.op == Op.ERROR else "hello"
