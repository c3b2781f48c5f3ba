"""A queue through the blocking face, against a daemon that does as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgpack
import pytest

import topicd
from tests.support.fakequeue import FakeQueue
from tests.support.fakeserver import CUT, MUTE, FakeServer, Request
from topicd._native import guard
from topicd.client.blocking import queue as queue_module
from topicd.client.blocking.leases import LeaseKeeper
from topicd.errors import (
    BatchTooLarge,
    ConnectionLost,
    Forbidden,
    InvalidRequest,
    NotAQueue,
    StorageFailed,
    TopicNotFound,
)
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.retry import Tempo


def queue_of(server: FakeServer, name: str = "q") -> FakeQueue:
    found: FakeQueue = server.topics[name].queue
    return found


@pytest.fixture(params=["short", "long"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The C core takes the next job in one call; without it that is several steps."""
    if request.param == "long":
        monkeypatch.setattr(queue_module, "claim_next", None)
    elif queue_module.claim_next is None:
        pytest.skip("there is no C core")
    return str(request.param)


def options_sent(server: FakeServer) -> object:
    body = next(request.body for request in reversed(server.requests) if request.op == Op.APPEND)
    length = int.from_bytes(body[28:32], "little")
    return msgpack.unpackb(body[32 : 32 + length])


# ---- put ----


def test_options_travel_as_they_are_declared(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    put = jobs.put({"file": 9}, delay_ms=5_000, priority=7, unique="file:9", group="tenant-4")
    assert (put.seq, put.new) == (1, True)
    options = {"delay_ms": 5000, "priority": 7, "group": "tenant-4", "unique": "file:9"}
    assert options_sent(server) == [[0, 1, options]]
    assert jobs.put_many([b"a", b"b"], ready_at=datetime(2030, 1, 1, tzinfo=UTC)).count == 2
    assert options_sent(server) == [[0, 2, {"ready_at": 1893456000000}]]


def test_a_second_job_with_the_key_is_told_of_the_first(client: topicd.Client) -> None:
    jobs = client.queue("q")
    first = jobs.put(b"a", unique="k")
    assert jobs.put(b"b", unique="k") == (first.seq, False)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 10},
        {"delay_ms": -1},
        {"delay_ms": 1, "ready_at": 1},
        {"until": "start"},
        {"unique": ""},
        {"unique": "x" * 257},
        {"unique": "k", "until": "time"},
        {"unique": "k", "unique_ms": 5},
        {"group": "g" * 129},
        {"unique": "k", "on_conflict": "fight"},
    ],
)
def test_options_that_mean_nothing_are_refused_before_a_byte_is_sent(
    client: topicd.Client, server: FakeServer, options: dict[str, object]
) -> None:
    jobs = client.queue("q")
    with pytest.raises(InvalidRequest):
        jobs.put(b"a", **options)  # type: ignore[arg-type]
    assert not server.topics


def test_a_log_is_not_taken_for_a_queue(client: topicd.Client, server: FakeServer) -> None:
    client.publish("log", b"x")
    jobs = client.queue("log")
    for use in (lambda: jobs.put(b"a"), jobs.claim, jobs.stats, lambda: next(jobs.work())):
        with pytest.raises(NotAQueue):
            use()
    assert server.payloads("log") == [b"x"]


def test_a_long_list_is_put_in_batches_with_its_options(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    assert jobs.put_many([b"x"] * 10_001, priority=2).count == 10_001
    assert queue_of(server).options[10_001] == {"priority": 2}
    assert client.queue("p").put_many([b"x"] * 10_001).count == 10_001
    assert server.topics["p"].config.type == "queue"


# ---- claim ----


def test_jobs_are_claimed_worked_on_and_finished(client: topicd.Client) -> None:
    jobs = client.queue("q", node="me")
    jobs.put({"n": 1}, tag="t", meta={"m": 1})
    (job,) = jobs.claim(10)
    assert (job.json(), job.tag, job.meta, job.seq, job.deliveries, job.queue) == ({"n": 1}, "t", {"m": 1}, 1, 1, "q")
    assert job.lease
    assert job.deadline
    assert jobs.stats().in_flight == 1
    assert job.done() is True
    assert (jobs.stats().acked, len(jobs.claim())) == (1, 0)
    with pytest.raises(InvalidRequest, match="already"):
        job.done()


def test_many_are_finished_with_one_request(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b", b"c"])
    found = jobs.claim(2)
    assert (found.payloads(), len(found), found.ready) == ([b"a", b"b"], 2, 1)
    assert found.done().acked == 2
    assert found.done().skipped == [1, 2]
    assert [request.op for request in server.requests].count(Op.ACK) == 2


def test_a_claim_finishes_jobs_and_takes_the_next_with_one_request(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q", node="me")
    jobs.put_many([b"a", b"b", b"c", b"d"])
    (a,) = jobs.claim()
    found = jobs.claim(2, done=a)
    assert (found.payloads(), found.finished.acked, found.finished.skipped) == ([b"b", b"c"], 1, [])
    assert a.settled and not a.lost
    with pytest.raises(InvalidRequest, match="already"):
        jobs.claim(done=a)
    (d,) = again = jobs.claim(done=found)
    assert (again.finished.acked, d.data) == (2, b"d")
    assert jobs.ack(d).acked == 1
    last = jobs.claim(done=[d], wait=0.05)
    assert (len(last), last.finished.skipped, d.lost) == (0, [4], True)
    assert jobs.claim(done=[]).finished == jobs.claim().finished
    assert [request.op for request in server.requests].count(Op.ACK) == 1
    assert jobs.stats().acked == 4


def test_the_next_job_is_the_same_whichever_way_it_came(client: topicd.Client, way: str) -> None:
    jobs = client.queue("q", node="me")
    jobs.put(b"a")
    jobs.put({"b": 1}, tag="t", meta={"k": 2})
    jobs.put(bytes(200_000))
    (a,) = jobs.claim()
    found = jobs.claim(done=a)
    (b,) = found
    assert (a.settled, a.lost, found.ready, found.finished.acked, found.payloads()) == (True, False, 1, 1, [b.data])
    assert (b.seq, b.json(), b.tag, b.meta, b.node, b.deliveries) == (2, {"b": 1}, "t", {"k": 2}, None, 1)
    assert b.lease > a.lease and b.deadline >= a.deadline and b.topic == "q" and not b.settled
    with pytest.raises(InvalidRequest, match="already"):
        jobs.claim(done=a)
    (large,) = following = jobs.claim(done=b)
    assert (large.data, following.finished.acked) == (bytes(200_000), 1)
    assert following.done().acked == 1
    last = jobs.claim(done=large) if not large.settled else jobs.claim()
    assert (len(last), jobs.stats().acked) == (0, 3)


def test_a_job_that_was_lost_is_told_and_the_next_one_comes(
    client: topicd.Client, server: FakeServer, way: str
) -> None:
    jobs = client.queue("q", node="me")
    jobs.put_many([b"a", b"b"])
    (a,) = jobs.claim()
    assert jobs.ack(a).acked == 1
    found = jobs.claim(done=a)
    assert ([job.data for job in found], found.finished.skipped, a.lost) == ([b"b"], [1], True)
    with pytest.raises(InvalidRequest, match="from 1 to"):
        jobs.claim(True, done=found[0])


def test_a_claim_finishes_what_ack_takes_and_no_more_than_one_request_does(client: topicd.Client) -> None:
    jobs = client.queue("q", node="me")
    jobs.put_many([b"a", b"b"])
    a, b = jobs.claim(2)
    assert jobs.claim(done=[a.key, b.seq]).finished.acked == 2
    with pytest.raises(InvalidRequest, match="1000"):
        jobs.claim(done=list(range(1, 1_002)))
    with pytest.raises(InvalidRequest, match="pairs or seqs"):
        jobs.claim(done=["a"])
    with pytest.raises(InvalidRequest, match="wait is a number"):
        jobs.claim(wait=-1, done=3)


def test_ack_takes_jobs_pairs_and_seqs(client: topicd.Client) -> None:
    jobs, other = client.queue("q", node="me"), client.queue("q", node="other")
    jobs.put_many([b"a", b"b", b"c"])
    a, b, c = jobs.claim(3)
    assert other.ack([c.seq]).skipped == [c.seq]
    assert other.ack([(b.seq, b.lease + 1)]).skipped == [b.seq]
    assert jobs.ack([a, (b.seq, b.lease), c.seq]).acked == 3
    with pytest.raises(InvalidRequest):
        jobs.ack(["1"])


def test_jobs_go_back_in_three_ways(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.configure(dead_letter="q.dead")
    jobs.put_many([b"a", b"b", b"c"])
    a, b, c = jobs.claim(3)
    assert a.release()
    assert b.fail("no luck", delay_ms=0)
    assert c.dead("hopeless")
    queue = queue_of(server)
    assert (queue.deliveries[a.seq], queue.deliveries[b.seq]) == (0, 1)
    assert queue.reasons[b.seq] == "no luck"
    assert queue.counts["dead_lettered"] == 1
    again = jobs.claim(3)
    assert [job.deliveries for job in again] == [1, 2]


def test_a_stale_lease_is_refused_by_number(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    stale = jobs.claim(lease_ms=100)[0]
    server.now_ms += 1_000
    (fresh,) = jobs.claim()
    assert stale.extend(1_000) is False
    assert stale.lost
    assert stale.done() is False
    assert fresh.extend(5_000) is True
    assert fresh.done() is True


def test_a_job_as_context_is_done_failed_or_released(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b", b"c", b"d"])
    first, second, third, fourth = jobs.claim(4)
    with first:
        pass
    with pytest.raises(ValueError, match="oh"), second:
        raise ValueError("oh")
    with pytest.raises(KeyboardInterrupt), third:
        raise KeyboardInterrupt
    with fourth:
        fourth.release()
    queue = queue_of(server)
    assert queue.counts["acked"] == 1
    assert queue.reasons[2] == "ValueError: oh"
    assert (queue.deliveries[2], queue.deliveries[3], queue.deliveries[4]) == (1, 0, 0)


@pytest.mark.parametrize("how", ["claim", "work"])
def test_what_a_job_leads_to_is_stored_before_the_job_is_finished(
    client: topicd.Client, server: FakeServer, how: str
) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    (job,) = jobs.claim() if how == "claim" else [next(jobs.work())]
    job.done(then=[("out", [b"x"])])
    ops = [request.op for request in server.requests if request.op in (Op.APPEND, Op.ACK)]
    assert ops == [Op.APPEND, Op.APPEND, Op.ACK], "a crash in between would lose it"


def test_what_a_job_leads_to_is_stored_once(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    for _ in range(2):
        job = jobs.claim(lease_ms=100)[0]
        jobs._publish_then(job, [("out", [b"x", b"y"])])
        server.now_ms += 1_000
    job = jobs.claim()[0]
    assert job.done(then=[("out", [b"x"]), ("out", [b"y"]), ("log", [{"n": 1}])])
    assert server.payloads("out") == [b"x", b"y"]
    assert server.payloads("log") == [b'{"n":1}']


def test_what_a_job_leads_to_is_refused_before_anything_is_stored(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    job = jobs.claim()[0]
    with pytest.raises(BatchTooLarge):
        job.done(then=[("first", [b"x"]), ("second", [b"x"] * 10_001)])
    with pytest.raises(InvalidRequest):
        job.done(then=["x"])  # type: ignore[list-item]
    assert server.payloads("first") == []
    assert job.done()


# ---- work ----


def test_jobs_are_pushed_as_they_are_finished(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"%d" % n for n in range(20)])
    seen = []
    for job in jobs.work(max=3, idle=0):
        seen.append(job.data)
        assert len(queue_of(server).leases) <= 3
        assert job.done()
    assert seen == [b"%d" % n for n in range(20)]
    assert jobs.stats().acked == 20


def test_acknowledgements_that_nobody_waits_for_go_together(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"x"] * 500)
    work = jobs.work(max=100, idle=0)
    for job in work:
        assert job.done(wait=False)
    assert jobs.stats().acked == 500
    assert [request.op for request in server.requests].count(Op.ACK) < 100
    assert work.lost == 0


def test_leaving_the_loop_by_an_exception_fails_the_job_with_it(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b"])

    def loop() -> None:
        for job in jobs.work(max=2):
            raise ValueError(f"cannot do {job.data!r}")

    with pytest.raises(ValueError, match="cannot do b'a'"):
        loop()
    queue = queue_of(server)
    seen = guard is not None
    assert queue.reasons[1] == ("ValueError: cannot do b'a'" if seen else "the loop was left before the job was done")
    assert queue.counts["failed"] == 1
    until(lambda: not queue.leases)
    assert queue.deliveries == {1: 1, 2: 0}


def test_a_stream_as_context_knows_the_reason_without_the_core(
    client: topicd.Client, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicd.client.blocking.work.guard", None)
    jobs = client.queue("q")
    jobs.put(b"a")

    def loop() -> None:
        with jobs.work() as work:
            for _job in work:
                raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        loop()
    assert queue_of(server).reasons[1] == "ValueError: oh"


def test_leaving_the_loop_by_break_releases_the_job(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b"])
    with jobs.work(max=2) as work:
        for _job in work:
            break
    queue = queue_of(server)
    until(lambda: not queue.leases)
    assert queue.deliveries == {1: 0, 2: 0}
    assert queue.counts["failed"] == 0


def test_a_busy_body_keeps_its_lease(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    for job in jobs.work(max=1, lease_ms=120, idle=0):
        before = job.deadline
        until(lambda: any(request.op == Op.EXTEND for request in server.requests))
        server.now_ms += 50
        until(lambda job=job, before=before: job.deadline > before)
        assert job.done()


def test_a_job_that_was_taken_away_is_known_to_be(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    for job in jobs.work(max=1, lease_ms=120, idle=0):
        if job.deliveries > 1:
            job.done()
            break
        server.run(queue_of(server).leases.clear)
        until(lambda job=job: job.lost)
        assert job.done() is False


@pytest.mark.parametrize("fault", [CUT, MUTE])
def test_an_acknowledgement_goes_again_after_a_break(client: topicd.Client, server: FakeServer, fault: str) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b"])
    broken = []

    def once(request: Request) -> str | None:
        if request.op == Op.ACK and not broken:
            broken.append(request)
            return fault
        return None

    server.fault = once
    seen = []
    for job in jobs.work(max=1, idle=0.2):
        seen.append((job.data, job.done()))
    # What was acted upon counts although nobody heard of it; what was not was released with the connection.
    assert seen[0] == (b"a", fault == MUTE)
    assert (b"b", True) in seen
    assert jobs.stats().acked == 2


def once_at(op: Op, fault: str) -> Callable[[Request], str | None]:
    broken: list[Request] = []

    def once(request: Request) -> str | None:
        if request.op == op and not broken:
            broken.append(request)
            return fault
        return None

    return once


@pytest.mark.parametrize("fault", [CUT, MUTE])
def test_what_a_claim_brought_is_finished_over_a_break(
    client: topicd.Client, server: FakeServer, fault: str, way: str
) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b", b"c", b"d"])
    [first] = jobs.claim()
    server.fault = once_at(Op.ACK, fault)
    assert first.done() is True
    held = jobs.claim(2)
    server.fault = once_at(Op.ACK, fault)
    assert held.done()[:2] == (2, [])
    [last] = jobs.claim()
    server.fault = once_at(Op.CLAIM, fault)
    assert jobs.claim(done=last).finished[:2] == (1, [])
    assert (last.lost, jobs.stats().acked) == (False, 4)


def test_what_was_lost_before_a_break_is_no_ones_success(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    [job] = jobs.claim()
    server.run(queue_of(server).leases.clear)
    server.fault = once_at(Op.ACK, MUTE)
    assert job.done() is False


def test_what_claimed_jobs_came_to_is_raised_when_nobody_can_be_told(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=0.3, tempo=Tempo(random=lambda: 1.0)) as client:
        jobs = client.queue("q")
        jobs.put_many([b"a", b"b"])
        first, second = jobs.claim(2)
        server.silence()
        for tell in (first.done, second.fail, lambda: jobs.ack([first, second]), lambda: jobs.claim(done=first)):
            with pytest.raises(ConnectionLost):
                tell()
        assert not first.settled
        assert not second.settled


def test_finished_jobs_of_which_nobody_could_be_told_are_counted(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with topicd.connect(server.path, timeout=0.3, tempo=Tempo(random=lambda: 1.0)) as client:
        jobs = client.queue("q")
        jobs.put_many([b"a", b"b", b"c"])
        work = jobs.work(max=3)
        for _ in range(2):
            next(work).done(wait=False)
        server.silence()
        work.close()
        assert work.untold == 2
    assert [(record.message, record.__dict__["jobs"]) for record in caplog.records if "jobs" in record.__dict__] == [
        ("finished jobs could not be reported and will be delivered again", 2)
    ]


def test_a_failure_of_which_nobody_could_be_told_is_counted(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=0.3, tempo=Tempo(random=lambda: 1.0)) as client:
        jobs = client.queue("q")
        jobs.put(b"a")
        with pytest.raises(ValueError, match="no luck"), jobs.work() as work:
            next(work)
            server.silence()
            raise ValueError("no luck")
        assert work.untold == 1


def test_finished_jobs_whose_end_is_refused_for_good_are_counted(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b"])
    work = jobs.work(max=2)
    next(work).done(wait=False)
    next(work)
    server.fault = lambda request: Forbidden("not you") if request.op == Op.ACK else None
    with pytest.raises(Forbidden):
        while True:
            next(work)
    assert (work.untold, work.closed) == (1, True)


def test_acknowledgements_that_were_not_answered_are_repeated(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b", b"c"])
    broken = []

    def once(request: Request) -> StorageFailed | None:
        if request.op == Op.ACK and not broken:
            broken.append(request)
            return StorageFailed("not now")
        return None

    server.fault = once
    for job in jobs.work(max=3, idle=0.2):
        job.done(wait=False)
    assert jobs.stats().acked == 3


def test_the_loop_goes_on_after_a_restart(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    seen = []
    for job in jobs.work(max=2):
        seen.append(job.data)
        job.done()
        if len(seen) == 1:
            server.restart()
            jobs.put(b"b")
        else:
            break
    assert seen == [b"a", b"b"]


def test_a_deleted_queue_ends_the_loop(client: topicd.Client) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    work = jobs.work()
    next(work).done()
    client.delete_topic("q")
    with pytest.raises(TopicNotFound, match="was deleted"):
        next(work)
    assert work.closed


def test_stop_gives_back_at_once_what_was_not_begun(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"a", b"b", b"c"])
    with jobs.work(max=3) as work:
        seen = []
        for job in work:
            seen.append(job.data)
            work.stop()
            job.done()
        assert seen == [b"a"]
        assert not queue_of(server).leases
    assert queue_of(server).deliveries == {1: 1, 2: 0, 3: 0}


def test_stop_from_another_thread_ends_a_loop_that_waits(client: topicd.Client) -> None:
    work = client.queue("q").work()
    stopper = threading.Thread(target=lambda: (until(lambda: work._connection is not None), work.stop()))
    stopper.start()
    assert list(work) == []
    stopper.join(5)


def test_other_threads_finish_jobs_too(client: topicd.Client) -> None:
    jobs = client.queue("q")
    jobs.put_many([b"x"] * 50)
    threads = []
    for number, job in enumerate(work := jobs.work(max=10, idle=0.3)):
        threads.append(threading.Thread(target=job.done, kwargs={"wait": bool(number % 2)}))
        threads[-1].start()
    for thread in threads:
        thread.join(5)
    work.close()
    assert jobs.stats().acked == 50


def test_leases_are_looked_at_only_when_they_are_due(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    job = jobs.claim(lease_ms=3_000)[0]
    keeper = LeaseKeeper(client.caller, "q", {job.seq: job}, 3_000)
    keeper.look()
    assert not any(request.op == Op.EXTEND for request in server.requests)
    job.held_at -= 1.1
    keeper.look()
    assert [request.op for request in server.requests].count(Op.EXTEND) == 1
    keeper.look()
    assert [request.op for request in server.requests].count(Op.EXTEND) == 1


# ---- looking and steering ----


def test_a_queue_is_looked_at_and_steered(client: topicd.Client) -> None:
    jobs = client.queue("q", node="me")
    jobs.put({"n": 1})
    (job,) = jobs.claim()
    (seen,) = jobs.peek()
    assert (seen.seq, seen.state, seen.node, seen.record and seen.record.json()) == (1, "in_flight", "me", {"n": 1})
    assert jobs.why(1).because == ["it is in_flight"]
    assert jobs.pause("lunch").paused == {"by": "user", "reason": "lunch", "since": jobs.stats().paused["since"]}  # type: ignore[index]
    assert jobs.drain().draining
    assert jobs.resume().paused is None
    assert job.done()


def test_schedules_are_added_listed_and_removed(client: topicd.Client) -> None:
    jobs = client.queue("q")
    made = jobs.add_cron("nightly", "0 3 * * *", {"all": True}, priority=2)
    assert (made.data, made.schedule, made.priority) == (b'{"all":true}', "0 3 * * *", 2)
    assert jobs.crons() == [made]
    assert jobs.remove_cron("nightly") is True
    assert jobs.remove_cron("nightly") is False


def test_without_dead_letters_there_are_none_to_read(client: topicd.Client) -> None:
    jobs = client.queue("q")
    jobs.put(b"a")
    for use in (lambda: list(jobs.dead()), jobs.redrive, jobs.discard):
        with pytest.raises(InvalidRequest, match="dead_letter"):
            use()


def until(condition: object, seconds: float = 5.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends, "it does not happen"
        time.sleep(0.002)
