"""The log of a chat store, live or from an archive, applied by many tasks at once. Promise: each task applies what
concerns its chats with the store's own code, in the order of the log, so that what they find together is what one store
would find; a log whose beginning is not there is refused.

Operations of different chats do not touch each other, but for two things: cutoffs hold for all chats and go to every
task, and an id that was used in several chats counts where it came first, so these chats go to the same task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from topicd.client.blocking.client import Client
from topicd.errors import Conflict, FormatError, TopicNotFound
from topicd.limits import CHATS, FETCH_BYTES_MAX
from topicd.shards.chat.operations import Clean, Entry, Ingest, Operation, PutIdentity, Retain, Send
from topicd.shards.chat.retention import is_cleaning
from topicd.shards.chat.rows import Message
from topicd.shards.chat.store import MemoryStore
from topicd.shards.chat.view import View
from topicd.spark import connection
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.manifest import KIND, VERSION, Manifest
from topicd.spark.pipelines.parts import check_part, read_rows
from topicd.spark.pipelines.report import Progress
from topicd.spark.pipelines.session import LazySpark, run_here
from topicd.spark.pipelines.store import Store

if TYPE_CHECKING:
    from pyspark import SparkContext

TOPIC = f"{CHATS}00"
TILE = 50_000  # entries of a live log for one task
PER_TASK = 100_000  # entries that one task applies
_ALL = 1 << 30
T = TypeVar("T")


class Piece(NamedTuple):
    """Entries that one task reads: a file of an archive, or seqs of a live log."""

    path: str
    size: int
    sha256: str
    after: int
    up_to: int


class Log(NamedTuple):
    """A whole log, as it was when it was looked at."""

    where: ConnectionOptions  # of a live one
    pieces: tuple[Piece, ...]
    entries: int
    size: int  # bytes
    name: str  # for people

    def read(self, piece: Piece) -> Iterator[tuple[int, bytes]]:
        if piece.path:
            check_part(Path(piece.path), piece.size, piece.sha256)
            return ((row[0], row[5]) for row in read_rows(Path(piece.path)))
        return _live_entries(connection.client(self.where), piece)


class Step(NamedTuple):
    """One operation and where it stands."""

    seq: int
    place: int  # in its entry
    raw: bytes  # an entry with this operation alone


def open_log(where: ConnectionOptions, archive: Path | None) -> Log:
    return _live(where) if archive is None else _archived(where, archive)


def _live(where: ConnectionOptions) -> Log:
    try:
        state = place.client(where).state(TOPIC, touch=False)
    except TopicNotFound:
        raise TopicNotFound("this daemon has no chat store; start it with --chat") from None
    if state.head_seq and state.earliest_seq != 1:
        raise Conflict(
            f"the chat log begins with entry {state.earliest_seq}: chat_log_bytes has made it forget what was before. "
            "Take an archive that was begun earlier"
        )
    starts = range(0, state.head_seq, TILE)
    pieces = tuple(Piece("", 0, "", at, min(at + TILE, state.head_seq)) for at in starts)
    return Log(where, pieces, state.head_seq, state.bytes, "the live store")


def _archived(where: ConnectionOptions, archive: Path) -> Log:
    body = Store(archive, KIND, VERSION).load()
    found = [] if body is None else Manifest.from_json(body).named(TOPIC)
    if not found:
        raise TopicNotFound(f"{archive} has no chat log; archive it with: pipeline run archive {TOPIC} --to {archive}")
    known = found[-1]
    if known.absent or known.first_seq != 1:
        raise Conflict(f"{archive} lacks {known.absent} entries of the chat log: they were gone before it was archived")
    root = archive.absolute()
    pieces = tuple(
        Piece(str(root / part.path), part.bytes, part.sha256, part.first_seq - 1, part.last_seq) for part in known.parts
    )
    return Log(where, pieces, known.count, known.bytes, str(archive))


def _live_entries(client: Client, piece: Piece) -> Iterator[tuple[int, bytes]]:
    at = piece.after
    while at < piece.up_to:
        page = client.fetch(TOPIC, at, limit=min(piece.up_to - at, 5_000), max_bytes=FETCH_BYTES_MAX)
        for record in page:
            if record.seq != at + 1:
                raise Conflict(f"entry {at + 1} of the chat log is not there any more")
            at = record.seq
            yield record.seq, record.data
        if page.next_from_seq > at or not len(page):
            raise Conflict(f"entry {at + 1} of the chat log is not there any more")


# ---- operations ----


def _steps(log: Log, piece: Piece) -> Iterator[tuple[Operation, Step]]:
    """What nobody can understand changes no store."""
    for seq, raw in log.read(piece):
        try:
            entry = Entry.unpack(raw)
        except FormatError:
            continue
        for number, op in enumerate(entry.operations):
            if not isinstance(op, Clean):
                yield op, Step(seq, number, Entry(entry.at_ms, [op]).pack())


def _concerns(op: Operation) -> bytes | None:
    """The chat or the user; None: all of them."""
    if isinstance(op, Send | Ingest):
        return Message(*op.message).chat
    if isinstance(op, PutIdentity):
        return op.user
    return None if isinstance(op, Retain | Clean) else op.chat


def _dealt(log: Log, piece: Piece, hands: int, together: frozenset[bytes]) -> Iterator[tuple[int, Step]]:
    """Each step with the number of the task that applies it."""
    for op, step in _steps(log, piece):
        whose = _concerns(op)
        if whose is None:
            yield from ((hand, step) for hand in range(hands))
        else:
            yield 0 if whose in together else int.from_bytes(whose[:4], "big") % hands, step


def _ids(log: Log, piece: Piece) -> Iterator[tuple[bytes, frozenset[bytes]]]:
    for op, _ in _steps(log, piece):
        if isinstance(op, Send | Ingest):
            message = Message(*op.message)
            yield message.msg_id, frozenset((message.chat,))


def replay(steps: Iterable[Step]) -> View:
    """A store of its own with these applied, and everything behind the cutoff gone."""
    view = View(MemoryStore())
    last = 0
    for step in sorted(steps):
        view.apply([(step.seq, Entry.unpack(step.raw))])
        last = step.seq
    while is_cleaning(view.store):
        view.apply([(last, Entry(0, [Clean(_ALL)]))])
    return view


# ---- tasks ----


def in_each(
    spark: LazySpark, label: str, log: Log, found: Callable[[View], T], progress: Progress, *, hands: int | None = None
) -> list[T]:
    """What `found` says of the store of each task; every chat is in one of them."""
    if spark.is_needless(log.entries, log.size):
        steps = [step for pieces in run_here(label, log.pieces, partial(_read_here, log), progress) for step in pieces]
        return [found(replay(steps))]
    return spark.run_tasks(label, lambda context: _in_each(context, log, found, hands), progress)


def _read_here(log: Log, piece: Piece) -> list[Step]:
    return [step for _, step in _steps(log, piece)]


def _in_each(context: SparkContext, log: Log, found: Callable[[View], T], hands: int | None) -> list[T]:
    if not log.pieces:
        return [found(replay([]))]
    many = hands or max(context.defaultParallelism, -(-log.entries // PER_TASK))
    pieces = context.parallelize(log.pieces, len(log.pieces))
    chats_of: Any = pieces.flatMap(partial(_ids, log)).reduceByKey(frozenset.union, many)
    shared = chats_of.values().filter(lambda chats: len(chats) > 1).collect()
    together = frozenset(chat for chats in shared for chat in chats)
    dealt = pieces.flatMap(partial(_dealt, log, hands=many, together=together))
    stores: list[T] = dealt.groupByKey(many).values().map(partial(_found, found)).collect()
    return stores or [found(replay([]))]


def _found(found: Callable[[View], T], steps: Iterable[Step]) -> T:
    return found(replay(steps))


def merged(parts: Iterable[dict[Any, int]]) -> dict[Any, int]:
    total: dict[Any, int] = defaultdict(int)
    for part in parts:
        for key, value in part.items():
            total[key] += value
    return dict(total)
