"""topic, consumer and delete: changes to what is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import topicd
from tests.support.fakeserver import FakeServer
from tests.unit.cli.kit import Ctl, when_asked
from topicd.cli import ask
from topicd.cli.verbs.topic import parse_config
from topicd.ipc.protocol.messages import Op


@pytest.fixture
def client(server: FakeServer) -> Iterator[topicd.Client]:
    with topicd.connect(server.path, timeout=5) as connected:
        for n in range(1, 11):
            connected.publish("orders", f"r{n}", tag="a/1" if n <= 4 else "b")
        yield connected


# ---- topic ----


def test_list_is_sorted_and_may_be_narrowed(ctl: Ctl, client: topicd.Client) -> None:
    for name in ("zebra", "orders.eu", "apple"):
        client.publish(name, "x")
    assert [t["topic"] for t in json.loads(ctl("topic", "list", "--json").stdout)] == [
        "apple",
        "orders",
        "orders.eu",
        "zebra",
    ]
    assert len(json.loads(ctl("topic", "list", "orders", "--json").stdout)) == 2
    assert len(json.loads(ctl("topic", "list", "--limit", "1", "--json").stdout)) == 1
    assert "priority" in ctl("topic", "list").stdout.splitlines()[0]
    assert all("effective_priority" in row for row in json.loads(ctl("topic", "list", "--json").stdout))
    assert ctl("topic", "list", "nothing").stdout == "no topics that begin with 'nothing'\n"


def test_show_tells_what_it_holds_and_how_it_is_configured(ctl: Ctl, client: topicd.Client) -> None:
    text = ctl("topic", "show", "orders").stdout
    assert "records        10\n" in text and "durability             disk\n" in text
    found = json.loads(ctl("topic", "show", "orders", "--json").stdout)
    assert (found["head_seq"], found["config"]["durability"]) == (10, "disk")


def test_create_with_a_configuration(ctl: Ctl, client: topicd.Client, server: FakeServer) -> None:
    done = ctl("topic", "create", "new", "durability=fsync", "cap_bytes=1GiB", "auto_priority=no", "--json")
    assert json.loads(done.stdout)["created"] is True
    config = server.topics["new"].config
    assert (config.durability, config.cap_bytes, config.auto_priority) == ("fsync", 2**30, False)


def test_create_refuses_a_topic_that_exists(ctl: Ctl, client: topicd.Client) -> None:
    assert ctl("topic", "create", "orders").exit_code == 5
    assert json.loads(ctl("topic", "create", "orders", "--if-missing", "--json").stdout)["created"] is False


def test_config_shows_and_changes(ctl: Ctl, client: topicd.Client, server: FakeServer) -> None:
    assert json.loads(ctl("topic", "config", "orders", "--json").stdout)["config"]["ttl_ms"] == 0
    assert "ttl_ms                 5000 (5s)\n" in ctl("topic", "config", "orders", "ttl_ms=5000").stdout
    assert server.topics["orders"].config.ttl_ms == 5000


def test_config_of_a_missing_topic_creates_nothing(ctl: Ctl, client: topicd.Client, server: FakeServer) -> None:
    done = ctl("topic", "config", "odrers", "ttl_ms=5000")
    assert done.exit_code == 4 and "did you mean orders?" in done.stderr
    assert "odrers" not in server.topics


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("tll=5", "did you mean ttl"),
        ("ttl=soon", "must be milliseconds or a time like"),
        ("durability=platinum", "must be one of"),
        ("cap_records=many", "must be a whole number"),
        ("cap_bytes=1furlong", "must be bytes or a size"),
        ("auto_priority=perhaps", "must be true or false"),
        ("ttl_ms", "is not FIELD=VALUE"),
    ],
)
def test_a_bad_field_is_explained(ctl: Ctl, client: topicd.Client, pair: str, says: str) -> None:
    done = ctl("topic", "config", "orders", pair)
    assert done.exit_code == 2
    assert says in done.stderr


def test_fields_without_a_value_can_be_named() -> None:
    assert parse_config(("priority=none", "dead_letter=", "durable=true")) == {
        "priority": None,
        "dead_letter": None,
        "durable": True,
    }


def test_a_topic_goes_only_with_a_yes(ctl: Ctl, client: topicd.Client, server: FakeServer) -> None:
    refused = ctl("topic", "delete", "orders")
    assert refused.exit_code == 2 and "--yes" in refused.stderr
    assert ctl("topic", "delete", "orders", "--if-empty", "--yes").exit_code == 5
    assert "orders" in server.topics
    assert ctl("topic", "delete", "orders", "--yes").stdout == "deleted orders and 10 records\n"
    assert "orders" not in server.topics


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 5), ("\n", 5)])
def test_a_terminal_is_asked(
    ctl: Ctl, client: topicd.Client, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setattr(ask, "can_answer", lambda: True)
    done = ctl("topic", "delete", "orders", input=answer)
    assert done.exit_code == code
    assert "delete topic 'orders' with 10 records?" in done.stderr


# ---- delete ----


@pytest.mark.parametrize(
    ("args", "gone"),
    [(["--before", "4"], 3), (["--tag", "b"], 6), (["--tag-prefix", "a/"], 4), (["--before", "3", "--tag", "a/1"], 2)],
)
def test_delete_removes_what_a_dry_run_announced(ctl: Ctl, client: topicd.Client, args: list[str], gone: int) -> None:
    announced = json.loads(ctl("delete", "orders", *args, "--dry-run", "--json").stdout)
    assert (announced["deleted"], announced["dry_run"]) == (gone, True)
    assert client.state("orders").count == 10
    done = json.loads(ctl("delete", "orders", *args, "--yes", "--json").stdout)
    assert (done["deleted"], done["count"]) == (gone, 10 - gone)


def test_dry_run_in_words(ctl: Ctl, client: topicd.Client) -> None:
    text = ctl("delete", "orders", "--tag", "b", "--dry-run").stdout
    assert text == "would delete 6 records of 'orders' tagged 'b', seqs 5 to 10\n"
    assert "nothing would be deleted" in ctl("delete", "orders", "--tag", "zzz", "--dry-run").stdout


def test_delete_needs_a_choice_and_a_yes(ctl: Ctl, client: topicd.Client) -> None:
    assert ctl("delete", "orders", "--yes").exit_code == 2
    assert ctl("delete", "orders", "--before", "4").exit_code == 2
    assert client.state("orders").count == 10


# ---- consumer ----


def test_a_consumer_reads_each_record_once(ctl: Ctl, client: topicd.Client) -> None:
    assert ctl("consumer", "read", "orders", "billing", "--limit", "3", "--data").stdout == "r1\nr2\nr3\n"
    assert ctl("consumer", "read", "orders", "billing", "--data").stdout.split() == [f"r{n}" for n in range(4, 11)]
    assert ctl("consumer", "read", "orders", "billing", "--data").stdout == ""
    client.publish("orders", "r11")
    assert ctl("consumer", "read", "orders", "billing", "--data").stdout == "r11\n"


def test_no_ack_does_not_move_it(ctl: Ctl, client: topicd.Client) -> None:
    for _ in range(2):
        assert ctl("consumer", "read", "orders", "billing", "--no-ack", "--limit", "1", "--data").stdout == "r1\n"


def test_a_new_consumer_begins_where_it_is_told(ctl: Ctl, client: topicd.Client) -> None:
    assert ctl("consumer", "read", "orders", "late", "--from", "latest", "--data").stdout == ""
    assert ctl("consumer", "read", "orders", "mid", "--from", "8", "--data").stdout == "r9\nr10\n"


def test_filters_move_it_over_what_it_does_not_want(ctl: Ctl, client: topicd.Client) -> None:
    assert ctl("consumer", "read", "orders", "a", "--tag-prefix", "a/", "--data").stdout == "r1\nr2\nr3\nr4\n"
    assert json.loads(ctl("consumer", "show", "orders", "a", "--json").stdout)["acked_seq"] == 10


def test_follow_acknowledges_what_it_printed(ctl: Ctl, client: topicd.Client, server: FakeServer) -> None:
    when_asked(server, Op.SUBSCRIBE, lambda: client.publish("orders", "r11"))
    done = ctl("consumer", "read", "orders", "live", "--from", "9", "--follow", "--limit", "2", "--data")
    assert done.stdout == "r10\nr11\n"
    assert json.loads(ctl("consumer", "show", "orders", "live", "--json").stdout)["acked_seq"] == 11


def test_ack_reset_remove(ctl: Ctl, client: topicd.Client) -> None:
    ctl("consumer", "read", "orders", "billing", "--limit", "1")
    assert json.loads(ctl("consumer", "ack", "orders", "billing", "7", "--json").stdout)["acked_seq"] == 7
    assert json.loads(ctl("consumer", "ack", "orders", "billing", "2", "--json").stdout)["acked_seq"] == 7
    assert ctl("consumer", "reset", "orders", "billing", "earliest").exit_code == 2
    assert json.loads(ctl("consumer", "reset", "orders", "billing", "2", "-y", "--json").stdout)["acked_seq"] == 2
    listed = json.loads(ctl("consumer", "list", "--json").stdout)
    assert [(c["topic"], c["name"], c["lag"]) for c in listed] == [("orders", "billing", 8)]
    assert ctl("consumer", "remove", "orders", "billing", "--yes").stdout == "removed billing\n"
    assert ctl("consumer", "list", "orders").stdout == "no consumers\n"


@pytest.mark.parametrize("args", [("show",), ("ack", "3"), ("reset", "3", "-y"), ("remove", "-y")])
def test_a_consumer_that_does_not_exist_is_not_made(ctl: Ctl, client: topicd.Client, args: tuple[str, ...]) -> None:
    ctl("consumer", "read", "orders", "billing")
    done = ctl("consumer", args[0], "orders", "biling", *args[1:])
    assert done.exit_code == 4
    assert "did you mean billing?" in done.stderr
    assert [c.name for c in client.consumers("orders")] == ["billing"]


def test_a_consumer_of_a_missing_topic_does_not_make_it(ctl: Ctl, client: topicd.Client, server: FakeServer) -> None:
    done = ctl("consumer", "read", "odrers", "billing")
    assert done.exit_code == 4 and "did you mean orders?" in done.stderr
    assert "odrers" not in server.topics
