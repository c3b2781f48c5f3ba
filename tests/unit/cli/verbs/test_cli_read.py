"""read and watch: what is printed, from where, and how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import topicd
from tests.support.fakeserver import FakeServer, Request
from tests.unit.cli.kit import Ctl, when_asked
from topicd.cli.verbs.watch import simplified
from topicd.errors import StorageCorrupt, TopicdError
from topicd.ipc.protocol.messages import Op


@pytest.fixture
def client(server: FakeServer) -> Iterator[topicd.Client]:
    with topicd.connect(server.path, timeout=5) as connected:
        yield connected


@pytest.fixture
def orders(client: topicd.Client) -> topicd.Client:
    """Records 1 to 10; the odd ones are tagged, the last is not text."""
    for n in range(1, 10):
        client.publish("orders", f"r{n}", tag=f"odd/{n}" if n % 2 else None, node="n1" if n < 4 else "n2")
    client.publish("orders", b"\xfe\xff", tag="binary")
    return client


def seqs(text: str) -> list[int]:
    return [json.loads(line)["seq"] for line in text.splitlines()]


def test_lines_show_seq_time_tag_and_data(ctl: Ctl, orders: topicd.Client) -> None:
    done = ctl("read", "orders", "--limit", "2", env={"TZ": "UTC"})
    assert done.stdout.splitlines()[0].split() == ["1", *done.stdout.split()[1:3], "[odd/1]", "r1"]
    assert done.stdout.splitlines()[1].endswith("  r2")


def test_json_lines_hold_everything(ctl: Ctl, orders: topicd.Client, server: FakeServer) -> None:
    lines = [json.loads(line) for line in ctl("read", "orders", "--json").stdout.splitlines()]
    first_ts = server.topics["orders"].records[0].ts
    assert lines[0] == {
        "topic": "orders",
        "seq": 1,
        "ts": first_ts,
        "tag": "odd/1",
        "node": "n1",
        "meta": {},
        "data": "r1",
    }
    assert lines[9]["data"] == {"base64": "/v8="}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--from", "0"], list(range(1, 11))),
        (["--from", "7"], [8, 9, 10]),
        (["--from", "earliest", "--limit", "2"], [1, 2]),
        (["--from", "latest"], []),
        (["--last", "3"], [8, 9, 10]),
        (["--last", "300"], list(range(1, 11))),
        (["--last", "2", "--tag-prefix", "odd/"], [7, 9]),
        (["--last", "2", "--exclude-node", "n2"], [3, 10]),
        (["--last", "9", "--tag", "odd/3"], [3]),
        (["--tag", "odd/3"], [3]),
        (["--tag-prefix", "odd/"], [1, 3, 5, 7, 9]),
        (["--exclude-node", "n1", "--limit", "1"], [4]),
        (["--exclude-node", "n1", "--exclude-node", "n2"], [10]),
        (["--from", "1d"], []),
    ],
)
def test_where_and_what(ctl: Ctl, orders: topicd.Client, args: list[str], expected: list[int]) -> None:
    assert seqs(ctl("read", "orders", "--json", *args).stdout) == expected


def test_from_a_time(ctl: Ctl, orders: topicd.Client, server: FakeServer) -> None:
    stored = server.topics["orders"].records[6].ts
    moment = datetime.fromtimestamp(stored / 1000, UTC)
    assert seqs(ctl("read", "orders", "--json", "--from", moment.isoformat()).stdout) == [7, 8, 9, 10]
    later = moment + timedelta(days=1)
    assert ctl("read", "orders", "--json", "--from", later.isoformat()).stdout == ""


def test_data_only_forms(ctl: Ctl, orders: topicd.Client) -> None:
    assert ctl("read", "orders", "--data", "--limit", "2").stdout == "r1\nr2\n"
    assert ctl("read", "orders", "--raw", "--last", "2").stdout_bytes == b"r9\xfe\xff"


def test_meta_only_leaves_the_data_out(ctl: Ctl, orders: topicd.Client) -> None:
    line = json.loads(ctl("read", "orders", "--json", "--meta-only", "--limit", "1").stdout)
    assert "data" not in line and line["tag"] == "odd/1"
    assert "r1" not in ctl("read", "orders", "--meta-only", "--limit", "1").stdout


def test_parse_prints_json_data_as_json(ctl: Ctl, client: topicd.Client) -> None:
    client.publish("t", {"id": 7})
    client.publish("t", "no json {")
    lines = [json.loads(line) for line in ctl("read", "t", "--json", "--parse").stdout.splitlines()]
    assert [line["data"] for line in lines] == [{"id": 7}, "no json {"]


def test_control_characters_cannot_reach_the_terminal(ctl: Ctl, client: topicd.Client) -> None:
    client.publish("t", "a\x1b[2Jb\nc\u202e", tag="x\x07")
    assert ctl("read", "t").stdout.split("  ", 2)[2].endswith("[x\\x07]  a\\x1b[2Jb\\nc\\u202e\n")


def test_a_gap_stands_where_the_records_stood(ctl: Ctl, client: topicd.Client) -> None:
    client.configure("t", cap_records=3)
    client.publish_many("t", [b"%d" % n for n in range(10)])
    text = ctl("read", "t", "--from", "2").stdout.splitlines()
    assert text[0] == "-- t: records 3 to 7 are gone (cap, about 5 records) --"
    assert len(text) == 4
    line = json.loads(ctl("read", "t", "--from", "2", "--json").stdout.splitlines()[0])
    assert line["gap"]["gap_from"] == 3 and line["gap"]["gap_to"] == 7
    quiet = ctl("read", "t", "--from", "2", "--data")
    assert quiet.stdout == "7\n8\n9\n" and "records 3 to 7 are gone" in quiet.stderr


def test_who_asks_for_the_earliest_misses_nothing(ctl: Ctl, client: topicd.Client) -> None:
    client.configure("t", cap_records=3)
    client.publish_many("t", [b"%d" % n for n in range(10)])
    assert ctl("read", "t", "--data").stderr == ""


def test_reading_stops_at_what_was_there_at_the_start(
    ctl: Ctl, client: topicd.Client, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that is faster than the terminal must not keep it busy for ever."""
    monkeypatch.setattr("topicd.cli.verbs.read.FETCH_RECORDS_MAX", 8)
    client.publish_many("t", [b"x"] * 20)
    heads: list[int] = []

    def busy(request: Request) -> None:
        if request.op == Op.FETCH:
            server.topics["t"]._store(bytearray(_frame()), 1)
            heads.append(server.topics["t"].head)

    server.fault = busy
    assert seqs(ctl("read", "t", "--json").stdout) == list(range(1, 22))
    assert heads == [21, 22, 23], "the newer ones were there, and one page had them"


def test_the_last_ones_are_found_behind_deleted_ones(ctl: Ctl, orders: topicd.Client) -> None:
    orders.delete("orders", match=["tag", "Glob", "odd/*"])
    orders.delete("orders", match=["tag", "Eq", "binary"])
    assert seqs(ctl("read", "orders", "--json", "--last", "2").stdout) == [6, 8]
    assert seqs(ctl("read", "orders", "--json", "--last", "9").stdout) == [2, 4, 6, 8]


def test_damage_has_its_name_in_json(ctl: Ctl, orders: topicd.Client, server: FakeServer) -> None:
    server.fault = lambda request: (
        StorageCorrupt("records 3..5 rot", first_seq=3, last_seq=5) if request.op == Op.FETCH else None
    )
    done = ctl("read", "orders", "--json")
    assert json.loads(done.stderr)["error"]["code"] == "storage_corrupt"


def test_damage_says_how_to_read_on(ctl: Ctl, orders: topicd.Client, server: FakeServer) -> None:
    def rotten(request: Request) -> TopicdError | None:
        return StorageCorrupt("records 3..5 rot", first_seq=3, last_seq=5) if request.op == Op.FETCH else None

    server.fault = rotten
    done = ctl("read", "orders")
    assert done.exit_code == 1 and "`--from 5` reads on behind it" in done.stderr and "fsck" in done.stderr


def _frame() -> bytes:
    from topicd._native import core

    return bytes(core.encode_batch([b"more"], None, None, None))


def test_follow_goes_on_with_what_comes(ctl: Ctl, orders: topicd.Client, server: FakeServer) -> None:
    when_asked(server, Op.SUBSCRIBE, lambda: orders.publish("orders", "new"))
    done = ctl("read", "orders", "--last", "1", "--follow", "--limit", "2", "--json")
    assert seqs(done.stdout) == [10, 11]


def test_watch_prints_many_topics_with_their_names(ctl: Ctl, client: topicd.Client) -> None:
    for topic in ("orders.eu", "orders.us", "other"):
        client.publish(topic, f"in {topic}")
    done = ctl("watch", "orders.*", "other", "--from", "earliest", "--limit", "3")
    assert sorted(line.split("#")[0] for line in done.stdout.splitlines()) == ["orders.eu", "orders.us", "other"]


def test_watch_of_one_topic_begins_at_the_end(ctl: Ctl, orders: topicd.Client, server: FakeServer) -> None:
    when_asked(server, Op.SUBSCRIBE, lambda: orders.publish("orders", "new"))
    done = ctl("watch", "orders", "--limit", "1", "--data")
    assert done.stdout == "new\n"


@pytest.mark.parametrize(
    ("given", "names", "patterns"),
    [
        (("a", "b", "a"), ["a", "b"], []),
        (("a*", "ab", "c"), ["c"], ["a*"]),
        (("ab*", "a*", "b*"), [], ["a*", "b*"]),
        (("*", "x", "y*"), [], ["*"]),
    ],
)
def test_what_a_wider_pattern_covers_is_watched_once(
    given: tuple[str, ...], names: list[str], patterns: list[str]
) -> None:
    assert simplified(given) == (names, patterns)


def test_watch_of_a_likely_typo_is_refused_and_creates_nothing(
    ctl: Ctl, orders: topicd.Client, server: FakeServer
) -> None:
    done = ctl("watch", "ordres")
    assert done.exit_code == 4
    assert "did you mean orders?" in done.stderr
    assert "ordres" not in server.topics


def test_watch_waits_for_a_topic_that_is_new(ctl: Ctl, client: topicd.Client, server: FakeServer) -> None:
    when_asked(server, Op.SUBSCRIBE, lambda: client.publish("fresh", "first"))
    assert ctl("watch", "fresh", "--from", "earliest", "--limit", "1", "--data").stdout == "first\n"


@pytest.mark.parametrize(
    "args",
    [
        ("read", "orders", "--from", "yesterday"),
        ("read", "orders", "--from", "-3"),
        ("read", "orders", "--from", "1", "--last", "2"),
        ("read", "orders", "--tag", "a", "--tag-prefix", "b"),
        ("read", "orders", "--limit", "0"),
        ("read", "orders", "--meta-only", "--raw"),
        ("watch", "a*b"),
        ("watch",),
    ],
)
def test_wrong_usage_is_exit_code_2(ctl: Ctl, orders: topicd.Client, args: tuple[str, ...]) -> None:
    assert ctl(*args).exit_code == 2
