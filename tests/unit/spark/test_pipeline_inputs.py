"""Files that become records, and batches that are the same in every run."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from topicd.errors import InvalidRequest
from topicd.spark.pipelines import inputs
from topicd.spark.pipelines.inputs import CSV, JSON, Columns, InputFile, find_files, guess_format, survey


def file_of(path: Path, format: str, columns: Columns | None = None, topic: str | None = None) -> InputFile:
    return InputFile(path, "key", format, columns or Columns(), topic)


def test_json_lines_as_topicctl_prints_them_come_back(tmp_path: Path) -> None:
    path = tmp_path / "r.ndjson"
    path.write_text(
        '{"topic":"a","seq":1,"ts":5,"tag":"t","node":null,"meta":{"x":1},"data":"text"}\n'
        '{"topic":"a","gap":{"gap_from":2,"gap_to":3}}\n\n'
        '{"topic":"b","data":{"base64":"/w=="}}\n'
    )
    assert list(file_of(path, JSON).records()) == [
        (b"text", b"t", None, b"\x81\xa1x\x01"),
        (b"\xff", None, None, None),
    ]
    columns = Columns(topic="topic")
    assert survey(path, JSON, columns).counts == {"a": 1, "b": 1}
    assert [data for data, *_ in file_of(path, JSON, columns, "b").records()] == [b"\xff"]


def test_a_row_without_a_data_column_becomes_json(tmp_path: Path) -> None:
    path = tmp_path / "r.csv.gz"
    path.write_bytes(gzip.compress(b'id,kind,meta\n007,new,"{""a"": 1, ""b"": {""$binary"": ""AQ==""}}"\n'))
    assert list(file_of(path, CSV, Columns(tag="kind")).records()) == [
        (b'{"id":"007"}', b"new", None, b"\x82\xa1a\x01\xa1b\xc4\x01\x01")
    ]
    assert guess_format(path) == CSV
    assert find_files(tmp_path, CSV) == [path]


def test_batches_are_cut_by_count_and_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "BATCH_RECORDS", 3)
    monkeypatch.setattr(inputs, "BATCH_BYTES", 10)
    path = tmp_path / "r.csv"
    path.write_text("data\n" + "\n".join(["a", "b", "c", "d", "eeeeee", "ffffffffffffffff", "g"]) + "\n")
    batches = [[data.decode()[0] for data, *_ in batch] for batch in file_of(path, CSV).batches()]
    assert batches == [["a", "b", "c"], ["d", "e"], ["f"], ["g"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense\n", "line 1 is no JSON"),
        ("[1]\n", "line 1 is no JSON object"),
        ('{"data":"x"}\n{"data":"x","meta":"[1]"}\n', "row 2 cannot be a record: meta as JSON must be an object"),
        ('{"data":{"base64":"!"}}\n', "row 1 cannot be a record"),
    ],
)
def test_what_cannot_be_a_record_is_named_by_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        list(file_of(path, JSON).records())


def test_a_row_without_its_topic_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"data":"x"}\n')
    with pytest.raises(InvalidRequest, match="must name a topic in every row"):
        survey(path, JSON, Columns(topic="topic"))


def test_a_directory_without_such_files_says_so(tmp_path: Path) -> None:
    (tmp_path / "_hidden.csv").write_text("data\n")
    with pytest.raises(InvalidRequest, match="has no files that end in"):
        find_files(tmp_path, CSV)
    assert guess_format(tmp_path) is None
