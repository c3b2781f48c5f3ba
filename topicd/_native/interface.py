"""What the C core and its pure-Python twin both offer. Promise: same input, same output, same error.

Every function accepts any object with the buffer protocol, reads only inside [start, end), and checks each
length before it believes it. Malformed input raises ValueError(code, message) with a code of topicd.errors;
nothing is written before everything was validated. Integers in packed results are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from mmap import mmap
from typing import NamedTuple, Protocol, TypeAlias

# Anything with the buffer protocol these functions meet (collections.abc.Buffer needs Python 3.12).
Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap"


class Run(NamedTuple):
    """Neighbouring valid frames of one type and topic; appends of a run have contiguous seqs."""

    start: int  # offset of the first frame
    end: int  # offset behind the last frame
    type: int
    topic_id: int
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    first_ts: int
    last_ts: int
    whole_end: int  # offset behind the last frame that closes a batch (== start: none does)
    whole_count: int  # frames up to there


class Scan(NamedTuple):
    runs: list[Run]
    end: int  # offset behind the last valid frame; == the end asked for when all is well
    problem: str  # "" or why the frame at `end` is not valid: "torn" (overruns) or "checksum" or "layout"


class Selection(NamedTuple):
    ranges: list[tuple[int, int]]  # neighbouring chosen frames merged, in order
    count: int  # type: ignore[assignment]  # frames chosen
    last_seq: int  # last seq examined, 0 if none was
    examined: int  # frames examined
    end: int  # offset of the first frame not dealt with; == the end asked for when none is left


class Columns(NamedTuple):
    """Arrow-ready buffers of append frames. Offsets are int32 (count + 1), bitmaps are LSB-first validity."""

    count: int  # type: ignore[assignment]
    seq: bytes  # int64
    ts_ms: bytes  # int64
    data_offsets: bytes
    data: bytes
    tag_offsets: bytes
    tag: bytes
    tag_valid: bytes
    node_offsets: bytes
    node: bytes
    node_valid: bytes
    meta_offsets: bytes
    meta: bytes  # msgpack
    meta_valid: bytes


# Variable-length values as Arrow has them: (validity bitmap or None, int32 offsets, bytes, first row that is meant)
Values: TypeAlias = "tuple[Buffer | None, Buffer, Buffer, int]"

# (seq, ts_ms, node, tag, meta as msgpack, data)
Decoded = tuple[int, int, bytes | None, bytes | None, bytes | None, bytes]


# (bytes used up, append frames, packed u32 offset of each, the same with a producer frame before each, packed u32
# request id of each)
TakenRun = tuple[int, bytearray, bytes, bytes, bytes]


class MakeDir(NamedTuple):
    """The directory and its missing parents; one that exists is fine."""

    path: str


class Put(NamedTuple):
    """The parts back to back from offset, as the end of the file. A file that is shorter than offset is refused."""

    path: str
    create: bool  # a missing file
    offset: int
    parts: Sequence[Buffer]
    sync: bool  # its bytes, before the next step


class SyncDir(NamedTuple):
    """Make creates and renames inside path durable."""

    path: str


class Rename(NamedTuple):
    source: str
    target: str


Step: TypeAlias = "MakeDir | Put | SyncDir | Rename"
Chain: TypeAlias = Sequence[Step]  # done in order, up to the first that fails

# run_chains(chains, mode of files, mode of directories, bytes from which a Put is written in pieces, bytes of a piece):
# for each chain that failed, by its number: the step, errno (0: the file is too short), size of that file
RunChains: TypeAlias = "Callable[[Sequence[Chain], int, int, int, int], dict[int, tuple[int, int, int]]]"

# Files of a directory by name: size and content, or its beginning where it is large; None: it could not be read.
Listing: TypeAlias = "dict[str, tuple[int, bytes] | None]"
# look(directories, bytes up to which a file is read whole, bytes of larger ones, most files of a directory, bytes in
# all): what each holds, a missing one nothing; None: it could not be listed, or holds too much
Look: TypeAlias = "Callable[[Sequence[str], int, int, int, int], list[Listing | None]]"

# commit(page, state, bells, board, rings): turns of a WAL shard without the interpreter's lock, until something happens
# that only Python does; why it returned (shards/wal/turns.py)
Commit: TypeAlias = "Callable[[bytearray, Buffer, Buffer, Buffer, tuple[Buffer, ...]], int]"

# guard(gone): an object; when it goes, gone(error, True) is called with the exception that is under way, or None.
Guard: TypeAlias = "Callable[[Callable[[BaseException | None, bool], None]], object]"

# keep_orphans(): from now on processes below this one become its children when their own parent ends.
KeepOrphans: TypeAlias = "Callable[[], None]"

# send_each(descriptors of sockets (i32 each), data): data once to each of them, without waiting and without the
# interpreter's lock; who did not take all of it, by its place in the list, and how many bytes it took. One that refuses
# has taken none: whoever writes the rest will hear why.
SendEach: TypeAlias = "Callable[[Buffer, Buffer], list[tuple[int, int]]]"

# exchange(descriptor of a blocking socket, message, window, timeout in ms or -1): sends all of the message, waits for
# the first bytes that come and puts them into the window, without the interpreter's lock: how many; 0: the peer is
# gone. Raises OSError; a BlockingIOError says that nothing came in time.
Exchange: TypeAlias = "Callable[[int, Buffer, Buffer, int], int]"

# What came to a claim that finished one job: (ready, seq, lease, deadline, deliveries, ts_ms, node, tag, meta as
# msgpack, data) of the next one
Next = tuple[int, int, int, int, int, int, bytes | None, bytes | None, bytes | None, bytes]
# claim_next(descriptor, request, request id, seq, lease, window, timeout in ms or -1): `exchange` of a CLAIM that
# finishes one job and wants another: a whole message whose request id and LEASED row are filled in here. The job that
# came; or how many bytes are in the window, if that is no whole answer of this kind.
ClaimNext: TypeAlias = "Callable[[int, Buffer, int, int, int, Buffer, int], int | Next]"


class Core(Protocol):
    """Arguments are positional: the C functions take no keywords, so the twin must not be called with any."""

    name: str  # "native" or "pure"

    # ---- shared words (8-byte aligned offsets into a writable shared mapping) ----
    def load(self, memory: Buffer, offset: int, /) -> int:
        """Load a u64 with acquire order."""
        ...

    def store(self, memory: Buffer, offset: int, value: int, /) -> None:
        """Store a u64 with release order, never torn."""
        ...

    def store_fence(self, memory: Buffer, offset: int, value: int, /) -> None:
        """Store, then a full fence: what is loaded afterwards is loaded after the store is seen."""
        ...

    def fence_load(self, memory: Buffer, offset: int, /) -> int:
        """A full fence, then load: for "is the other side asleep?" after publishing work."""
        ...

    def ring_write(
        self, memory: Buffer, body_at: int, capacity: int, head: int, data: Buffer, start: int, end: int, /
    ) -> int:
        """Copy data[start:end] into the ring body at head (wrapping); the new head. Publishes nothing."""
        ...

    # ---- checksums ----
    def xxh3_64(self, data: Buffer, seed: int = 0, /) -> int: ...

    # ---- frames ----
    def encode_batch(
        self,
        datas: Sequence[Buffer],
        tags: Sequence[bytes | None] | bytes | None,
        nodes: Sequence[bytes | None] | bytes | None,
        metas: Sequence[bytes | None] | None,
        /,
    ) -> bytearray:
        """Append frames with topic id, seq, ts and checksum blank; all but the last carry the `more` flag.

        A single bytes value for tags or nodes applies to every record. metas are packed msgpack maps.
        """
        ...

    def encode_columns(
        self,
        count: int,
        datas: Values,
        tags: Values | bytes | None,
        nodes: Values | bytes | None,
        metas: Values | None,
        /,
    ) -> bytearray:
        """What encode_batch makes, of so many rows of Arrow columns. Data must not be null; a label that is null or
        empty is none."""
        ...

    def stamp_frames(
        self,
        batch: Buffer,
        start: int,
        end: int,
        topic_id: int,
        first_seq: int,
        ts: int,
        durable: bool,
        copied: bool = False,
        /,
    ) -> bytes:
        """Validate a client batch, then fill it in place; packed u32 offsets of its frames relative to start.

        Valid: append frames only, filling [start, end) exactly, limits of topicd.limits kept, tag/node/meta
        flags true exactly when the field is there (never empty), `more` on all but the last, meta one msgpack
        map, no hops. The durable flag is set as told, whatever the client put there. `copied`: frames that a router
        made of stored ones; they have hops, and their meta may be larger by MAX_STAMP.
        """
        ...

    def stamp_copies(self, batch: Buffer, start: int, end: int, topic_id: int, first_seq: int, ts: int, /) -> bytes:
        """What stamp_frames does to copied frames; but each keeps its own time, or gets that of the one before it
        (of the first: `ts`) if its own is earlier, and is a batch by itself."""
        ...

    def copy_frames(
        self, buf: Buffer, start: int, end: int, most_hops: int, keep_node: bool, keep_tag: bool, /
    ) -> bytearray:
        """A batch of the append frames that have fewer than most_hops hops, each with one more, with or without node
        and tag; to be stamped. Empty if there are none."""
        ...

    def take_run(
        self,
        buf: Buffer,
        start: int,
        end: int,
        topic_id: int,
        producer_id: int,
        batch_no: int,
        first_seq: int,
        ts: int,
        durable: bool,
        most: int,
        max_bytes: int,
        /,
    ) -> TakenRun | None:
        """Stamp copies of the APPEND messages at start (docs/protocol.md) as long as each is whole, has no flags, names
        that topic, producer and the next batch number, and holds one record of nothing but data, tag and node; at
        most `most` of them (and 512) and max_bytes of frames. None: not even the first one is like that."""
        ...

    def run_answers(self, request_ids: Buffer, first_seq: int, head_seq: int, /) -> bytes:
        """The answers to the appends of a run whose first record has first_seq."""
        ...

    def scan_frames(self, buf: Buffer, start: int, end: int, /) -> Scan:
        """Validate frames of any type (layout, checksum) up to the first bad one; group them into runs."""
        ...

    def frame_offsets(self, buf: Buffer, start: int, end: int, /) -> bytes:
        """Packed u32 offsets (relative to start) of trusted frames of any type.

        Here and below: lengths are checked (format_error), checksums are not; all but this one pass over
        frames that are not appends.
        """
        ...

    def index_entries(self, buf: Buffer, start: int, end: int, base: int, /) -> bytes:
        """The .idx entries (docs/formats.md) of append frames; buf[start] lies at file offset base.

        20 bytes each: u32 offset, u32 size of the whole frame, u64 ts, u8 flags, 3 zero bytes.
        """
        ...

    def frame_tags(self, buf: Buffer, start: int, end: int, /) -> list[tuple[bytes, int]]:
        """(tag, seq) of each tagged frame, in frame order."""
        ...

    def select_frames(
        self,
        buf: Buffer,
        start: int,
        end: int,
        after_seq: int,
        up_to_seq: int,
        limit: int,
        max_bytes: int,
        min_ts: int,
        tag_eq: bytes | None,
        tag_prefix: bytes | None,
        nodes: Sequence[bytes],
        dead: bytes,
        /,
    ) -> Selection:
        """Choose append frames with after_seq < seq <= up_to_seq that pass every filter.

        Left out: ts < min_ts, another tag, a node in nodes, a seq inside dead (packed u64 pairs [first, last]
        in ascending order). Stops before the first seq > up_to_seq, and before the frame that would exceed
        limit or max_bytes, but never before the first chosen one. Frames of other types and seqs <= after_seq
        are passed over: they count as neither examined nor chosen.
        """
        ...

    def decode_frames(self, buf: Buffer, start: int, end: int, /) -> list[Decoded]:
        """Append frames as tuples; bytes are copies. Lengths are checked, checksums are not."""
        ...

    def payloads(self, buf: Buffer, start: int, end: int, /) -> list[bytes]:
        """Only the data of each append frame, without its meta."""
        ...

    def columns(self, buf: Buffer, start: int, end: int, /) -> Columns: ...
