"""All stages of a daemon: what there is, what was left behind, and what nobody will ask for any more."""

from __future__ import annotations

from dataclasses import dataclass

from topicd.client.blocking.operations import Operations
from topicd.client.staging import names
from topicd.client.staging.commitlog import CommitLog
from topicd.client.staging.stages import Abandoned, Stages, drop_topics
from topicd.errors import TopicdError, TopicNotFound


@dataclass(frozen=True, slots=True)
class StageInfo:
    stage: str  # its topic
    key: str  # of its query
    batch: int
    partition: int
    records: int
    bytes: int
    idle_ms: int  # since its last record
    decided: bool  # it will be published


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A batch that is decided and not published to its end."""

    query: str
    key: str
    batch: int
    stages: int
    records: int
    ends: bool


@dataclass(frozen=True, slots=True)
class Finished:
    commit: Unfinished
    error: str | None  # why it is still unfinished


def commit_logs(client: Operations) -> list[CommitLog]:
    found = [CommitLog(client, "", topic=info.topic) for info in client.topics(names.COMMITS)]
    return [log for log in found if log.refresh()]


def unfinished(client: Operations) -> list[Unfinished]:
    return [
        Unfinished(
            log.query,
            log.topic.removeprefix(names.COMMITS),
            decision.batch,
            len(decision.stages),
            sum(staged.records for staged in decision.stages),
            log.ends,
        )
        for log in commit_logs(client)
        for decision in log.pending
    ]


def list_stages(client: Operations, now_ms: int) -> list[StageInfo]:
    decided = {staged.topic for log in commit_logs(client) for decision in log.pending for staged in decision.stages}
    found: list[StageInfo] = []
    for info in client.topics(names.STAGES):
        name = names.parse_stage(info.topic)
        if name is None:
            continue
        try:
            state = client.state(info.topic, touch=False)
        except TopicNotFound:
            continue
        idle = now_ms - max(name.made_ms, state.last_write_ts or 0)
        found.append(
            StageInfo(
                info.topic,
                name.key,
                name.batch,
                name.partition,
                state.head_seq,
                state.bytes,
                max(0, idle),
                info.topic in decided,
            )
        )
    return found


def finish(client: Operations, key: str | None = None) -> list[Finished]:
    """Publishes what is decided, of one query or of all; what that was, and what was refused. One that cannot be
    published does not keep the others from it."""
    wanted = [one for one in unfinished(client) if key in (None, one.key, one.query)]
    refused: dict[str, TopicdError] = {}
    for query in dict.fromkeys(one.query for one in wanted):
        try:
            Stages(client, query).finish()
        except TopicdError as error:
            refused[query] = error
    left = {(one.query, one.batch) for one in unfinished(client)} if refused else set()
    return [
        Finished(one, refused[one.query].message if (one.query, one.batch) in left and one.query in refused else None)
        for one in wanted
    ]


def abandon(client: Operations, key: str, *, take_back: bool) -> list[Abandoned]:
    """Gives up what one query has decided and not published."""
    queries = dict.fromkeys(one.query for one in unfinished(client) if key in (one.key, one.query))
    return [part for query in queries for part in Stages(client, query).abandon(take_back=take_back)]


def drop_expired(client: Operations, now_ms: int, older_than_ms: int) -> list[StageInfo]:
    """Drops what nobody decided and nobody has written to for so long."""
    made = [name.made_ms for info in client.topics(names.STAGES) if (name := names.parse_stage(info.topic)) is not None]
    if not any(now_ms - made_ms > older_than_ms for made_ms in made):
        return []  # the usual case, without a look at each
    old = [one for one in list_stages(client, now_ms) if not one.decided and one.idle_ms > older_than_ms]
    drop(client, old)
    return old


def drop(client: Operations, chosen: list[StageInfo]) -> None:
    drop_topics(client, [one.stage for one in chosen])
