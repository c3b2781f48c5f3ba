"""The C core for the type checker: interface.Core as module functions, and the limits it was built with."""

from collections.abc import Sequence

from topicd._native.interface import Buffer, Chain, Columns, Decoded, Scan, Selection, TakenRun, Values

name: str

MAX_DATA_AND_META: int
MAX_TAG: int
MAX_NODE: int
MAX_META: int
MAX_META_KEYS: int
MAX_META_DEPTH: int
MAX_BATCH_RECORDS: int
MAX_BATCH_BYTES: int
FRAME_HEADER: int
FRAME_CHECKSUM: int
FRAME_OVERHEAD: int
MAX_SEQ: int

def load(memory: Buffer, offset: int, /) -> int: ...
def store(memory: Buffer, offset: int, value: int, /) -> None: ...
def store_fence(memory: Buffer, offset: int, value: int, /) -> None: ...
def fence_load(memory: Buffer, offset: int, /) -> int: ...
def ring_write(
    memory: Buffer, body_at: int, capacity: int, head: int, data: Buffer, start: int, end: int, /
) -> int: ...
def xxh3_64(data: Buffer, seed: int = 0, /) -> int: ...
def encode_batch(
    datas: Sequence[Buffer],
    tags: Sequence[bytes | None] | bytes | None,
    nodes: Sequence[bytes | None] | bytes | None,
    metas: Sequence[bytes | None] | None,
    /,
) -> bytearray: ...
def encode_columns(
    count: int, datas: Values, tags: Values | bytes | None, nodes: Values | bytes | None, metas: Values | None, /
) -> bytearray: ...
def stamp_frames(
    batch: Buffer, start: int, end: int, topic_id: int, first_seq: int, ts: int, durable: bool, /
) -> bytes: ...
def take_run(
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
) -> TakenRun | None: ...
def run_answers(request_ids: Buffer, first_seq: int, head_seq: int, /) -> bytes: ...
def scan_frames(buf: Buffer, start: int, end: int, /) -> Scan: ...
def frame_offsets(buf: Buffer, start: int, end: int, /) -> bytes: ...
def index_entries(buf: Buffer, start: int, end: int, base: int, /) -> bytes: ...
def frame_tags(buf: Buffer, start: int, end: int, /) -> list[tuple[bytes, int]]: ...
def select_frames(
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
) -> Selection: ...
def decode_frames(buf: Buffer, start: int, end: int, /) -> list[Decoded]: ...
def payloads(buf: Buffer, start: int, end: int, /) -> list[bytes]: ...
def columns(buf: Buffer, start: int, end: int, /) -> Columns: ...
def run_chains(
    chains: Sequence[Chain], file_mode: int, dir_mode: int, long_bytes: int, piece_bytes: int, /
) -> dict[int, tuple[int, int, int]]: ...
