"""Every table as it looks at 80 and at 160 columns. UPDATE_GOLDEN=1 writes the screens anew."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import topicd
from tests.support.fakeserver import FakeServer
from tests.unit.cli.datadir import Built
from tests.unit.cli.kit import Ctl, answer_status, compare_with_golden, run
from tests.unit.cli.samples import status, troubled
from topicd.cli.show.top_picture import bar, latency, render

WIDTHS = [80, 160]


def screen(before: dict[str, object], after: dict[str, object], width: int, by: str = "process", rows: int = 30) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, legacy_windows=False)
    console.print(render(before, after, width, by, rows))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["busy", "troubled"])
def test_top(name: str, width: int) -> None:
    before, after = (status(0), status(2)) if name == "busy" else (troubled(), troubled() | {"uptime_s": 3726.0})
    text = screen(before, after, width)
    assert max(map(len, text.splitlines())) <= width
    compare_with_golden(f"top-{name}-{width}", text)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("by", ["topic", "consumer"])
def test_top_by_topic_and_by_consumer(by: str, width: int) -> None:
    text = screen(status(0), status(2), width, by)
    assert max(map(len, text.splitlines())) <= width
    compare_with_golden(f"top-by-{by}-{width}", text)


def test_top_says_what_it_leaves_out_and_that_there_is_nothing() -> None:
    short = screen(status(0), status(2), 80, "consumer", 4)
    assert short.splitlines()[-1] == "4 of 6 named consumers; all: topicctl consumer list"
    empty = {**status(2), "processes": []}
    assert screen(empty, empty, 80, "consumer").splitlines()[1:] == ["", "no named consumers"]
    assert screen(empty, empty, 80, "topic").splitlines()[1:] == ["", "no topics"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verb", ["status", "shards"])
@pytest.mark.parametrize("name", ["busy", "troubled"])
def test_tables_of_the_daemon(ctl: Ctl, server: FakeServer, verb: str, name: str, width: int) -> None:
    answer_status(server, status() if name == "busy" else troubled())
    text = ctl(verb, env={"COLUMNS": str(width)}).stdout
    assert max(map(len, text.splitlines())) <= width
    compare_with_golden(f"{verb}-{name}-{width}", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_pressure(ctl: Ctl, server: FakeServer, width: int) -> None:
    answer_status(server, status())
    text = ctl("status", "--pressure", env={"COLUMNS": str(width)}).stdout
    assert max(map(len, text.splitlines())) <= width
    compare_with_golden(f"status-pressure-{width}", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_topics_and_consumers(ctl: Ctl, server: FakeServer, width: int) -> None:
    long = "a." + "very-" * 30 + "long-name"
    with topicd.connect(server.path) as client:
        client.publish_many("orders", [b"x" * 1000] * 1500)
        client.configure(long, durability="fsync")
        client.configure("capped", cap_records=10)
        client.publish_many("capped", [b"y"] * 25)
        client.consumer("orders", "billing", 700).close()
    for name, args in (("topic-list", ["topic", "list"]), ("consumer-list", ["consumer", "list"])):
        text = ctl(*args, env={"COLUMNS": str(width), "TZ": "UTC"}).stdout
        assert max(map(len, text.splitlines())) <= width
        compare_with_golden(f"{name}-{width}", text)


def test_tables_of_an_empty_data_directory_say_so(built: Built) -> None:
    for args in (["segment", "verify"], ["snapshot", "list"]):
        text = run(*args, "--data-dir", str(built.data.root)).stdout
        assert text == f"no {args[0]}s\n"


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_a_data_directory(built: Built, width: int) -> None:
    built.segment(5, 1, 40, tag=b"t")
    built.segment(5, 41, 10, sealed=False)
    built.marks(5, 1, (3, 9))
    built.snapshot((5, "orders"), (6, "a." + "very-" * 30 + "long-name"))
    for name, args in (
        ("segment-verify", ["segment", "verify"]),
        ("snapshot-list", ["snapshot", "list"]),
        ("snapshot-show", ["snapshot", "show", "--shard", "0"]),
    ):
        text = run(*args, "--data-dir", str(built.data.root), env={"COLUMNS": str(width)}).stdout
        assert max(map(len, text.splitlines())) <= width
        compare_with_golden(f"{name}-{width}", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_settings(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    env = {"COLUMNS": str(width), "TOPICD_DATA_DIR": "/var/lib/topicd", "TOPICD_RUN_DIR": "/run/topicd"}
    text = run("config", "show", env=env).stdout
    assert max(map(len, text.splitlines())) <= width
    assert "data_dir" in text and "environment" in text


@pytest.mark.parametrize("width", [20, 40, 60, 100, 250])
def test_no_width_breaks_a_table(ctl: Ctl, server: FakeServer, width: int) -> None:
    answer_status(server, status())
    for verb in ("status", "shards"):
        table = ctl(verb, env={"COLUMNS": str(width)}).stdout.split("\n\n")[-1]
        assert max(map(len, table.splitlines())) <= width
    assert max(map(len, screen(status(0), status(1), width).splitlines())) <= width


@pytest.mark.parametrize("width", [24, 38, 60, 80, 120])
def test_no_figure_of_top_is_cut(width: int) -> None:
    text = screen(status(0), status(2), width)
    for figure in ("50.0k/s", "7.6 MiB/s", "240.3 MiB", "136.7 KiB", "≤6.4 ms", "8.0 KiB"):
        assert figure in text


@pytest.mark.parametrize(
    ("share", "picture"), [(0, "········"), (0.25, "██······"), (0.3, "██▍·····"), (1, "████████"), (7, "████████")]
)
def test_bar(share: float, picture: str) -> None:
    assert bar(share) == picture


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0004, "≤0.4 ms"), (0.1024, "≤102 ms"), (float("inf"), ">102 ms")]
)
def test_latency(seconds: float | None, text: str) -> None:
    assert latency(seconds) == text
