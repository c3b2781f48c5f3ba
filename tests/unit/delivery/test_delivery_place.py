"""A shard's place: what fits a ring."""

from __future__ import annotations

import pytest

from tests.unit.delivery.kit import make_place
from topicd.limits import KIB, MAX_FRAME
from topicd.paths import DataDir


@pytest.mark.parametrize("ring_bytes", [1536 * KIB, 4096 * KIB])
def test_a_frame_always_fits_a_piece_and_a_piece_the_ring(ring_bytes: int) -> None:
    place = make_place(ring_bytes=ring_bytes)
    assert MAX_FRAME <= place.piece_bytes < ring_bytes
    assert place.small_batch <= place.gathered_bytes < place.piece_bytes


def test_it_knows_every_sibling_and_where_topics_lie() -> None:
    place = make_place(index=1, shards=3)
    assert len(set(place.socket_paths)) == 3
    assert all(path.startswith("/run/") for path in place.socket_paths)
    assert place.topic_dir(7) == DataDir(place.settings.data_dir).topic(7)
