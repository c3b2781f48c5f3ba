"""Producer ids that follow from what is written, so that whoever repeats a write is recognised."""

from __future__ import annotations

from topicd.limits import LASTING, SCATTERED

_ROOM = LASTING - SCATTERED


def job_producer(topic_id: int) -> int:
    """What jobs of this topic write elsewhere (`done(then=…)`, dead letters, redrive): one batch per topic written to,
    its number is the job's seq. Numbers of these producers come in any order; each is stored once."""
    return SCATTERED | (topic_id % _ROOM)
