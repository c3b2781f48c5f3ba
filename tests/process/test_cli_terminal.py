"""topicctl on a terminal: live screens, colours, questions, bars, Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import topicd
from tests.process.cli_kit import ANSI, Terminal
from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.cli.show.progress import QUIET_S


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("cli"), wal_shards=2, delivery_shards=2, **LIVELY) as running:
        yield running


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> topicd.Client:
    return daemon.client()


def test_top_is_live_and_q_quits(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("live", "x")
    terminal = Terminal(daemon, "top", "--interval", "0.2")
    terminal.read_until(b"q quits")
    terminal.read_until(b"dlv-01")
    assert b"\x1b[?1049h" in terminal.output, "the alternate screen"
    with client.consumer("live", "slow"):
        terminal.type(b"c")
        terminal.read_until(b"done in")
        terminal.read_until(b"slow")
    terminal.type(b"t")
    terminal.read_until(b"priority")
    terminal.type(b"q")
    assert terminal.finish() == 0
    assert b"\x1b[?1049l" in terminal.output, "the screen is as it was"


def test_ctrl_c_ends_a_watch_quietly(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("calm", "something")
    terminal = Terminal(daemon, "watch", "calm", "--from", "earliest")
    terminal.read_until(b"something")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish() == 130
    assert b"Traceback" not in terminal.output and b"rror" not in terminal.output


def test_colours_and_questions_on_a_terminal(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("ask", "colourful", tag="t")
    terminal = Terminal(daemon, "read", "ask")
    terminal.read_until(b"colourful")
    assert terminal.finish() == 0 and b"\x1b[3" in terminal.output
    terminal = Terminal(daemon, "topic", "delete", "ask")
    terminal.read_until(b"[y/N]")
    terminal.type(b"n\r")
    assert terminal.finish() == 5
    assert client.state("ask").count == 1
    terminal = Terminal(daemon, "topic", "delete", "ask")
    terminal.read_until(b"[y/N]")
    terminal.type(b"y\r")
    assert terminal.finish() == 0
    assert "ask" not in [info.topic for info in client.topics()]


def test_a_new_topic_that_looks_like_a_typo_is_noted(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("payments", "x")
    terminal = Terminal(daemon, "publish", "paymants", "x")
    terminal.read_until(b"did you mean payments?")
    assert terminal.finish() == 0


def test_what_is_typed_is_stored_line_by_line_under_no_bar(daemon: Daemon, client: topicd.Client) -> None:
    terminal = Terminal(daemon, "publish", "typed", "-")
    began = time.monotonic()
    terminal.type(b"one\r")
    wait_until(lambda: "typed" in [info.topic for info in client.topics()], "the first line")
    while time.monotonic() < began + 2 * QUIET_S:
        terminal.read_some(0.1)
    terminal.type(b"two\r")  # a bar would be drawn now
    wait_until(lambda: client.state("typed").count == 2, "the second line")
    terminal.process.send_signal(signal.SIGINT)
    terminal.read_until(b"interrupted: 2 records stored, up to seq 2")
    assert terminal.finish() == 130
    plain = ANSI.sub(b"", terminal.output).decode()
    assert plain.replace("^C", "").split("\r\n") == ["one", "two", "", "interrupted: 2 records stored, up to seq 2", ""]


def test_long_work_shows_a_bar_with_rate_and_time_left(daemon: Daemon, tmp_path: Path) -> None:
    fifo = tmp_path / "slow"
    os.mkfifo(fifo)
    terminal = Terminal(daemon, "publish", "bar", "--from-file", str(fifo))
    deadline = time.monotonic() + 60
    with fifo.open("wb", buffering=0) as stream:
        while b"publish bar" not in terminal.output:
            assert time.monotonic() < deadline, terminal.output
            stream.write(b"line\n" * 1000)
            terminal.read_some(0.1)
    assert terminal.finish() == 0
    plain = ANSI.sub(b"", terminal.output)
    assert b"KiB" in plain and b"000 records" in plain
