"""Small things that people stumble over."""

from __future__ import annotations

import pytest

from topicd.cli.show.human import records_word
from topicd.cli.show.render import Column, fitted
from topicd.client.core.encode import check_list
from topicd.errors import InvalidRequest


def test_a_number_is_never_cut() -> None:
    columns = [Column("topic", shrink=True), Column("records", right=True), Column("bytes", right=True)]
    rows = [("a.rather.long.name.of.a.topic", "123,456,789,012", "1,023.9 GiB")]
    for width in range(1, 80):
        found = fitted(columns, rows, width)
        for number in (1, 2):
            assert number not in found or found[number] == len(rows[0][number])


def test_one_record_is_not_1_records() -> None:
    assert (records_word(1), records_word(2), records_word(1_000)) == ("1 record", "2 records", "1,000 records")


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}])
def test_one_value_is_no_list_of_records(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="a list of records is needed"):
        check_list(wrong)
