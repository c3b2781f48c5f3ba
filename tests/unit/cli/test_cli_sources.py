"""Lines from streams that come in any pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topicd.cli import sources


class Pieces:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read1(self, size: int, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@given(st.lists(st.text("ab\n", max_size=8).map(str.encode), max_size=12))
def test_lines_do_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    chunks = list(sources.lines(Pieces(pieces)))
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [record for chunk in chunks for record in chunk.records] == expected


def test_what_has_arrived_is_handed_on_before_more_is_asked_for() -> None:
    class Slow(Pieces):
        asked = 0

        def read1(self, size: int, /) -> bytes:
            self.asked += 1
            return super().read1(size)

    slow = Slow([b"a\nb\n", b"c\n"])
    chunks = sources.lines(slow)
    assert next(chunks).records == [b"a", b"b"]
    assert slow.asked == 1


def test_chunks_are_no_larger_than_a_batch() -> None:
    chunks = list(sources.lines(Pieces([b"x\n" * 25_000])))
    assert [len(chunk.records) for chunk in chunks] == [10_000, 10_000, 5_000]
    assert sum(chunk.consumed for chunk in chunks) == 50_000


def test_numbers_in_errors_count_over_pieces() -> None:
    seen: list[tuple[bytes, int]] = []
    list(sources.lines(Pieces([b"a\nb", b"b\nc\n", b"d"]), lambda line, number: seen.append((line, number))))
    assert seen == [(b"a", 1), (b"bb", 2), (b"c", 3), (b"d", 4)]


@given(st.lists(st.binary(max_size=9), max_size=30), st.integers(1, 8), st.sampled_from([0, 1, 20, 1000]))
def test_pieces_keep_order_and_bounds(records: list[bytes], most: int, most_bytes: int) -> None:
    found = list(sources.pieces(records, most, most_bytes, 2))
    assert [record for piece in found for record in piece] == records
    for piece in found:
        assert len(piece) <= most
        assert not most_bytes or len(piece) == 1 or sum(len(record) + 2 for record in piece) <= most_bytes


def test_sizes_are_never_too_small() -> None:
    record = ({"a": "ü"}, "tag", b"node", {"k": 1})
    assert sources._size(record) >= len('{"a":"ü"}'.encode()) + len("tag") + len("node") + 4
