from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice

import topicd
from tests.support.fakeserver import FakeServer
from topicd.errors import InvalidRequest


def in_child(work: Callable[[], bool]) -> bool:
    """What the function returns in a forked process; False if it raises."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except InvalidRequest:
        return True
    return False


def test_parent_and_child_go_on_with_the_same_client(client: topicd.Client, server: FakeServer) -> None:
    client.publish("t", b"1")

    def work() -> bool:
        return client.publish("t", b"2") == 2 and client.fetch("t").payloads() == [b"1", b"2"]

    assert in_child(work)
    assert client.publish("t", b"3") == 3
    assert server.payloads("t") == [b"1", b"2", b"3"]
    used = {request.body[8:16] for request in server.requests if request.op == 0x20}
    assert len(used) == 2


def test_producers_pipelines_and_watches_stay_with_the_parent(client: topicd.Client, server: FakeServer) -> None:
    producer = client.producer(linger=0)
    pipe = client.pipeline("t")
    watch = client.watch("t")
    producer.send("t", b"1").result(5)
    pipe.append(b"2")
    assert pipe.drain() == [2]

    def work() -> bool:
        return refuses(lambda: producer.send("t", b"x")) and refuses(lambda: pipe.append(b"x")) and list(watch) == []

    assert in_child(work)
    assert producer.send("t", b"3").result(5) == 3
    pipe.append(b"4")
    assert pipe.drain() == [4]
    seen = [event.data for event in islice(watch, 4) if isinstance(event, topicd.Record)]
    assert seen == [b"1", b"2", b"3", b"4"]
    producer.close()
    pipe.close()
    watch.close()
