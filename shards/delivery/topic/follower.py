"""Somebody who is told when a topic has new records, or is gone."""

from __future__ import annotations


class Follower:
    def moved(self) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        raise NotImplementedError
