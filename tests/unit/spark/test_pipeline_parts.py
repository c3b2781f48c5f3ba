"""Records as Parquet files, one per topic and day."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicd.errors import StorageCorrupt
from topicd.spark.pipelines import parts
from topicd.spark.pipelines.parts import DAY_MS, PartWriter, Row, Staged, check_part, checksum, read_rows

pa = pytest.importorskip("pyarrow")


def batch(rows: list[Row]) -> object:
    seq, ts, node, tag, meta, data = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(seq, pa.int64()),
            pa.array(ts, pa.timestamp("ms", tz="UTC")),
            *(pa.array(column, pa.binary()).view(kind) for column, kind in ((node, pa.string()), (tag, pa.string()))),
            pa.array(meta, pa.binary()),
            pa.array(data, pa.binary()),
        ],
        names=["seq", "ts", "node", "tag", "meta", "data"],
    )


def written(tmp_path: Path, *batches: list[Row]) -> list[Staged]:
    writer = PartWriter(tmp_path, "orders")
    files = [file for rows in batches for file in writer.add(batch(rows))]
    return [*files, *writer.finish()]


def row(seq: int, ts: int, data: bytes = b"") -> Row:
    return seq, ts, None, None, None, data


def test_bytes_come_back_as_they_were(tmp_path: Path) -> None:
    rows: list[Row] = [
        (1, 5, b"n", b"t", b"\x81\xa1a\x01", b"\x00\xff"),
        (3, 5, None, None, None, b""),
        (4, 6, b"\xff", b"\xfe\x80", None, b"x" * 100_000),
    ]
    (file,) = written(tmp_path, rows)
    assert (file.first_seq, file.last_seq, file.last_ts, file.records, file.day) == (1, 4, 6, 3, "1970-01-01")
    assert list(read_rows(tmp_path / file.name)) == rows
    assert (file.bytes, file.sha256) == checksum(tmp_path / file.name)


def test_each_day_has_a_file_of_its_own(tmp_path: Path) -> None:
    first = [row(n, DAY_MS * 19_000 - 3 + n) for n in range(1, 7)]
    second = [row(7, DAY_MS * 19_000 + 10), row(8, DAY_MS * 19_002)]
    files = written(tmp_path, first, second)
    assert [(file.day, file.first_seq, file.last_seq) for file in files] == [
        ("2022-01-07", 1, 2),
        ("2022-01-08", 3, 7),
        ("2022-01-10", 8, 8),
    ]
    assert [found[0] for file in files for found in read_rows(tmp_path / file.name)] == list(range(1, 9))


def test_row_groups_are_cut_and_nothing_is_lost_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(parts, "GROUP_ROWS", 10)
    batches = [[row(n, 5, b"%d" % n) for n in range(at, at + 4)] for at in range(1, 41, 4)]
    (file,) = written(tmp_path, *batches)
    assert pq.ParquetFile(tmp_path / file.name).num_row_groups == 4
    assert [found[5] for found in read_rows(tmp_path / file.name)] == [b"%d" % n for n in range(1, 41)]


def test_a_file_that_is_not_what_the_manifest_says_is_named(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [row(1, 5)])
    path = tmp_path / file.name
    check_part(path, file.bytes, file.sha256)
    with pytest.raises(StorageCorrupt, match=r"has \d+ bytes"):
        check_part(path, file.bytes + 1, file.sha256)
    whole = bytearray(path.read_bytes())
    whole[5] ^= 1
    path.write_bytes(whole)
    with pytest.raises(StorageCorrupt, match="fails the checksum"):
        check_part(path, file.bytes, file.sha256)
    path.unlink()
    with pytest.raises(StorageCorrupt, match="is missing"):
        check_part(path, file.bytes, file.sha256)
