"""Spark on topics and on Parquet files, the same rows, in one session of local[2].

A row is a seq and a payload; reading hashes every byte of both, writing takes payloads from files. Payloads are all
different, for of a few Parquet would store each only once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicd.bench.load import Figures, Load
from topicd.bench.stats import throughput
from topicd.bench.work import STAMP, clock_ns, payloads
from topicd.spark.python import python_for_spark

if TYPE_CHECKING:
    from benchmarks.peers.base import Peer
    from benchmarks.peers.parquet import Parquet
    from benchmarks.peers.topicd import Topicd

READ, WRITE = "read", "write"
CHUNK = 10_000
FILE_ROWS = 1_250_000
WARM_UP = 4  # reads
WARM_UP_WRITES = 2
SCHEMA = "seq bigint, data binary"
TOUCHED = ("count(*)", "bit_xor(xxhash64(seq, data))")
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_session: Any = None
_source: tempfile.TemporaryDirectory[str] | None = None
_pools: dict[int, list[bytes]] = {}
_hashes: dict[Load, int] = {}


def session() -> Any:
    """Started by whoever comes first, kept until the case is over."""
    global _session
    if _session is None:
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = python_for_spark()
        builder = SparkSession.builder.master("local[2]").appName("topicd benchmarks")
        for name, value in CONF.items():
            builder = builder.config(name, value)
        _session = builder.getOrCreate()
        _session.sparkContext.setLogLevel("ERROR")
    return _session


def stop() -> None:
    global _session, _source
    if _session is not None:
        _session.stop()
        _session = None
    if _source is not None:
        _source.cleanup()
        _source = None


def chunks(load: Load) -> Iterator[list[bytes]]:
    """All payloads of a load, the same for everybody: a number of its own at the head of random bytes."""
    pool = _pools.setdefault(load.size, [payload[STAMP.size :] for payload in payloads(load.size)])
    for start in range(0, load.records, CHUNK):
        end = min(start + CHUNK, load.records)
        yield [STAMP.pack(n) + pool[n % len(pool)] for n in range(start, end)]


def read_topic(peer: Topicd, load: Load) -> Figures:
    topic = peer.kept(f"spark-{load.size}-{load.records}", lambda: _fill_topic(peer, load))
    source = session().read.format("topicd").option("socket", peer.address(False).socket).option("topic", topic)
    return _measured(peer, lambda: source.schema(SCHEMA).load(), load)


def read_parquet(peer: Parquet, load: Load) -> Figures:
    folder = peer.kept(f"spark-{load.size}-{load.records}", lambda: _fill_folder(peer.root / "rows", load))
    return _measured(peer, lambda: session().read.parquet(str(folder)).select("seq", "data"), load)


def _measured(peer: Peer, frame: Callable[[], Any], load: Load) -> Figures:
    # Before the first round: workers are started and the JVM has compiled what it is going to.
    peer.kept("spark-warm", lambda: [_touched(frame(), load) for _ in range(WARM_UP)])
    return _touched(frame(), load)


def write_topic(peer: Topicd, load: Load) -> Figures:
    """From rows in files to rows in a topic that everybody sees; the topic goes, the files stay."""
    rows, topic = _rows(peer, load), f"spark-written-{load.size}"
    writer = rows.write.format("topicd").option("socket", peer.address(False).socket).option("topic", topic)

    def once() -> Figures:
        with peer.client() as client:
            try:
                return _written(lambda: writer.mode("append").save(), load, lambda: client.state(topic).count)
            finally:
                client.delete_topic(topic)
                peer.until_cleared()

    return _warm(peer, once)


def write_parquet(peer: Parquet, load: Load) -> Figures:
    rows, folder = _rows(peer, load), peer.root / "written"

    def once() -> Figures:
        try:
            return _written(lambda: rows.write.parquet(str(folder)), load, lambda: _count(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return _warm(peer, once)


def _warm(peer: Peer, once: Callable[[], Figures]) -> Figures:
    """As with reads: the first round finds everything started and compiled."""
    peer.kept("spark-warm-write", lambda: [once() for _ in range(WARM_UP_WRITES)])
    return once()


def _rows(peer: Topicd | Parquet, load: Load) -> Any:
    """What is written, the same files for everybody, until the case is over."""
    global _source
    if _source is None:
        _source = tempfile.TemporaryDirectory(prefix="spark-rows-", dir=peer.root.parent)
    folder = Path(_source.name) / f"{load.size}-{load.records}"
    if not folder.exists():
        _fill_folder(folder, load)
    return session().read.parquet(str(folder)).select("data")


def _written(write: Callable[[], None], load: Load, count: Callable[[], int]) -> Figures:
    start = clock_ns()
    write()
    seconds = (clock_ns() - start) / 1e9
    if count() != load.records:
        raise RuntimeError(f"{count()} rows are there, {load.records} were written")
    return throughput(load.records, seconds, load.size)


def _count(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(path).metadata.num_rows for path in folder.glob("*.parquet"))


def _touched(frame: Any, load: Load) -> Figures:
    start = clock_ns()
    count, found = frame.selectExpr(*TOUCHED).collect()[0]
    seconds = (clock_ns() - start) / 1e9
    if count != load.records or found != _hashes.setdefault(load, found):
        raise RuntimeError(f"{count} rows with hash {found} instead of {load.records} with {_hashes[load]}")
    return throughput(count, seconds, load.size)


def _fill_topic(peer: Topicd, load: Load) -> str:
    topic = f"spark-{load.size}-{load.records}"
    with peer.client() as client:
        for chunk in chunks(load):
            client.publish_many(topic, chunk)
    return topic


def _fill_folder(folder: Path, load: Load) -> Path:
    """With the columns of a topic, as an archive of it would have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("seq", pa.int64()),
            ("ts", pa.timestamp("us", tz="UTC")),
            ("node", pa.string()),
            ("tag", pa.string()),
            ("data", pa.binary()),
        ]
    )
    seq, writer = 0, None
    for chunk in chunks(load):
        if writer is None or seq % FILE_ROWS == 0:
            if writer is not None:
                writer.close()
            writer = pq.ParquetWriter(folder / f"part-{seq:09}.parquet", schema)
        count = len(chunk)
        columns = [
            pa.repeat("orders", count),
            pa.array(range(seq + 1, seq + count + 1), pa.int64()),
            pa.repeat(1_700_000_000_000_000, count).cast(schema.field("ts").type),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
            pa.array(chunk, pa.binary()),
        ]
        writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        seq += count
    if writer is not None:
        writer.close()
    return folder
