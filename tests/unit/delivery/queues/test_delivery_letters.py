"""A job as a dead letter, and a dead letter as a job again."""

from __future__ import annotations

from typing import Any

import msgpack

from tests.unit.delivery.kit import make_topic, stamped
from topicd.frames import core
from topicd.limits import MAX_DATA_AND_META
from topicd.shards.delivery.queues.facts import Past
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.letters import letter, origin, returned
from topicd.shards.delivery.queues.options import Options

PAST = Past(3, 100, 200, "no luck")


def queue() -> Jobs:
    jobs = make_topic(type="queue").queue
    assert jobs is not None
    return jobs


def made(jobs: Jobs, data: bytes = b"data", meta: dict[str, Any] | None = None) -> Any:
    packed = None if meta is None else [msgpack.packb(meta)]
    blob = stamped([data], 9, tags=[b"tag"], nodes=[b"node"], metas=packed)
    frames = letter(bytes(blob.data), "jobs", jobs, PAST)
    (row,) = core.decode_frames(frames, 0, len(frames))
    return row


def test_it_says_where_it_came_from_and_what_became_of_it() -> None:
    row = made(queue(), meta={"user": 1})
    assert (row[2], row[3], bytes(row[5])) == (b"node", b"tag", b"data")
    assert msgpack.unpackb(row[4]) == {
        "user": 1,
        "$dead_letter_from": "jobs",
        "$dead_letter_deliveries": "3",
        "$dead_letter_src_seq": "9",
        "$dead_letter_reason": "no luck",
        "$dead_letter_first_ts": "100",
        "$dead_letter_last_ts": "200",
    }
    assert origin(row[4]) == "jobs" and origin(None) == "" and origin(msgpack.packb({"x": 1})) == ""


def test_sent_back_it_is_what_it_was() -> None:
    jobs = queue()
    options = Options(9, 1)
    options.priority, options.group = 7, "tenant"
    jobs.announce(9, [options])
    jobs.catch_up(9, 0)
    back = returned(made(jobs, meta={"user": 1}))
    (row,) = core.decode_frames(back.frames, 0, len(back.frames))
    assert back.queue == "jobs" and msgpack.unpackb(row[4]) == {"user": 1}
    assert (row[2], row[3], bytes(row[5])) == (b"node", b"tag", b"data")
    assert msgpack.unpackb(back.options) == [[0, 1, {"priority": 7, "group": "tenant"}]]
    plain = returned(made(queue()))
    assert plain.options == b"" and core.decode_frames(plain.frames, 0, len(plain.frames))[0][4] is None


def test_a_job_as_large_as_any_may_be_goes_without_what_does_not_fit() -> None:
    row = made(queue(), data=bytes(MAX_DATA_AND_META - 130))
    assert origin(row[4]) == "jobs" and "$dead_letter_reason" not in msgpack.unpackb(row[4])
    row = made(queue(), data=bytes(MAX_DATA_AND_META))
    assert row[4] is None and len(row[5]) == MAX_DATA_AND_META
