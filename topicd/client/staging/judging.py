"""Stages before the schema of their destination. Promise: when `judge` returns, the daemon has looked at every record
and the topic's schema has nothing against any of them; nothing was stored.

It is asked before the decision: what is decided is published, whatever schema the topic gets. See docs/adr/0012.
"""

from __future__ import annotations

from topicd.client.blocking.connection import Connection
from topicd.client.blocking.operations import Operations
from topicd.client.staging import names
from topicd.client.staging.copying import Near, StageReader
from topicd.client.staging.plan import Chunk
from topicd.errors import FormatError, SchemaViolation, TopicdError
from topicd.ipc.protocol.retry import Patience
from topicd.ipc.protocol.wire import FLAG_JUDGE
from topicd.limits import SCHEMA_WRITE_MAX


class Judge:
    """Of one destination."""

    def __init__(self, client: Operations, destination: str) -> None:
        self._client = client
        self._destination = destination
        self._readers: dict[str, StageReader] = {}

    def judge(self, topic_id: int, chunks: list[Chunk]) -> None:
        """Raises SchemaViolation, with the place of the first record that is not wanted. Trouble that may pass is
        waited out, as long as something moves within the client's timeout."""
        caller = self._client.caller
        patience = Patience(caller.tempo, caller.timeout)
        done, chunk_no = 0, 0  # records of the chunk with that number
        while chunk_no < len(chunks):
            shard = caller.shard_map.shard_of(self._destination)
            try:
                connection = caller.dial(shard, caller.timeout)
                try:
                    near = Near(connection, lambda stage: caller.shard_map.shard_of(stage) == shard)  # noqa: B023
                    near.look_up(chunks[chunk_no:])
                    while chunk_no < len(chunks):
                        chunk = chunks[chunk_no]
                        done += self._look(connection, near, topic_id, chunk.within(done, _portion(chunk, done)))
                        if done == chunk.records:
                            done, chunk_no = 0, chunk_no + 1
                        patience = Patience(caller.tempo, caller.timeout)
                finally:
                    connection.close()
            except SchemaViolation:
                raise
            except TopicdError as error:
                self._readers.clear()
                patience.pause(error)

    def _look(self, connection: Connection, near: Near, topic_id: int, part: Chunk) -> int:
        """How many of its records were looked at."""
        number, ranges = (topic_id, 0, 0, part.records), near.ranges(part)
        if ranges is None:
            frames = [view for piece in part.pieces for view in self._reader(piece.stage).take(piece)]
            request_id = connection.start_append(*number, frames, flags=FLAG_JUDGE)
        else:
            request_id = connection.start_copy(*number, ranges, flags=FLAG_JUDGE)
        answered, outcome = connection.finish_append()
        if isinstance(outcome, SchemaViolation):
            raise self._located(part, outcome)
        if isinstance(outcome, TopicdError):
            raise outcome
        if answered != request_id or not 0 < outcome.stored <= part.records:
            raise FormatError(f"the daemon has judged {outcome.stored} of {part.records} records")
        return outcome.stored

    def _reader(self, stage: str) -> StageReader:
        found = self._readers.get(stage)
        if found is None:
            self._readers.clear()  # stages are read one after the other
            found = self._readers[stage] = StageReader(self._client, stage)
        return found

    def _located(self, part: Chunk, error: SchemaViolation) -> SchemaViolation:
        """As whoever wrote the records knows them: by partition, and their number in it."""
        detail, at = error.detail, int(error.detail.get("index", 0))
        [piece] = part.within(at, 1).pieces
        name = names.parse_stage(piece.stage)
        partition, index = 0 if name is None else name.partition, piece.from_seq
        where = f"record {index} of partition {partition}, {detail.get('path') or 'the whole value'}"
        message = f"topic {self._destination} refuses {where}: {detail.get('reason')}"
        return SchemaViolation(message, **{**detail, "index": index, "partition": partition})


def _portion(chunk: Chunk, done: int) -> int:
    """Records from there on, about as many as the daemon looks at in one go."""
    left = chunk.records - done
    return max(1, min(left, chunk.records * SCHEMA_WRITE_MAX // max(1, chunk.bytes)))
