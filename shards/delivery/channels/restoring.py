"""Channels at the start of a shard. Promise: each shard takes the channels whose hash is its own, loads each once, and
goes on where its log ends; one that cannot be read is skipped, told by name, and left as it is; what is no channel is
put into trash/. Logs that no channel names are deleted, unless something of that channel is there that could not be
read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from topicd.channel import ChannelState, hash_of_log, is_channel_log
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError
from topicd.limits import CHANNELS
from topicd.placement import delivery_shard
from topicd.shards.delivery.channels.channel import Channel
from topicd.shards.delivery.channels.files import ChannelFiles
from topicd.shards.delivery.channels.logs import Logs
from topicd.shards.delivery.channels.registry import Registry
from topicd.shards.delivery.channels.store import ChannelStore, Saved
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)


class Restoring:
    def __init__(
        self,
        place: Place,
        registry: Registry,
        files: ChannelFiles,
        logs: Logs,
        catalog: Catalog,
        reader: Reader,
    ) -> None:
        self._place = place
        self._registry = registry
        self._files = files
        self._store: ChannelStore = files.store
        self._logs = logs
        self._catalog = catalog
        self._reader = reader
        self._named: set[str] = set()  # topics that metadata names

    def run(self, pulse: Callable[[], None]) -> list[str]:
        """Before the shard serves. The files that could not be read."""
        found = self._store.enumerate()
        for name in found.strays:
            if self._is_ours(name):
                self._sweep(name)
        restored, kept = 0, 0
        for hash in found.hashes:
            pulse()
            if not self._is_ours(hash):
                continue
            loaded = self._load(hash)
            if loaded is None:
                continue
            state, saved = loaded
            self._named.add(state.topic)
            if not self._place.settings.channel_auth:
                kept += 1
                continue
            self._restore(state, saved)
            restored += 1
        if restored or self._registry.corrupt:
            log.info("channels restored", extra={"channels": restored, "skipped": len(self._registry.corrupt)})
        if kept:
            log.warning("channels not restored: channel_auth is off", extra={"channels": kept})
        return list(self._registry.corrupt.values())

    def _is_ours(self, name: str) -> bool:
        return delivery_shard(f"{CHANNELS}{name}", self._place.delivery_shards) == self._place.index

    def _sweep(self, name: str) -> None:
        try:
            target = self._store.sweep(name)
        except OSError as exc:
            log.warning("stray in channels/ stays", extra={"stray": name, "error": str(exc)})
            return
        where = "removed, it was empty" if target is None else f"moved to {target}"
        log.warning("stray directory in channels/ without metadata.bin", extra={"stray": name, "what": where})

    def _load(self, hash: str) -> tuple[ChannelState, Saved] | None:
        try:
            return self._store.load(hash)
        except (OSError, FormatError) as exc:
            raise_refusal(exc)
            path = self._store.metadata(hash)
            reason = exc.message if isinstance(exc, FormatError) else f"{path}: {exc.strerror}"
            log.warning("channel skipped: its metadata cannot be read", extra={"file": str(path), "reason": reason})
            self._registry.corrupt[hash] = reason
            return None

    def _restore(self, state: ChannelState, saved: Saved) -> None:
        channel = self._registry.obtain(state.handler)
        channel.saved = saved
        channel.topic = self._logs.find(state)
        if state.fifo:
            channel.queue = self._files.queue(state, saved, self._reader, self._cursor(state, saved))
        self._registry.apply(channel, state)

    def _cursor(self, state: ChannelState, saved: Saved) -> int | None:
        try:
            return self._store.load_cursor(saved.hash)
        except (OSError, FormatError) as exc:
            raise_refusal(exc)
            log.warning("queue needs recovery", extra={"channel": state.handler, "reason": str(exc)})
            return None

    # ---- once the shard serves ----

    def orphans(self) -> list[Topic]:
        """Logs of channels that are not there any more."""
        skipped = self._registry.corrupt
        return [
            topic
            for topic in self._catalog.by_name.values()
            if is_channel_log(topic.name) and topic.name not in self._named and hash_of_log(topic.name) not in skipped
        ]

    async def mend(self, channel: Channel) -> None:
        """A log that is missing, or is not configured as the metadata says, after a crash between the two."""
        async with channel.turn():
            state = channel.state
            if state is None:
                return
            if channel.topic is None:
                log.warning("log of a channel is missing, it begins anew", extra={"channel": state.handler})
                channel.topic = await self._logs.create_as(state.topic, state.config, fifo=state.fifo)
                return
            await self._logs.configure(channel.topic, state.config, fifo=state.fifo)
