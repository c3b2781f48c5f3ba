"""Commits into a topic: room held before they are decided, closed when all of them is there, or abandoned. Promise:
what was granted can be stored, whatever caps and schemas come later; an abandoned commit takes nothing more, and what
it shall take back is gone with it.
"""

from __future__ import annotations

import logging
from typing import Any

from topicd.errors import Conflict, NotReady, TopicdError
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import AbandonCommit, CloseCommit, OpenCommit
from topicd.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.schema import digest

log = logging.getLogger(__name__)


@operation(OpenCommit)
def open_commit(call: Call, want: OpenCommit) -> None:
    shard = call.shard
    topic = shard.catalog.get(want.topic)
    topic.check_own(call.connection.keeps)
    if want.judged:
        # Whoever may stage is believed to have judged: a schema is a guard against mistakes.
        call.connection.rights.require("stage")
    shard.retention.expire(topic)
    now = shard.place.clock.now_ms()
    expected = topic.producers.expected(want.producer_id, topic.seqs.visible)
    first_no = want.first_no or expected
    topic.commits.check_room(want.producer_id, now)
    refusal = shard.admission.commit_refusal(topic, want.producer_id, want.records, want.bytes)
    if refusal is not None:
        raise refusal
    before = topic.commits.get(want.producer_id, first_no)
    had = None if before is None else (before.records, before.bytes, before.hold_ms, before.until_ms, before.judged)
    room = (want.records, want.bytes, want.hold_ms, now + want.hold_ms, want.judged)
    # At once, so that nobody is promised the same room before the log has it.
    topic.commits.open(want.producer_id, first_no, *room)

    def refused(error: TopicdError) -> None:
        if had is None:
            topic.commits.close(want.producer_id, first_no)
        else:
            topic.commits.open(want.producer_id, first_no, *had)
        call.refuse(error)

    answer = {"topic_id": topic.id, "expected": expected, "first_no": first_no, **_batch_limits(call, topic)}
    body = dict(zip(("records", "bytes", "hold_ms", "until_ms", "judged"), room, strict=True))
    _change(call, topic, {"action": "open", **_commit(want.producer_id, first_no), **body}, answer, refused)


def _batch_limits(call: Call, topic: Topic) -> dict[str, Any]:
    """What one batch should not exceed, so that caps and other writers have room around it; and what its records should
    be like."""
    policy, in_flight = topic.policy, call.shard.place.settings.max_inflight_bytes
    return {
        "max_records": min(policy.cap_records or MAX_BATCH_RECORDS, MAX_BATCH_RECORDS),
        "max_bytes": min(policy.cap_bytes or MAX_BATCH_BYTES, MAX_BATCH_BYTES, max(1, in_flight // 4)),
        "max_inflight_bytes": in_flight,
        "schema": digest(topic.policy.schema),
    }


@operation(CloseCommit)
def close_commit(call: Call, want: CloseCommit) -> None:
    topic = call.shard.catalog.get(want.topic)
    commit = topic.commits.get(want.producer_id, want.first_no)
    answer = {"topic_id": topic.id, "records": 0 if commit is None else commit.seqs.covered}
    if commit is None:
        call.answer(answer)
        return

    def closed() -> None:
        topic.commits.close(want.producer_id, want.first_no)
        call.shard.agenda.moved(topic)  # for those who wait for whole commits

    body = {"action": "close", **_commit(want.producer_id, want.first_no)}
    _change(call, topic, body, answer, call.refuse, closed)


@operation(AbandonCommit)
def abandon_commit(call: Call, want: AbandonCommit) -> None:
    topic = call.shard.catalog.get(want.topic)
    if want.take_back:
        why = "records of its source were taken back"
        call.shard.deletion.before_loss(topic, why, lambda: _abandon(call, want, topic), call.refuse)
    else:
        _abandon(call, want, topic)


def _abandon(call: Call, want: AbandonCommit, topic: Topic) -> None:
    shard, producer_id = call.shard, want.producer_id
    commit = topic.commits.get(producer_id, want.first_no)
    if commit is not None and commit.fenced:
        raise Conflict("somebody else is abandoning this commit", topic=topic.name)
    if topic.commits.is_under_way(producer_id):
        raise NotReady("a batch of this commit is under way", topic=topic.name, retry_after_ms=100)
    if commit is None:
        topic.commits.open(producer_id, want.first_no, 0, 0, 0, 0)
        commit = topic.commits.get(producer_id, want.first_no)
        if commit is None:  # the producer has begun a later one: this one is over
            call.answer({"topic_id": topic.id, "records": 0, "seqs": [], "deleted": 0})
            return
    commit.fenced = True
    published = [list(pair) for pair in commit.seqs]
    fence = topic.producers.fence_above(producer_id)
    answer: dict[str, Any] = {"topic_id": topic.id, "records": commit.seqs.covered, "seqs": published, "deleted": 0}

    def abandoned() -> None:
        removed = shard.deletion.apply_abandoned(topic, body)
        answer["deleted"] = removed
        log.warning(
            "commit abandoned",
            extra={"topic": topic.name, "published": answer["records"], "seqs": published, "taken_back": removed},
        )
        shard.agenda.moved(topic)

    def refused(error: TopicdError) -> None:
        commit.fenced = False
        call.refuse(error)

    body: dict[str, Any] = {"action": "abandon", **_commit(producer_id, want.first_no), "fence": fence}
    body["taken_back"] = published if want.take_back else []
    _change(call, topic, body, answer, refused, abandoned)


def _commit(producer_id: int, first_no: int) -> dict[str, Any]:
    return {"producer_id": producer_id, "first_no": first_no}


def _change(
    call: Call, topic: Topic, body: dict[str, Any], answer: dict[str, Any], refused: Any, applied: Any = None
) -> None:
    def stored() -> None:
        if applied is not None:
            applied()
        call.answer(answer)

    call.shard.log.change(
        topic,
        FrameType.COMMIT,
        body,
        seq=topic.seqs.head,
        need=topic.policy.change_need,
        applied=stored,
        refused=refused,
        numbered=True,
    )
