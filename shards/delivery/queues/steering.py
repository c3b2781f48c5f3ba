"""Jobs that wait, steered by an operator: tried at once, or deleted. Promise: what was answered survives a restart; one
that somebody holds, or that has ended, is left alone and named.
"""

from __future__ import annotations

from typing import Any

from topicd.errors import TopicdError
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import SteerJobs
from topicd.shards.delivery.queues.ending import flat_ranges, pairs
from topicd.shards.delivery.queues.giving_back import Done
from topicd.shards.delivery.queues.service import QueueService
from topicd.shards.storage.ranges import Ranges


def steer(service: QueueService, want: SteerJobs, done: Done) -> None:
    topic, jobs, tools = service.topic, service.jobs, service.tools
    now = service.look()
    delete = want.action == "delete"
    seqs = sorted({seq for seq in want.seqs if _waits(service, seq, delayed_only=not delete)})
    answer = {"topic_id": topic.id, "changed": len(seqs), "skipped": sorted({*want.seqs} - {*seqs})}
    if not seqs:
        done(answer, None)
        return
    # Nobody gets them until the log has it.
    before = [(seq, jobs.withdraw(seq)) for seq in seqs]
    body: dict[str, Any] = {"at": now}
    if delete:
        body["buried"] = flat_ranges(list(seqs))
    else:
        body["sched"] = [[seq, now] for seq in seqs]

    def applied() -> None:
        jobs.replay(FrameType.LEASE, body, now)
        if delete:
            tools.deletion.apply_seqs(topic, Ranges(pairs(body["buried"])))
        tools.agenda.moved(topic)
        done(answer, None)

    def refused(error: TopicdError) -> None:
        for seq, ready_at in before:
            jobs.put_again(seq, ready_at)
        done(None, error)

    if not topic.policy.logged:
        applied()
        return
    need = topic.policy.change_need
    tools.log.change(
        topic,
        FrameType.LEASE,
        body,
        seq=topic.seqs.head,
        need=need,
        applied=applied,
        refused=refused,
        numbered=True,
    )


def _waits(service: QueueService, seq: int, *, delayed_only: bool) -> bool:
    topic, jobs = service.topic, service.jobs
    if seq in jobs.delayed:
        return True
    if delayed_only or not topic.floors.earliest <= seq <= topic.seqs.visible or not jobs.is_waiting(seq):
        return False
    return service.tools.live.first_from(topic, seq) == seq
