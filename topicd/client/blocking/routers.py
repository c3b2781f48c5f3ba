"""Routers: topics that feed topics, blocking."""

from __future__ import annotations

from collections.abc import Iterator

from topicd.client.blocking.caller import Caller
from topicd.client.core import routing
from topicd.client.core.answers import RouterInfo
from topicd.client.core.arguments import Match
from topicd.client.core.routing import Created, RoutersOfTopic, Skipped


class Routers:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def create(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        create_dest: bool = True,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        filter: Match = None,
        allow_cycle: bool = False,
        exactly_once: bool = False,
        sample: int = 1,
        set_tag: str | None = None,
        set_node: str | None = None,
    ) -> Created:
        """Copies every record that comes to `source` from now on into `dest`; both are created if they are missing. The
        same call again changes nothing; with other options it changes them, and the router goes on where it is.

        `filter` is a tag, or a prefix with a star behind it: other records are not copied. `sample=n` copies one in n.
        `set_tag` and `set_node` are templates with {tag}, {node} and {source}. `exactly_once` writes into each copy's
        meta whose copy it is. A circle of routers is refused with its way unless `allow_cycle`; then a record is copied
        on 8 times at most.
        """
        return self._caller.ask(
            routing.create(
                *(router, source, dest, filter, sample),
                create_dest=create_dest,
                preserve_node=preserve_node,
                preserve_tag=preserve_tag,
                allow_cycle=allow_cycle,
                guarantee="exactly_once" if exactly_once else "at_least_once",
                set_tag=set_tag,
                set_node=set_node,
            )
        )

    def get(self, router: str) -> RouterInfo:
        """What it does and how far it is: everything that `source` had acknowledged before has its copy, unless it says
        why it waits."""
        return self._caller.ask(routing.get(router))

    def list(self, prefix: str = "", *, source: str | None = None, dest: str | None = None) -> Iterator[RouterInfo]:
        """All routers by name, or those of some topics, fetched page by page. How far they are may lag a little."""
        after: str | None = ""
        while after is not None:
            page = self._caller.ask(routing.page(prefix, source, dest, after))
            yield from page.routers
            after = page.next

    def delete(self, router: str) -> bool:
        """Copies no more; those that are made stay. False: there was none of that name."""
        return self._caller.ask(routing.delete(router))

    def skip(self, router: str, up_to_seq: int) -> Skipped:
        """Gives up the records of `source` that cannot be read and at which it stands (`unreadable` of `get`), none
        behind `up_to_seq`: it goes on behind them, and readers of `dest` are told of a gap. Refused if it does not
        stand at such records."""
        return self._caller.ask(routing.skip(router, up_to_seq))

    def of(self, topic: str) -> RoutersOfTopic:
        """The routers from and to a topic."""
        return self._caller.ask(routing.of(topic))
