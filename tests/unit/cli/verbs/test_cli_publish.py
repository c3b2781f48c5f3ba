"""publish: from the command line, files and pipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fakeserver import FakeServer, Request
from tests.unit.cli.kit import Ctl
from topicd.errors import TopicdError, TopicFull
from topicd.ipc.protocol.messages import Op


def test_one_record_is_stored_and_its_place_printed(ctl: Ctl, server: FakeServer) -> None:
    done = ctl("publish", "orders", "hello")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "orders#1\n", "")
    assert server.payloads("orders") == [b"hello"]


def test_labels_go_with_the_record(ctl: Ctl, server: FakeServer) -> None:
    assert ctl("publish", "orders", "x", "--tag", "a/b", "--node", "n1", "--meta", '{"k": [1]}').exit_code == 0
    line = json.loads(ctl("read", "orders", "--json").stdout)
    assert (line["tag"], line["node"], line["meta"]) == ("a/b", "n1", {"k": [1]})


def test_a_key_stores_once(ctl: Ctl, server: FakeServer) -> None:
    seqs = [json.loads(ctl("publish", "orders", "x", "--key", "k7", "--json").stdout)["seq"] for _ in range(3)]
    assert seqs == [1, 1, 1]
    assert server.payloads("orders") == [b"x"]


def test_stdin_is_a_record_per_line(ctl: Ctl, server: FakeServer) -> None:
    done = ctl("publish", "orders", "-", input="one\n\nthree\nlast without newline")
    assert done.exit_code == 0
    assert server.payloads("orders") == [b"one", b"", b"three", b"last without newline"]
    assert done.stdout.startswith("orders#1..4  4 records in ")


def test_a_file_of_json_lines_is_stored_line_by_line(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    file.write_bytes(b'{"id":1}\n{"id":2}\n')
    done = ctl("publish", "orders", "--from-file", str(file), "--tag", "t", "--json")
    assert server.payloads("orders") == [b'{"id":1}', b'{"id":2}']
    found = json.loads(done.stdout)
    assert (found["count"], found["first_seq"], found["last_seq"]) == (2, 1, 2)
    assert {record.tag for record in server.topics["orders"].records} == {b"t"}


def test_a_large_file_is_stored_in_order(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    lines = [b"line %d " % n + b"x" * (n % 300) for n in range(25_000)]
    file = tmp_path / "large"
    file.write_bytes(b"\n".join(lines) + b"\n")
    assert ctl("publish", "orders", "-f", str(file)).exit_code == 0
    assert server.payloads("orders") == lines


def test_raw_is_one_record_with_every_byte(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    content = bytes(range(256)) + b"\n\n"
    (tmp_path / "f").write_bytes(content)
    assert ctl("publish", "orders", "--from-file", str(tmp_path / "f"), "--raw", "--key", "k").exit_code == 0
    assert server.payloads("orders") == [content]


def test_what_read_printed_can_be_published_again(ctl: Ctl, server: FakeServer) -> None:
    ctl("publish", "orders", "--from-file", "-", "--raw", "--tag", "t1", input=b"\xff\x00binary")
    ctl("publish", "orders", "text", "--node", "n", "--meta", '{"k": "v"}')
    printed = ctl("read", "orders", "--json").stdout
    assert ctl("publish", "copy", "-", "--ndjson", input=printed).exit_code == 0
    pick = ("tag", "node", "meta", "data")
    copied = [json.loads(line) for line in ctl("read", "copy", "--json").stdout.splitlines()]
    assert [{k: c[k] for k in pick} for c in copied] == [
        {k: json.loads(p)[k] for k in pick} for p in printed.splitlines()
    ]
    assert server.payloads("copy") == [b"\xff\x00binary", b"text"]


def test_meta_of_the_command_line_is_for_records_that_bring_none(ctl: Ctl) -> None:
    ctl(
        "publish",
        "t",
        "-",
        "--ndjson",
        "--meta",
        '{"d": 1}',
        input='{"data": "a", "meta": {"own": 2}}\n{"data": {"b": 1}}\n',
    )
    lines = [json.loads(line) for line in ctl("read", "t", "--json").stdout.splitlines()]
    assert [(line["meta"], line["data"]) for line in lines] == [({"own": 2}, "a"), ({"d": 1}, '{"b":1}')]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{nonsense", "line 2 is not JSON"),
        ('"text"', 'line 2 is no object with "data"'),
        ('{"id": 7}', 'line 2 is no object with "data"'),
        ('{"data": 1, "meta": 3}', '"meta" must be an object'),
        ('{"data": 1, "tag": 3}', '"tag" must be text'),
        ('{"data": {"base64": "%%%"}}', "base64 is malformed"),
    ],
)
def test_a_bad_line_is_named(ctl: Ctl, server: FakeServer, line: str, says: str) -> None:
    done = ctl("publish", "orders", "-", "--ndjson", input=f'{{"data": "good"}}\n{line}\n')
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_in_the_middle_says_what_was_stored(ctl: Ctl, server: FakeServer) -> None:
    appends = 0

    def full(request: Request) -> TopicdError | None:
        nonlocal appends
        appends += request.op == Op.APPEND
        return TopicFull("orders is full") if request.op == Op.APPEND and appends > 1 else None

    server.fault = full
    done = ctl("publish", "orders", "-", input="x\n" * 15_000)
    assert done.exit_code == 5
    assert "orders is full; 10,000 records stored before it, up to seq 10000" in done.stderr


def test_empty_input_stores_nothing_and_says_so(ctl: Ctl, server: FakeServer) -> None:
    done = ctl("publish", "orders", "-", input="")
    assert (done.exit_code, done.stdout) == (0, "nothing to publish: the input is empty\n")
    assert "orders" not in server.topics


def test_meta_is_pairs_or_an_object_or_both(ctl: Ctl) -> None:
    ctl("publish", "orders", "x", "--meta", "k=v=w", "--meta", '{"n": [1]}', "--meta", "empty=")
    line = json.loads(ctl("read", "orders", "--json", "--limit", "1").stdout)
    assert line["meta"] == {"k": "v=w", "n": [1], "empty": ""}


@pytest.mark.parametrize(
    "args",
    [
        ("orders",),
        ("orders", "x", "--from-file", "f"),
        ("orders", "x", "--lines"),
        ("orders", "x", "--meta", "[1]"),
        ("orders", "x", "--meta", "{"),
        ("orders", "x", "--meta", "k"),
        ("orders", "x", "--meta", "=v"),
        ("orders", "x", "--meta", "k=v", "--meta", "k=w"),
        ("orders", "-", "--key", "k"),
        ("no good name", "x"),
    ],
)
def test_wrong_usage_is_exit_code_2(ctl: Ctl, args: tuple[str, ...]) -> None:
    done = ctl("publish", *args, input="")
    assert done.exit_code == 2
    assert done.stderr.startswith("topicctl: ")


def test_a_missing_file_is_exit_code_4(ctl: Ctl) -> None:
    done = ctl("publish", "orders", "--from-file", "/nonexistent/file")
    assert (done.exit_code, done.stderr) == (4, "topicctl: /nonexistent/file: no such file\n")


def test_a_record_too_large_is_refused(ctl: Ctl, server: FakeServer) -> None:
    done = ctl("publish", "orders", "-", "--raw", input=b"x" * (1024 * 1024 + 1))
    assert done.exit_code == 5
    assert "1,048,576 bytes" in done.stderr
    assert server.payloads("orders") == []
