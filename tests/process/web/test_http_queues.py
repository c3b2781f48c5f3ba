"""Section 13 of the HTTP contract: queues."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.support.daemon import wait_until
from tests.support.web import Answer, Web


@pytest.fixture
def queue(web: Web, topic: str) -> str:
    assert web("PUT", f"/v0/topics/{topic}", {"type": "queue"}).status == 201
    return topic


def ask(web: Web, queue: str, verb: str, **body: Any) -> Answer:
    return web("POST", f"/v0/topics/{queue}/{verb}", body)


def claim(web: Web, queue: str, node: str = "w", **body: Any) -> list[Any]:
    found = ask(web, queue, "claim", node=node, **body).body
    assert found["count"] == len(found["claimed"])
    claimed: list[Any] = found["claimed"]
    return claimed


def counters(web: Web, queue: str) -> tuple[int, int]:
    found = web("GET", f"/v0/topics/{queue}").body["queue"]
    return found["ready"], found["in_flight"]


def test_a_job_is_claimed_and_finished(web: Web, queue: str) -> None:
    web(
        "POST", f"/v0/topics/{queue}", {"records": [{"data": {"file": 9}, "tag": "png", "meta": {"m": 1}}, {"data": 2}]}
    )
    now = time.time() * 1000
    answer = ask(web, queue, "claim", node="w1", max=5, lease_ms=60_000, seqs=[1])
    body = answer.body
    assert (answer.status, body["topic"], body["count"], body["ready"]) == (200, queue, 2, 0)
    first, second = body["claimed"]
    assert set(first) == {"$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"}
    assert set(second) == {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert re.fullmatch("lease_[0-9a-f]+", first["lease_id"])
    assert (first["$seq"], first["deliveries"], first["data"], second["$seq"]) == (1, 1, {"file": 9}, 2)
    assert 55_000 < first["deadline"] - now < 65_000
    assert counters(web, queue) == (0, 2)
    done = ask(web, queue, "ack", node="w1", seqs=[1, 2, 3]).body
    assert {name: done[name] for name in ("acked", "skipped", "ready", "in_flight")} == {
        "acked": 2,
        "skipped": [3],
        "ready": 0,
        "in_flight": 0,
    }
    again = ask(web, queue, "ack", node="w1", seqs=[1]).body
    assert (again["acked"], again["skipped"]) == (0, [1])
    assert web("GET", f"/v0/topics/{queue}").body["count"] == 0
    assert ask(web, queue, "claim", node="w1").body["claimed"] == []


def test_jobs_given_back_come_first_and_count(web: Web, queue: str) -> None:
    web.write(queue, 1, 2, 3)
    assert [job["$seq"] for job in claim(web, queue, max=2)] == [1, 2]
    back = ask(web, queue, "nack", node="w", seqs=[2, 9]).body
    assert (back["nacked"], back["skipped"], back["ready"], back["in_flight"]) == (1, [9], 2, 1)
    (job,) = claim(web, queue)
    assert (job["$seq"], job["deliveries"]) == (2, 2)
    ask(web, queue, "nack", node="w", seqs=[2], delay_ms=60_000)
    assert counters(web, queue) == (1, 1)


def test_extend_sets_the_deadline(web: Web, queue: str) -> None:
    web.write(queue, 1)
    (job,) = claim(web, queue, lease_ms=600_000)
    kept = ask(web, queue, "extend", node="w", seqs=[1, 5], lease_ms=1_000).body
    assert (kept["extended"], kept["skipped"], set(kept["deadlines"])) == (1, [5], {"1"})
    assert kept["deadlines"]["1"] < job["deadline"]
    wait_until(lambda: counters(web, queue) == (1, 0), "the lease to expire")
    gone = ask(web, queue, "extend", node="w", seqs=[1], lease_ms=1_000).body
    assert (gone["extended"], gone["skipped"], gone["deadlines"]) == (0, [1], {})


def test_a_stale_lease_and_another_node_are_skipped(web: Web, queue: str) -> None:
    web.write(queue, 1)
    (first,) = claim(web, queue)
    assert ask(web, queue, "ack", node="other", seqs=[1]).body["skipped"] == [1]
    ask(web, queue, "nack", node="w", seqs=[1])
    (second,) = claim(web, queue)
    for stale in (first["lease_id"], "lease_0", "lease_" + "f" * 40):
        assert ask(web, queue, "ack", node="w", seqs=[1], lease_ids=[stale]).body["skipped"] == [1]
    for verb, more in (("ack", {}), ("nack", {}), ("extend", {"lease_ms": 5_000})):
        stranger = ask(web, queue, verb, node="x", seqs=[1], lease_ids=[second["lease_id"]], **more)
        assert stranger.body["skipped"] == [1], verb
    assert ask(web, queue, "ack", node="w", seqs=[1], lease_ids=[second["lease_id"]]).body["acked"] == 1


@pytest.mark.parametrize(
    ("verb", "body", "status", "code"),
    [
        ("claim", {}, 400, "invalid_request"),
        ("claim", {"node": ""}, 400, "invalid_request"),
        ("claim", {"node": "x" * 129}, 400, "invalid_request"),
        ("claim", {"node": "w", "max": -1}, 400, "invalid_request"),
        ("ack", {"node": "w"}, 400, "invalid_request"),
        ("ack", {"seqs": [1]}, 400, "invalid_request"),
        ("ack", {"node": "w", "seqs": ["1"]}, 400, "invalid_request"),
        ("ack", {"node": "w", "seqs": [1, 2], "lease_ids": [""]}, 400, "invalid_request"),
        ("ack", {"node": "w", "seqs": [1], "lease_ids": ["nonsense"]}, 400, "invalid_request"),
        ("ack", {"node": "w", "seqs": [1] * 1001}, 400, "batch_too_large"),
        ("nack", {"node": "w", "seqs": [1] * 1001}, 400, "batch_too_large"),
        ("extend", {"node": "w", "seqs": [1] * 1001, "lease_ms": 1}, 400, "batch_too_large"),
        ("extend", {"node": "w", "seqs": [1]}, 400, "invalid_request"),
    ],
)
def test_what_is_wrong_is_refused(web: Web, queue: str, verb: str, body: Any, status: int, code: str) -> None:
    answer = ask(web, queue, verb, **body)
    assert (answer.status, answer.code) == (status, code)
    if code == "batch_too_large":
        assert answer.error["detail"]["max"] == 1000


def test_logs_and_absent_topics(web: Web, topic: str) -> None:
    bodies: dict[str, Any] = {
        "claim": {"node": "w"},
        "ack": {"node": "w", "seqs": [1]},
        "nack": {"node": "w", "seqs": [1]},
        "extend": {"node": "w", "seqs": [1], "lease_ms": 1},
    }
    for verb, body in bodies.items():
        answer = ask(web, topic, verb, **body)
        assert (answer.status, answer.code) == (404, "topic_not_found")
    assert web.events(f"/v0/topics/{topic}/work?node=w").refused().code == "topic_not_found"
    web.write(topic, 1)
    for verb, body in bodies.items():
        answer = ask(web, topic, verb, **body)
        assert (answer.status, answer.code, answer.error["detail"]) == (409, "not_a_queue", {"topic": topic})
    assert web.events(f"/v0/topics/{topic}/work?node=w").refused().code == "not_a_queue"


def test_nothing_to_do_is_a_normal_answer(web: Web, queue: str) -> None:
    assert ask(web, queue, "ack", node="w", seqs=[]).body["acked"] == 0
    back = ask(web, queue, "nack", node="w", seqs=[]).body
    assert (back["nacked"], back["skipped"], back["ready"], back["in_flight"]) == (0, [], 0, 0)
    assert ask(web, queue, "extend", node="w", seqs=[], lease_ms=1).body["deadlines"] == {}


def test_claims_in_one_window_share_what_there_is(web1: Web, topic: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    web1("PUT", f"/v0/topics/{topic}", {"type": "queue", "claim_jitter_ms": 500})
    web1.write(topic, *range(50))
    with ThreadPoolExecutor(10) as pool:
        clients = [Web(web1.daemon) for _ in range(10)]
        found = list(pool.map(lambda n: len(claim(clients[n], topic, f"w{n}", max=10)), range(10)))
        for client in clients:
            client.close()
    assert found == [5] * 10


# ---- push ----


def test_jobs_are_pushed_as_room_comes_and_released_at_the_end(web: Web, queue: str) -> None:
    web.write(queue, 1, {"a": [2, 3]}, 3)
    with web.events(f"/v0/topics/{queue}/work?node=w1&max=2") as events:
        head = events.answer.headers
        assert (head["content-type"], head["x-accel-buffering"]) == ("text/event-stream; charset=utf-8", "no")
        first, beat = events.raw(), events.raw()
        assert first is not None and first.text == "retry: 2000"
        assert beat is not None and beat.text.startswith(": hb ")
        jobs = [events.next(), events.next()]
        assert [(one.name, one.id) for one in jobs] == [("job", "1"), ("job", "2")]
        assert list(jobs[0].data) == ["topic", "$seq", "lease_id", "deadline", "$ts", "deliveries", "data"]
        assert jobs[1].text.endswith('"data":{"a":[2,3]}}')
        assert events.quiet()
        assert counters(web, queue) == (1, 2)
        assert ask(web, queue, "ack", node="w1", seqs=[1]).body["acked"] == 1
        assert events.next(2.0).id == "3"
        web.write(queue, 4)
        assert events.quiet()
        ask(web, queue, "ack", node="w1", seqs=[2])
        assert events.next(2.0).id == "4"
    wait_until(lambda: counters(web, queue) == (2, 0), "the jobs to be released")
    assert [job["deliveries"] for job in claim(web, queue, max=5)] == [2, 2]


def test_what_a_claim_holds_is_not_released_with_a_stream_of_the_same_name(web: Web, queue: str) -> None:
    web.write(queue, 1, 2)
    claim(web, queue, "w1")
    with web.events(f"/v0/topics/{queue}/work?node=w1") as events:
        assert events.next().id == "2"
    wait_until(lambda: counters(web, queue) == (1, 1), "the pushed job to be released")


def test_streams_of_jobs_that_are_refused(web: Web, queue: str) -> None:
    path = f"/v0/topics/{queue}/work"
    refused = web.events(path, {"Accept": "application/json"}).refused()
    assert (refused.status, refused.code) == (406, "not_acceptable")
    for query in ("", "?node=", "?node=" + "x" * 129):
        refused = web.events(path + query).refused()
        assert (refused.status, refused.code) == (400, "invalid_request")


def test_a_queue_that_is_deleted_ends_its_streams(web: Web, queue: str) -> None:
    web.write(queue, 1)
    with web.events(f"/v0/topics/{queue}/work?node=w1") as events:
        assert events.next().name == "job"
        web("DELETE", f"/v0/topics/{queue}")
        last = events.next()
        assert (last.name, last.id, last.data["code"]) == ("error", "", 409)
        assert events.raw() is None
