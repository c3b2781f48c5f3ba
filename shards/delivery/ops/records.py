"""Records: fetched and deleted. (Appended: writing/append.py, without a detour.)"""

from __future__ import annotations

from topicd import limits
from topicd.errors import InvalidRequest, Throttled, TopicNotFound
from topicd.ipc.protocol.messages import CutTopic, DeleteRecords, FetchFilter, Op, Subscribe, SubscribedTopic
from topicd.ipc.protocol.wire import FETCH, MessageFlag, unpack_map
from topicd.model import GapReason, Tombstone
from topicd.shards.delivery.reading.filters import NO_FILTER, ReadFilter
from topicd.shards.delivery.reading.long_polls import LongPoll
from topicd.shards.delivery.sessions.call import RAW_OPERATIONS, Call, operation
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges


def fetch(call: Call, body: memoryview) -> None:
    if len(body) < FETCH.size:
        raise InvalidRequest(f"fetch has {len(body)} bytes of body, the fixed fields alone are {FETCH.size}")
    topic_id, from_seq, limit, max_bytes, wait_ms = FETCH.unpack_from(body)
    shard, connection = call.shard, call.connection
    topic = shard.catalog.by_id.get(topic_id)
    if topic is None or not topic.live:
        raise TopicNotFound(f"no topic with id {topic_id}", topic_id=topic_id)
    connection.rights.require("read", topic.name)
    if from_seq > limits.MAX_SEQ:
        raise InvalidRequest(f"from_seq is at most {limits.MAX_SEQ}, not {from_seq}")
    chosen, tombstone = NO_FILTER, None
    metadata_only = bool(call.flags & MessageFlag.METADATA_ONLY)
    if call.flags & MessageFlag.FILTER:
        want = FetchFilter.from_wire(unpack_map(body[FETCH.size :]))
        chosen = ReadFilter(want.match, want.nodes, metadata_only, want.committed)
        from_seq, tombstone = start_of(call, topic, want, from_seq)
    elif metadata_only:
        chosen = ReadFilter(metadata_only=True)
    elif len(body) != FETCH.size:
        raise InvalidRequest(f"fetch has {len(body) - FETCH.size} bytes behind its fixed fields and no FILTER flag")
    if wait_ms > limits.LONG_POLL_MS_MAX:
        raise InvalidRequest(f"wait_ms is at most {limits.LONG_POLL_MS_MAX}, not {wait_ms}")
    limit = limit or limits.FETCH_RECORDS_DEFAULT
    max_bytes = max_bytes or limits.FETCH_BYTES_DEFAULT
    answer = shard.reader.fetch(topic, from_seq, limit, max_bytes, chosen)
    answer.tombstone = tombstone or answer.tombstone
    shard.reader.note_read(topic, answer.count)
    if wait_ms and not answer.count and answer.tombstone is None:
        polls = connection.long_polls
        check_room(call, len(polls), "long polls")
        rest = (answer.next_from, limit, max_bytes, chosen)
        poll = LongPoll(connection, shard.reader, call.request_id, topic, rest, call.started_at, polls.discard)
        polls.add(poll)
        poll.start(shard.loop, wait_ms)
        return
    connection.fetched(call.request_id, topic, answer, call.started_at)


RAW_OPERATIONS[Op.FETCH] = fetch


def start_of(
    call: Call, topic: Topic, want: FetchFilter | SubscribedTopic | Subscribe, from_seq: int
) -> tuple[int, Tombstone | None]:
    """Where to read from: a time instead of a seq, or from the start when the cursor belongs to an older topic."""
    if want.epoch is not None and want.epoch != topic.id:
        # The range is what of the new topic is gone already; nobody knows how much of the old one was missed.
        call.shard.retention.expire(topic)
        lost = topic.floors.evict_floor - 1
        return 0, Tombstone(1, lost, GapReason.RECREATED.value, lost, topic.floors.earliest, topic.seqs.visible)
    if want.from_ts is not None:
        return call.shard.reader.start_at(topic, want.from_ts), None
    return from_seq, None


def check_room(call: Call, used: int, what: str) -> None:
    limit = call.shard.place.settings.max_inflight_per_connection
    if used >= limit:
        raise Throttled(
            f"this connection has {used} {what}, {limit} are allowed",
            limit="max_inflight_per_connection",
            retry_after_ms=1_000,
        )


@operation(DeleteRecords)
def delete_records(call: Call, want: DeleteRecords) -> None:
    topic = call.shard.catalog.get(want.topic)
    if want.before_seq is None and want.match is None:
        raise InvalidRequest("a delete needs before_seq or match or both")
    topic.check_own(call.connection.keeps)
    call.shard.deletion.delete(topic, want.before_seq, want.match, call.done)


@operation(CutTopic)
def cut_topic(call: Call, want: CutTopic) -> None:
    shard = call.shard
    topic = shard.catalog.get(want.topic)
    if (want.after_seq is None) == (want.after_ts is None):
        raise InvalidRequest("a cut needs either after_seq or after_ts")
    if not shard.place.data.is_restoring:  # then it is nobody's yet
        topic.check_own(call.connection.keeps)
    last = want.after_seq if want.after_ts is None else shard.reader.start_at(topic, want.after_ts + 1)
    visible = topic.seqs.visible
    if last is None or last >= visible:
        call.answer({"deleted": 0, "last_seq": visible})
        return
    answer = {"last_seq": last}
    shard.deletion.delete_seqs(
        topic,
        Ranges([(last + 1, visible)]),
        lambda deleted, error: call.done(None if error else {**answer, "deleted": deleted}, error),
    )
