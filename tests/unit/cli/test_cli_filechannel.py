"""`topicctl filechannel`: what it prints, what it refuses, its exit codes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.unit.cli.kit import run
from topicd.filechannel import FileChannel
from topicd.filechannel.layout import HEADER_BYTES


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    with FileChannel(tmp_path / "c", segment_bytes=4096) as made:
        made.sender().send_many([b"message %d" % number for number in range(1000)])
        made.receiver("worker", auto_ack=True).recv_many(10)
    return tmp_path / "c"


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_info_dump_and_verify_change_nothing(channel: Path) -> None:
    before = files(channel)
    info = run("filechannel", "info", str(channel))
    assert info.exit_code == 0
    assert "worker" in info.stdout and "not synced" in info.stdout
    body = json.loads(run("filechannel", "info", str(channel), "--json").stdout)
    assert (body["begin"], body["writer_pid"], body["damage"]) == (0, None, [])
    assert body["segments"][0]["id"] == 0 and len(body["segments"]) > 3
    assert body["receivers"][0]["offset"] == 170
    dump = run("filechannel", "dump", str(channel), "--from", str(body["receivers"][0]["offset"]), "--limit", "2")
    assert dump.stdout.split() == ["188", "message", "10", "206", "message", "11"]
    lines = run("filechannel", "dump", str(channel), "--json").stdout.splitlines()
    assert [json.loads(line)["data"] for line in lines] == [f"message {number}" for number in range(1000)]
    assert "1,000 messages, 0 damaged ranges" in run("filechannel", "verify", str(channel)).stdout
    assert files(channel) == before


def test_looking_needs_no_leave_to_write(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def open_to_read(path: str | Path, flags: int, *args: int, **named: int) -> int:
        if Path(path).parent == channel and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *args, **named)

    monkeypatch.setattr(os, "open", open_to_read)
    for verb in ("info", "verify", "dump"):
        assert run("filechannel", verb, str(channel)).exit_code == 0


def test_damage_is_named_and_an_exit_code(channel: Path) -> None:
    path = channel / "segment.1"
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + 10] ^= 1
    path.write_bytes(raw)
    found = run("filechannel", "verify", str(channel), "--json")
    body = json.loads(found.stdout)
    assert (found.exit_code, body["messages"], len(body["damage"])) == (1, 999, 1)
    dump = run("filechannel", "dump", str(channel))
    assert dump.exit_code == 1 and "damage: offsets" in dump.stderr
    (channel / "offset.worker").write_bytes(b"nothing")
    assert json.loads(run("filechannel", "verify", str(channel), "--json").stdout)["damaged_slots"] == {"worker": 2}
    assert "damaged" in run("filechannel", "info", str(channel)).stdout


def test_verify_tells_of_files_that_are_missing_or_not_its_own(channel: Path, tmp_path: Path) -> None:
    """Reading from the oldest segment on meets neither."""
    with FileChannel(tmp_path / "other", segment_bytes=4096) as other:
        other.sender().send_many([b"message %d" % number for number in range(1000)])
    kept = (channel / "segment.2").read_bytes()
    (channel / "segment.2").write_bytes((tmp_path / "other" / "segment.2").read_bytes())
    alien = run("filechannel", "verify", str(channel), "--json")
    assert alien.exit_code == 1 and "another channel" in json.loads(alien.stdout)["damage"][0]["reason"]
    (channel / "segment.2").write_bytes(kept)
    assert run("filechannel", "verify", str(channel)).exit_code == 0
    (channel / "segment.0").unlink()
    first = run("filechannel", "verify", str(channel), "--json")
    assert first.exit_code == 1
    assert [span["begin"] for span in json.loads(first.stdout)["damage"]] == [170]


def test_tail_prints_and_leaves_no_trace(channel: Path) -> None:
    found = run("filechannel", "tail", str(channel), "--all", "--idle", "0.1")
    assert found.stdout.splitlines()[-1].split() == [found.stdout.splitlines()[-1].split()[0], "message", "999"]
    assert not [name for name in os.listdir(channel) if "tail" in name]
    assert run("filechannel", "tail", str(channel), "--idle", "0.05").stdout == ""


def test_tail_names_damage_and_goes_on(channel: Path) -> None:
    path = channel / "segment.1"
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + 10] ^= 1
    path.write_bytes(raw)
    found = run("filechannel", "tail", str(channel), "--all", "--idle", "0.1")
    assert (found.exit_code, len(found.stdout.splitlines())) == (1, 999)
    assert "damage: offsets" in found.stderr and "checksum" in found.stderr


def test_compact_compresses_and_is_refused_beside_a_writer(channel: Path) -> None:
    with FileChannel(channel, segment_bytes=4096):
        refused = run("filechannel", "compact", str(channel))
        assert (refused.exit_code, str(os.getpid()) in refused.stderr) == (5, True)
    body = json.loads(run("filechannel", "compact", str(channel), "--json").stdout)
    assert body["compressed"] > 2 and body["bytes_after"] < body["bytes_before"]
    assert run("filechannel", "verify", str(channel)).exit_code == 0
    assert json.loads(run("filechannel", "compact", str(channel), "--json").stdout)["compressed"] == 0


@pytest.mark.parametrize("verb", ["info", "dump", "verify", "tail", "compact"])
def test_a_directory_without_a_channel_is_not_found(tmp_path: Path, verb: str) -> None:
    found = run("filechannel", verb, str(tmp_path))
    assert (found.exit_code, "no file channel" in found.stderr) == (4, True)
    assert list(tmp_path.iterdir()) == []


def test_dump_begins_between_two_messages_only(channel: Path) -> None:
    end = json.loads(run("filechannel", "info", str(channel), "--json").stdout)["end"]
    for wrong in (5, end - 1, end + 1):
        refused = run("filechannel", "dump", str(channel), "--from", str(wrong))
        assert (refused.exit_code, refused.stdout, str(wrong) in refused.stderr) == (2, "", True)
    assert run("filechannel", "dump", str(channel), "--from", str(end)).stdout == ""
    # Behind damage as well, in the same file.
    path = channel / "segment.0"
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + 10] ^= 1
    path.write_bytes(raw)
    assert run("filechannel", "dump", str(channel), "--from", "17", "--limit", "1").stdout.split() == [
        "34",
        "message",
        "1",
    ]
    damaged = run("filechannel", "dump", str(channel), "--from", "0", "--limit", "1")
    assert (damaged.exit_code, damaged.stderr) == (1, "damage: offsets 0 to 17: a message fails its checksum\n")
    assert run("filechannel", "dump", str(channel), "--from", "16").exit_code == 2
