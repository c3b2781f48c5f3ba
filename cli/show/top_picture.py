"""The pictures of `topicctl top`: of processes, of topics, of consumers. Pure: two STATUS answers and a width in,
something to print out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topicd.cli.show import human
from topicd.cli.show.pressure import pressure_line
from topicd.cli.show.queues import RATE_COLUMNS, rate_rows
from topicd.cli.show.rates import (
    ConsumerRates,
    ProcessRates,
    TopicRates,
    Totals,
    consumer_rates,
    process_rates,
    seconds_between,
    topic_rates,
    totals,
)
from topicd.cli.show.render import STATE_STYLE, Column, make_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

BAR_CELLS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"

COLUMNS = [
    Column("process"),
    Column("state"),
    Column("pid", right=True, rank=2),
    Column("cpu", right=True),
    Column("memory", right=True),
    Column("records/s", right=True),
    Column("bytes/s", right=True),
    Column("ring"),
    Column("syncs/s", right=True, rank=3),
    Column("sync p99", right=True, rank=3),
    Column("conns", right=True, rank=4),
    Column("loop lag", right=True, rank=4),
    Column("uptime", right=True, rank=5),
    Column("restarts", right=True, rank=5),
]
TOPICS_SHOWN = 5  # among the processes
ROWS_SHOWN = 30  # where they have the screen to themselves
TOPIC_COLUMNS = [
    Column("topic", shrink=True),
    Column("records/s", right=True),
    Column("lag", right=True),
    Column("head", right=True, rank=1),
    Column("records", right=True, rank=3),
    Column("bytes", right=True, rank=2),
    Column("priority", right=True),
]
CONSUMER_COLUMNS = [
    Column("consumer", shrink=True),
    Column("topic", shrink=True),
    Column("acked/s", right=True),
    Column("lag", right=True),
    Column("lag/s", right=True),
    Column("done in", right=True, rank=1),
    Column("acked", right=True, rank=2),
]


def render(
    status_before: dict[str, Any], status_after: dict[str, Any], width: int, by: str = "process", rows: int = ROWS_SHOWN
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if by != "process":
        table = _all_topics if by == "topic" else _all_consumers
        title = _title(status_before, status_after, width)
        return Group(title, Text(""), *table(status_before, status_after, width, rows))
    processes = process_rates(status_before, status_after)
    parts: list[RenderableType] = [
        _title(status_before, status_after, width),
        Text(""),
        _figures(totals(status_before, status_after), width),
        Text(f"pressure {pressure_line(status_after.get('pressure') or {})}"),
        Text(""),
        make_table(COLUMNS, [_row(process) for process in processes], width),
        *_queues(status_before, status_after, width),
        *(Text(f"{process.name}: {process.note}", style="yellow") for process in processes if process.note),
        *_topics(status_before, status_after, width),
    ]
    if status_after.get("failure"):
        parts.insert(1, Text(str(status_after["failure"]), style="bold red"))
    return Group(*parts)


def _queues(before: dict[str, Any], after: dict[str, Any], width: int) -> list[RenderableType]:
    from rich.text import Text

    rows = rate_rows(before, after, seconds_between(before, after))
    return [Text(""), make_table(RATE_COLUMNS, rows, width)] if rows else []


def _title(before: dict[str, Any], after: dict[str, Any], width: int) -> Text:
    from rich.text import Text

    state = str(after["state"])
    left = Text.assemble(("topicd ", "bold"), (state, STATE_STYLE.get(state, "red")))
    left.append(f"  up {human.duration(after['uptime_s'])}  run {after['run']}")
    right = f"last {human.duration(seconds_between(before, after))}  p/t/c, q quits"
    instance = f"  {after['instance']}"
    if left.cell_len + len(instance) + 2 + len(right) <= width:  # where it is narrow the keys are of more use
        left.append(instance)
    space = width - left.cell_len - len(right)
    if space >= 2:
        left.append(" " * space + right, style="bright_black")
    left.truncate(width, overflow="ellipsis")
    return left


def _figures(found: Totals, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    figures = [
        ("records", f"{human.short_count(found.records_s)}/s"),
        ("appends", f"{human.short_count(found.appends_s)}/s"),
        ("written", f"{human.size(found.bytes_s)}/s"),
        ("groups", f"{human.short_count(found.groups_s)}/s"),
        ("syncs", f"{human.short_count(found.syncs_s)}/s"),
        ("sync p50", latency(found.sync_p50_s)),
        ("sync p99", latency(found.sync_p99_s)),
        ("in flight", human.size(found.in_flight_bytes)),
        ("topics", human.count(found.topics)),
        ("conns", human.count(found.connections)),
        ("stored", human.size(found.stored_bytes)),
        ("tail", human.size(found.tail_bytes)),
        ("evicted", f"{human.short_count(found.evicted_s)}/s"),
        ("lagged", f"{human.short_count(found.lagged_s)}/s"),
    ]
    across = _across(figures, width)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(across):
        grid.add_column(style="bright_black", no_wrap=True)
        grid.add_column(justify="right", no_wrap=True, min_width=10 if width >= 80 else None)
    for at in range(0, len(figures), across):
        cells = [Text(cell) for pair in figures[at : at + across] for cell in pair]
        grid.add_row(*cells)
    return grid


def _across(figures: list[tuple[str, str]], width: int) -> int:
    """So many pairs beside each other that no number is cut."""
    for across in (5, 3, 2):
        columns = [figures[at::across] for at in range(across)]
        needed = sum(
            max(len(name) for name, _ in column) + max(10, *(len(text) for _, text in column)) + 4 for column in columns
        )
        if needed <= width + 2 and (across < 5 or width >= 120):
            return across
    return 1


def _topics(before: dict[str, Any], after: dict[str, Any], width: int) -> list[RenderableType]:
    """Those that grow fastest, with the priority that says who is served first."""
    from rich.text import Text

    rows = topic_rates(before, after)[:TOPICS_SHOWN]
    if not rows:
        return []
    return [Text(""), make_table(TOPIC_COLUMNS, [_topic_row(topic) for topic in rows], width)]


def _all_topics(before: dict[str, Any], after: dict[str, Any], width: int, most: int) -> list[RenderableType]:
    found = topic_rates(before, after)
    cells = [_topic_row(topic) for topic in found[:most]]
    return [
        *([make_table(TOPIC_COLUMNS, cells, width)] if cells else []),
        *_left_out(max(_sum(after, "topics"), len(found)), len(cells), "topics", "topicctl topic list"),
    ]


def _all_consumers(before: dict[str, Any], after: dict[str, Any], width: int, most: int) -> list[RenderableType]:
    found = consumer_rates(before, after)
    cells = [_consumer_row(one) for one in found[:most]]
    rest = _left_out(max(_sum(after, "consumers"), len(found)), len(cells), "named consumers", "topicctl consumer list")
    return [*([make_table(CONSUMER_COLUMNS, cells, width)] if cells else []), *rest]


def _sum(status: dict[str, Any], key: str) -> int:
    return sum((process.get("stats") or {}).get(key, 0) for process in status["processes"])


def _left_out(number: int, shown: int, what: str, all_of_them: str) -> list[RenderableType]:
    from rich.text import Text

    if not number:
        return [Text(f"no {what}", style="bright_black")]
    if number == shown:
        return []
    return [Text(f"{shown} of {human.count(number)} {what}; all: {all_of_them}", style="bright_black")]


def _topic_row(topic: TopicRates) -> list[str]:
    return [
        topic.name,
        human.short_count(topic.records_s),
        human.count(topic.lag),
        human.count(topic.head_seq),
        human.count(topic.records),
        human.size(topic.bytes),
        f"{topic.priority:,.0f}",
    ]


def _consumer_row(one: ConsumerRates) -> list[str]:
    done_in = one.done_in_s
    return [
        one.consumer,
        one.topic,
        human.short_count(one.acked_s),
        human.count(one.lag),
        f"{'+' if one.lag_s > 0 else ''}{human.short_count(one.lag_s)}",
        "-" if done_in is None else human.duration(done_in) if done_in else "",
        human.count(one.acked_seq),
    ]


def _row(p: ProcessRates) -> list[str]:
    return [
        p.name,
        p.state,
        str(p.pid or "-"),
        f"{p.cpu:.0f}%" if p.pid else "-",
        human.size(p.rss) if p.pid else "-",
        "" if p.records_s is None else human.short_count(p.records_s),
        "" if p.bytes_s is None else human.size(p.bytes_s),
        "" if p.ring is None else f"{bar(p.ring)} {100 * p.ring:3.0f}%",
        "" if p.syncs_s is None else human.short_count(p.syncs_s),
        "" if p.syncs_s is None else latency(p.sync_p99_s),
        "" if p.connections is None else human.count(p.connections),
        "" if p.lag_ms is None else f"{p.lag_ms:.1f} ms",
        human.duration(p.uptime_s) if p.pid else "-",
        str(p.restarts),
    ]


def bar(share: float, cells: int = BAR_CELLS) -> str:
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(cells, "·")


def latency(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds == float("inf"):
        return ">102 ms"
    return f"≤{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"≤{seconds * 1000:.0f} ms"
