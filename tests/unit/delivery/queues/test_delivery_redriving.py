"""Dead letters back to where they came from."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import Conflict, TopicNotFound
from topicd.ipc.protocol.messages import Op


@pytest.fixture
def hands(desk: Desk) -> Hands:
    """Three jobs are dead."""
    made = Hands(desk.route(), dead_letter="dead")
    made.put(b"a", priority=8, group="g")
    made.put(b"b", priority=4)
    made.put(b"c", priority=4)
    made.nack(made.claim(3), kind="dead", reason="x")
    assert made.topic.contents.count == 0
    return made


def test_all_go_back_each_once_with_what_they_were(hands: Hands) -> None:
    answer = hands.line.ask(Op.REDRIVE, topic="dead")
    assert (answer["redriven"], answer["discarded"], answer["skipped"], answer["next"]) == (3, 0, [], None)
    jobs = hands.claim(5).jobs
    assert sorted(job.data for job in jobs) == [b"a", b"b", b"c"] and jobs[0].data == b"a"
    assert hands.line.ask(Op.REDRIVE, topic="dead")["redriven"] == 0
    assert hands.line.ask(Op.STATE, topic="dead")["count"] == 0


def test_some_by_seq_some_by_page_some_thrown_away(hands: Hands) -> None:
    answer = hands.line.ask(Op.REDRIVE, topic="dead", seqs=[2, 9])
    assert (answer["redriven"], answer["skipped"]) == (1, [9])
    answer = hands.line.ask(Op.REDRIVE, topic="dead", limit=1)
    assert (answer["redriven"], answer["next"]) == (1, 1)
    answer = hands.line.ask(Op.REDRIVE, topic="dead", from_seq=1, discard=True)
    assert (answer["redriven"], answer["discarded"]) == (0, 1)
    assert hands.state()["ready"] == 2


def test_what_is_no_dead_letter_of_the_queue_stays(hands: Hands) -> None:
    dead = hands.desk.parts.catalog.by_name["dead"]
    hands.desk.write(dead, [b"a plain record"])
    assert hands.line.ask(Op.REDRIVE, topic="dead", queue="another")["redriven"] == 0
    assert hands.line.ask(Op.REDRIVE, topic="dead", queue="jobs")["redriven"] == 3
    assert hands.line.ask(Op.STATE, topic="dead")["count"] == 1


def test_a_queue_that_is_gone_keeps_its_letters_where_they_are(hands: Hands) -> None:
    hands.ask(Op.DELETE_TOPIC)
    answer = hands.line.ask(Op.REDRIVE, topic="dead")
    assert (answer["redriven"], answer["skipped"]) == (0, [1, 2, 3])
    with pytest.raises(TopicNotFound):
        hands.line.ask(Op.REDRIVE, topic="nowhere")


def test_a_queue_that_takes_nothing_says_so(hands: Hands) -> None:
    hands.ask(Op.QUEUE_DRAIN)
    with pytest.raises(Conflict, match="drained"):
        hands.line.ask(Op.REDRIVE, topic="dead")
    assert hands.line.ask(Op.STATE, topic="dead")["count"] == 3
