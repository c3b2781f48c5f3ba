"""Restarts and stops as clients of HTTP see them: readiness, last frames, streams that go on."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import psutil

from tests.process.conftest import SETTINGS
from tests.process.procstat import cpu_seconds
from tests.process.web.conftest import ENVIRON
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web

BACK_CPU_S = 0.15  # of a gateway that comes back; to load its code takes twice as much


def reached(acked: dict[str, int], goal: dict[str, int]) -> bool:
    return all(acked[name] > goal[name] for name in goal)


def test_streams_go_on_over_deaths_of_shards_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with Daemon(tmp_path, env=ENVIRON, **SETTINGS) as daemon:
        web = Web(daemon)
        names = [f"t{n}" for n in range(4)]
        for name in names:
            web.write(name, [name, 0])
        stop, acked = threading.Event(), dict.fromkeys(names, 1)
        statuses: set[int] = set()

        def write(name: str) -> None:
            client = Web(daemon)
            while not stop.is_set():
                answer = client(
                    "POST",
                    f"/v0/topics/{name}",
                    {"records": [{"data": [name, acked[name]]}], "idempotency_key": str(acked[name])},
                )
                statuses.add(answer.status)
                if answer.status == 200:
                    acked[name] += 1
            client.close()

        with web.watch({name: {} for name in names}) as events, web.socket() as ws:
            ws.send({"op": "subscribe", "topics": {name: {} for name in names}})
            writers = [threading.Thread(target=write, args=(name,)) for name in names]
            for writer in writers:
                writer.start()
            for victim in ("dlv-00", "wal-00", "dlv-01"):
                goal = {name: count + 3 for name, count in acked.items()}
                daemon.wait_replaced(victim, daemon.kill(victim, signal.SIGKILL))
                wait_until(partial(reached, acked, goal), "writes to go on")
            stop.set()
            for writer in writers:
                writer.join(60)
            seen: dict[str, list[int]] = {name: [] for name in names}
            while any(len(seen[name]) < acked[name] for name in names):
                event = events.next()
                assert event.name in ("record", "caught-up", "error"), event
                for record in event.data.get("records", []) if event.name == "record" else []:
                    seen[record["data"][0]].append(record["data"][1])
            over_ws: dict[str, list[int]] = {name: [] for name in names}
            while any(len(over_ws[name]) < acked[name] for name in names):
                for record in ws.next().get("records", []):
                    over_ws[record["data"][0]].append(record["data"][1])
        expected = {name: list(range(acked[name])) for name in names}
        assert seen == expected
        assert over_ws == expected
        assert statuses <= {200, 429, 503}
        web.close()


def test_a_stop_tells_streams_and_sockets(tmp_path: Path) -> None:
    with Daemon(tmp_path, env=ENVIRON, **SETTINGS) as daemon:
        web, two = Web(daemon), Web(daemon, "2")
        web("PUT", "/v0/topics/q", {"type": "queue"})
        streams = [each.watch({"q": {}}) for each in (web, two)] + [web.events("/v0/topics/q/work?node=w")]
        assert [stream.next().name for stream in streams[:2]] == ["caught-up"] * 2
        ws = web.socket()
        stopped = threading.Thread(target=daemon.stop)
        stopped.start()
        for stream in streams:
            last = stream.next()
            assert (last.name, last.id, last.data) == ("error", "", {"code": 503, "error": "server_shutting_down"})
            assert stream.raw() is None
        error = ws.next()
        assert (error["op"], error["code"]) == ("error", "server_shutting_down")
        assert ws.until_closed() == 1001
        stopped.join(60)


def test_a_shard_that_is_away_is_503_with_a_time_to_come_back(tmp_path: Path) -> None:
    with Daemon(tmp_path, env=ENVIRON, **{**SETTINGS, "heartbeat_timeout_s": 60}) as daemon:
        web = Web(daemon)
        web.write("a", 1)
        stopped = [daemon.kill(name, signal.SIGSTOP) for name in ("dlv-00", "dlv-01")]
        try:
            answer = web("GET", "/v0/topics/a")
            assert (answer.status, answer.code) == (503, "not_ready")
            assert int(answer.headers["retry-after"]) >= 1
            assert web("GET", "/healthz").status == 200
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        web.close()


def test_a_gateway_that_was_killed_comes_back_without_loading_its_code(tmp_path: Path) -> None:
    with Daemon(tmp_path, env=ENVIRON, **SETTINGS) as daemon:
        [template] = [child for child in daemon.children() if child.name() == "topicd template"]
        wait_until(lambda: _rests(template), "the template to have loaded what it may be asked for")
        web = Web(daemon)
        daemon.wait_replaced("gateway-00", daemon.kill("gateway-00", signal.SIGKILL))
        wait_until(lambda: web("GET", "/readyz").status == 200, "the gateway to be ready")
        assert cpu_seconds([daemon.pids()["gateway-00"]]) < BACK_CPU_S
        assert web.write("a", 1)["created"]


def _rests(process: psutil.Process) -> bool:
    """It waits for its next order: not for the processor, and not for the disk."""
    mapped = {Path(row.path).name for row in process.memory_maps()}
    return process.status() == psutil.STATUS_SLEEPING and any(name.startswith("parser.") for name in mapped)
