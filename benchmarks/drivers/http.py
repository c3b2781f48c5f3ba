"""The HTTP face: writes, batches, reads, events, queues, and what a request costs the gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import procs
from benchmarks.bars import HTTP_64, HTTP_ONE, NATIVE, SSE, SSE_NATIVE_WRITER
from benchmarks.drivers import append, push, rawhttp
from benchmarks.peers.base import Driver
from benchmarks.peers.http import Http
from topicd.bench.load import Figures, Load
from topicd.bench.stats import latency
from topicd.bench.work import MIN_SAMPLES, check, clock_ns
from topicd.bench.worker import READY, Worker

WORKERS = 50
CLAIM = 8
WARM_UP = 10


def drivers(test: str, load: Load) -> Mapping[str, Driver]:
    if test == "http.write":
        return {HTTP_ONE: partial(writes, 1), HTTP_64: partial(writes, load.in_flight), NATIVE: append.single}
    if test == "http.batch":
        return {HTTP_ONE: partial(batches, 1), "4 connections": partial(batches, 4)}
    if test == "http.diff":
        return {HTTP_ONE: partial(diffs, 1), "4 connections": partial(diffs, 4)}
    if test == "http.push":
        return {SSE: events, SSE_NATIVE_WRITER: partial(events, native=True), NATIVE: push.push}
    if test == "http.fanout":
        return {f"{n:,} watchers": partial(fan_out, n) for n in load.steps}
    return {"": claims} if test == "http.claims" else {}


def one_record(size: int) -> dict[str, Any]:
    """As JSON it has `size` bytes."""
    return {"data": "x" * (size - 2)}


def measured(peer: Http, target: Callable[..., Any], *args: Any, each: int = 1) -> Figures:
    """What the worker found, with the CPU that a record cost: of the gateway, and of all processes of the daemon."""
    with Worker(target, peer.port, *args) as worker:
        worker.wait_ready()
        gateway, everybody = [peer.gateway_pid], peer.pids()
        before = procs.cpu_seconds(gateway), procs.cpu_seconds(everybody)
        worker.go()
        found: Figures = worker.result()
        after = procs.cpu_seconds(gateway), procs.cpu_seconds(everybody)
    records = found.pop("requests") * each
    found["rate"] *= each
    found["cpu"], found["cpu_all"] = (1e6 * (b - a) / records for a, b in zip(before, after, strict=True))
    return found


def writes(connections: int, peer: Http, load: Load) -> Figures:
    with peer.topics(1, load.durable) as [topic]:
        sent = rawhttp.request("POST", f"/v0/topics/{topic}", {"records": [one_record(load.size)]})
        if connections == 1:
            return measured(peer, rawhttp.one_by_one, sent, load.seconds, MIN_SAMPLES)
        return measured(peer, rawhttp.side_by_side, [sent] * connections, load.seconds)


def batches(connections: int, peer: Http, load: Load) -> Figures:
    """Without the list of seqs, which nobody who writes a thousand at a time wants to read."""
    with peer.topics(1, load.durable) as [topic]:
        body = {"records": [one_record(load.size)] * load.batch}
        sent = rawhttp.request("POST", f"/v0/topics/{topic}?return_seqs=false", body)
        return measured(peer, rawhttp.side_by_side, [sent] * connections, load.seconds, each=load.batch)


def diffs(connections: int, peer: Http, load: Load) -> Figures:
    topic = peer.kept(f"diff-{load.size}", partial(_filled, peer, load))
    places = range(0, load.records - load.batch, max(1, (load.records - load.batch) // connections))
    sent = [
        rawhttp.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": n, "limit": load.batch})
        for n in places[:connections]
    ]
    return measured(peer, rawhttp.side_by_side, sent, load.seconds, each=load.batch)


def _filled(peer: Http, load: Load) -> str:
    name = "data.http"
    peer.make_topics([name], False)
    batch = [json.dumps("y" * (load.size - 2)).encode()] * load.batch
    with peer.connect(False) as session:
        for _ in range(load.records // load.batch):
            session.append_many(name, batch)
        check(name, session.count(name), load.records)
    return name


def _stamped(size: int) -> bytes:
    return b'"%020d%b"' % (clock_ns(), b"z" * max(0, size - 22))


def _publisher(peer: Http, topic: str, size: int, native: bool) -> Callable[[], object]:
    if native:
        session = peer.address(False).session()
        return lambda: session.append(topic, _stamped(size))
    sock = rawhttp.connected(peer.port)
    path = f"/v0/topics/{topic}"
    return lambda: rawhttp.exchange(sock, rawhttp.request("POST", path, b'{"records":[{"data":%b}]}' % _stamped(size)))


def _sessions(peer: Http, topic: str, count: int) -> list[str]:
    asked = rawhttp.request("POST", "/v0/watch", {"topics": {topic: {"tail": True}}})
    with rawhttp.connected(peer.port) as sock:
        return [json.loads(rawhttp.exchange(sock, asked))["stream_url"] for _ in range(count)]


def events(peer: Http, load: Load, native: bool = False) -> Figures:
    """One writer, one stream, one record every 2 ms: latency without any queueing."""
    count = load.records + WARM_UP
    with peer.topics(1, load.durable) as [topic]:
        publish = _publisher(peer, topic, load.size, native)
        with Worker(rawhttp.watchers, peer.port, _sessions(peer, topic, 1), count) as worker:
            worker.wait_ready()
            for _ in range(count):
                publish()
                time.sleep(push.PACE_S)
            for _ in range(count):
                worker.receive()
            ages = worker.result()
    return latency([mine[0] for mine in ages[WARM_UP:]])


def fan_out(watching: int, peer: Http, load: Load) -> Figures:
    """A pulse goes out when every watcher has the one before."""
    pulses = max(10, min(load.records, load.records * 20 // watching))
    with peer.topics(1, load.durable) as [topic]:
        publish = _publisher(peer, topic, load.size, native=False)
        gateway = [peer.gateway_pid]
        with Worker(rawhttp.watchers, peer.port, _sessions(peer, topic, watching), pulses) as worker:
            worker.wait_ready()
            before = procs.cpu_seconds(gateway)
            for _ in range(pulses):
                publish()
                worker.receive()
            cpu = procs.cpu_seconds(gateway) - before
            ages: list[list[int]] = worker.result()[3:]
    everyone = [age for mine in ages for age in mine]
    last = latency([max(mine) for mine in ages])["p50"]
    return {**latency(everyone), "last_p50": last, "cpu": 1e6 * cpu / (pulses * watching)}


def claims(peer: Http, load: Load) -> Figures:
    """WORKERS workers on a connection each: claim CLAIM jobs, acknowledge them, again."""
    with peer.queue(load.durable) as queue:
        with peer.client() as client:
            client.queue(queue.name).put_many([json.dumps("j" * (load.size - 2)).encode()] * load.records)
        gateway = [peer.gateway_pid]
        with Worker(_work, peer.port, queue.name, load.records) as worker:
            worker.wait_ready()
            before = procs.cpu_seconds(gateway)
            worker.go()
            samples, seconds = worker.result()
            cpu = procs.cpu_seconds(gateway) - before
    return {"rate": load.records / seconds, **latency(samples), "cpu": 1e6 * cpu / load.records}


def _work(link: Connection, port: int, queue: str, jobs: int) -> tuple[list[int], float]:
    """(times of the claims, seconds until every job is done)."""
    import selectors
    import socket

    socks: dict[socket.socket, int] = {rawhttp.connected(port): n for n in range(WORKERS)}
    path = f"/v0/topics/{queue}"
    ask = [rawhttp.request("POST", f"{path}/claim", {"node": f"w{n}", "max": CLAIM}) for n in range(WORKERS)]
    buffers = {sock: bytearray() for sock in socks}
    began: dict[socket.socket, int] = {}
    samples: list[int] = []
    done = 0
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        link.send(READY)
        link.recv()
        start = time.perf_counter()
        for sock, n in socks.items():
            began[sock] = clock_ns()
            sock.sendall(ask[n])
        while done < jobs:
            ready = selector.select(rawhttp.WAIT_S)
            if not ready:
                raise TimeoutError(f"{done} of {jobs} jobs are done, and nothing comes")
            for key, _ in ready:
                sock = key.fileobj  # type: ignore[assignment]
                data = buffers[sock]
                data += sock.recv(1 << 18)
                size = rawhttp.answer_end(data)
                if size is None or len(data) < size:
                    continue
                found = json.loads(data[data.index(b"\r\n\r\n") :])
                data.clear()
                if "claimed" in found:
                    samples.append(clock_ns() - began[sock])
                    if seqs := [job["$seq"] for job in found["claimed"]]:
                        body = {"node": f"w{socks[sock]}", "seqs": seqs}
                        sock.sendall(rawhttp.request("POST", f"{path}/ack", body))
                    continue
                done += found["acked"]
                began[sock] = clock_ns()
                sock.sendall(ask[socks[sock]])
        seconds = time.perf_counter() - start
    for sock in socks:
        sock.close()
    return samples, seconds
