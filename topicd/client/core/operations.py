"""Operations of both faces that are one request and its answer: what the user gives, and what is asked for it."""

from __future__ import annotations

from typing import Any, Unpack

from topicd.client.core import requests
from topicd.client.core.answers import ConsumerInfo, Deleted, TopicState
from topicd.client.core.arguments import Match, Start
from topicd.client.core.requests import Request
from topicd.client.core.verbs import verb
from topicd.model import TopicConfig
from topicd.topic_fields import TopicFields


class Declared:
    # ---- consumers ----

    @verb
    @staticmethod
    def consumers(topic: str) -> Request[list[ConsumerInfo]]:
        """The named consumers of a topic."""
        return requests.consumers(topic)

    @verb
    @staticmethod
    def ack_consumer(topic: str, name: str, seq: int) -> Request[int]:
        """Acknowledges everything up to seq; never goes back. The seq up to which all is acknowledged now."""
        return requests.ack_consumer(topic, name, seq)

    @verb
    @staticmethod
    def reset_consumer(topic: str, name: str, start: Start) -> Request[int]:
        """Sets a consumer back or forth; the seq it counts as having acknowledged now."""
        return requests.reset_consumer(topic, name, start)

    @verb
    @staticmethod
    def remove_consumer(topic: str, name: str) -> Request[None]:
        """Forgets a consumer."""
        return requests.remove_consumer(topic, name)

    # ---- topics ----

    @verb
    @staticmethod
    def state(topic: str, *, touch: bool = True) -> Request[TopicState]:
        """Where a topic stands; with `touch` this counts as a read."""
        return requests.state(topic, touch)

    @verb
    @staticmethod
    def configure(topic: str, **config: Unpack[TopicFields]) -> Request[TopicConfig]:
        """Creates the topic or changes the given fields (docs/topic-fields.md); returns the whole configuration. Times
        and sizes may have units: ttl="1d", cap_bytes="1GiB"; durability="fsync" syncs each write before its answer."""
        return requests.configure(topic, dict(config))

    @verb
    @staticmethod
    def tier_state(topic: str) -> Request[dict[str, Any]]:
        """Where the segments of a topic lie: on the fast disk, packed, in the cold directory (docs/tiers.md)."""
        return requests.tier_state(topic)

    @verb
    @staticmethod
    def tier_now(topic: str) -> Request[dict[str, Any]]:
        """The same, and segments that should lie elsewhere begin to move at once."""
        return requests.tier_now(topic)

    @verb
    @staticmethod
    def delete(topic: str, before_seq: int | None = None, match: Match = None) -> Request[Deleted]:
        """Removes records for good: those below before_seq, those whose tag matches, or those that are both."""
        return requests.delete(topic, before_seq, match)

    @verb
    @staticmethod
    def cut(topic: str, *, after_seq: int | None = None, after_ts: int | None = None) -> Request[int]:
        """Deletes the newest records for good: those behind a seq, or behind a time in milliseconds; how many. Their
        seqs are not given out again. It needs the right admin."""
        return requests.cut(topic, after_seq, after_ts)

    @verb
    @staticmethod
    def forgive(topic: str, first_seq: int, last_seq: int) -> Request[list[tuple[int, int]]]:
        """Readers are not told any more that a loss of power may have taken seqs first_seq to last_seq; `state` lists
        what they are told. What was forgiven."""
        return requests.forgive(topic, first_seq, last_seq)

    @verb
    @staticmethod
    def delete_topic(topic: str, *, if_empty: bool = False) -> Request[int]:
        """Removes the topic with everything in it; the id it had."""
        return requests.delete_topic(topic, if_empty)

    # ---- the daemon ----

    @verb
    @staticmethod
    def status() -> Request[dict[str, Any]]:
        """The daemon's processes, their state and counters."""
        return requests.status()

    @verb
    @staticmethod
    def settings() -> Request[dict[str, Any]]:
        """The settings in force in the running daemon."""
        return requests.settings()
