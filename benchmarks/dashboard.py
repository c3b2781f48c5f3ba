"""What open pages of the dashboard cost: `python -m benchmarks.dashboard --topics 10000 --pages 10`.

The processor time of all processes of a daemon at rest, without a page before and after, and in between with pages that
hold the stream and ask what an open view asks: Now (the stream only), and Topics (a page of the list every 5 s).
The rise is against the mean of the two stretches around it: a daemon goes on tidying up long after the last write.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

import topicd
from benchmarks.procs import start_server, stop, tree

_REFRESH_S = 5.0


class OpenPage(threading.Thread):
    def __init__(self, port: int, view: str, done: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._view = view
        self._done = done
        self.ticks = 0

    def run(self) -> None:
        stream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        stream.request("GET", "/dashboard/stream")
        answer = stream.getresponse()
        asked_at = 0.0
        while not self._done.is_set():
            line = answer.readline()
            self.ticks += line.startswith(b"event: tick")
            if self._view == "topics" and time.monotonic() - asked_at > _REFRESH_S:
                asked_at = time.monotonic()
                self._ask("/dashboard/topics?page_size=50")
        stream.close()

    def _ask(self, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()


def used_s(pid: int) -> dict[str, float]:
    found = {}
    for one in tree(pid):
        process = psutil.Process(one)
        times = process.cpu_times()
        found[str(one)] = times.user + times.system
    return found


def share(pid: int, seconds: float) -> float:
    """Of one core, in percent."""
    before, began = used_s(pid), time.monotonic()
    time.sleep(seconds)
    after, took = used_s(pid), time.monotonic() - began
    return 100 * sum(after[one] - before.get(one, 0.0) for one in after) / took


def measured(root: Path, topics: int, pages: int, seconds: float) -> dict[str, float]:
    run = root / "run"
    where = [f"--data-dir={root / 'data'}", f"--run-dir={run}", "--http", "--http-listen=127.0.0.1:0"]
    server = start_server([sys.executable, "-m", "topicd", *where], root / "log")
    try:
        with topicd.connect(run / "topicd.sock", timeout=60, wait=30) as client:
            for number in range(topics):
                client.publish(f"bench.{number:06d}", b"x")
        port = int((run / "http.port").read_text())
        time.sleep(5)  # checkpoints of what was written
        alone = share(server.pid, seconds)
        found = {"topics": float(topics), "pages": float(pages), "alone_percent": alone}
        for view in ("now", "topics"):
            done = threading.Event()
            opened = [OpenPage(port, view, done) for _ in range(pages)]
            for page in opened:
                page.start()
            time.sleep(2)
            found[f"{view}_percent"] = share(server.pid, seconds)
            done.set()
            for page in opened:
                page.join(10)
            if min(page.ticks for page in opened) == 0:
                raise SystemExit("a page was told nothing")
            before, alone = alone, share(server.pid, seconds)
            found[f"{view}_rise"] = found[f"{view}_percent"] - (before + alone) / 2
        return found
    finally:
        stop(server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        found = measured(Path(root), given.topics, given.pages, given.seconds)
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    main()
