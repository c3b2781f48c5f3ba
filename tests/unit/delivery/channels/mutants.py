"""What keeps channels whole, taken away piece by piece: (name, file, code, what it becomes, the tests that must mind).
Run by tests.mutants; more of them stand there.
"""

from __future__ import annotations

_CODE = "shards/delivery/channels"
_UNIT = "tests/unit/delivery/channels"
_OPS = "tests/unit/delivery/ops/test_delivery_ops_channels.py"

MUTANTS = [
    # ---- files ----
    (
        "channel: a delete whose sync failed is left as it is",
        f"{_CODE}/store.py",
        "            if before is not None:\n                self._put_back(path, before)\n            raise\n",
        "            raise\n",
        f"{_UNIT}/test_delivery_store.py",
    ),
    (
        "channel: strays are deleted",
        f"{_CODE}/store.py",
        "        self._fs.rename(path, target)\n",
        "        for name in self._files_in(path):\n"
        "            self._fs.unlink(path / name)\n"
        "        self._fs.rmdir(path)\n",
        f"{_UNIT}/test_delivery_store.py",
    ),
    (
        "channel: a stray takes the place of an older one in trash/",
        f"{_CODE}/store.py",
        "        while self._fs.exists(target):\n",
        "        while False:\n",
        f"{_UNIT}/test_delivery_store.py",
    ),
    (
        "channel: a save of the same channel is hashed again",
        f"{_CODE}/store.py",
        "before.hash if before is not None else channel_hash(state.handler)",
        "channel_hash(state.handler)",
        f"{_UNIT}/test_delivery_store.py",
    ),
    (
        "channel: a file of any size is loaded",
        f"{_CODE}/store.py",
        "            raw = read_all(self._fs, path, SMALL_FILE_MAX)\n",
        "            raw = read_all(self._fs, path, 1 << 40)\n",
        f"{_UNIT}/test_delivery_store.py",
    ),
    (
        "channel: metadata of another directory is believed",
        "shards/storage/channel_file.py",
        "    if channel_hash(state.handler) != path.parent.name:\n",
        "    if False:\n",
        "tests/unit/storage/test_storage_channel_file.py",
    ),
    (
        "channel: members out of order are believed",
        "shards/storage/channel_file.py",
        "        if [check_user(user) for user in users] != sorted(set(users)):\n",
        "        if False:\n",
        "tests/unit/storage/test_storage_channel_file.py",
    ),
    (
        "queue of a channel: any sixteen bytes are a cursor",
        "shards/storage/channel_file.py",
        "        if crc == zlib.crc32(raw[:8]) and zero == _ZERO and next_seq:\n",
        "        if next_seq:\n",
        f"{_UNIT}/test_delivery_store.py",
    ),
    # ---- starts ----
    (
        "channel: one that cannot be read ends the start",
        f"{_CODE}/restoring.py",
        "            self._registry.corrupt[hash] = reason\n            return None\n",
        "            raise\n",
        f"{_UNIT}/test_delivery_restoring.py",
    ),
    (
        "channel: one that cannot be read may be made again",
        f"{_CODE}/registry.py",
        "        if problem is not None:\n",
        "        if False:\n",
        f"{_UNIT}/test_delivery_restoring.py",
    ),
    (
        "channel: restored though nobody is known",
        f"{_CODE}/restoring.py",
        "            if not self._place.settings.channel_auth:\n                kept += 1\n                continue\n",
        "",
        f"{_UNIT}/test_delivery_restoring.py",
    ),
    (
        "channel: logs of those that are not restored are swept",
        f"{_CODE}/restoring.py",
        "            self._named.add(state.topic)\n"
        "            if not self._place.settings.channel_auth:\n"
        "                kept += 1\n"
        "                continue\n",
        "            if not self._place.settings.channel_auth:\n"
        "                kept += 1\n"
        "                continue\n"
        "            self._named.add(state.topic)\n",
        f"{_UNIT}/test_delivery_restoring.py",
    ),
    (
        "channel: every shard takes every channel",
        f"{_CODE}/restoring.py",
        "            if not self._is_ours(hash):\n                continue\n",
        "",
        f"{_UNIT}/test_delivery_restoring.py",
    ),
    (
        "queue of a channel: a cursor that cannot be read begins anew",
        f"{_CODE}/restoring.py",
        '            log.warning("queue needs recovery", extra={"channel": state.handler, "reason": str(exc)})\n'
        "            return None\n",
        "            return 1\n",
        f"{_UNIT}/test_delivery_restoring.py",
    ),
    # ---- changes ----
    (
        "channel: a toggle that failed leaves its new log",
        f"{_CODE}/mutations.py",
        "        except TopicdError:\n            self._logs.drop(new)\n            raise\n",
        "        except TopicdError:\n            raise\n",
        f"{_UNIT}/test_delivery_mutations.py",
    ),
    (
        "channel: metadata says what its log refused",
        f"{_CODE}/mutations.py",
        "        except TopicdError:\n            await self._save(channel, before)\n            raise\n",
        "        except TopicdError:\n            raise\n",
        f"{_UNIT}/test_delivery_mutations.py",
    ),
    (
        "channel: one that nobody is in stays when it is persistent no more",
        f"{_CODE}/mutations.py",
        "            if not (wanted.config.persist or wanted.members):\n",
        "            if False:\n",
        f"{_UNIT}/test_delivery_mutations.py",
    ),
    (
        "channel: anybody may change it",
        f"{_CODE}/mutations.py",
        "    if user is not None:\n        acl.check_owner(state, user)\n",
        "    pass\n",
        _OPS,
    ),
    (
        "channel: persistent while nobody is known",
        f"{_CODE}/mutations.py",
        "            if wanted.config.persist and not self._place.settings.channel_auth:\n",
        "            if False:\n",
        f"{_UNIT}/test_delivery_mutations.py",
    ),
    (
        "queue of a channel: persistent no more",
        f"{_CODE}/mutations.py",
        "            if state.fifo and not wanted.config.persist:\n",
        "            if False:\n",
        f"{_UNIT}/test_delivery_mutations.py",
    ),
    (
        "channel: a join of somebody who is in it is saved",
        f"{_CODE}/mutations.py",
        "            return Joined(state, created=False, joined=False)\n",
        "            pass\n",
        f"{_UNIT}/test_delivery_mutations.py",
    ),
    # ---- who may ----
    (
        "channel: no member, and may read",
        f"{_CODE}/acl.py",
        '    check_member(state, user)\n    _check_list(state, "read", state.acl.read, user)\n',
        '    _check_list(state, "read", state.acl.read, user)\n',
        _OPS,
    ),
    (
        "channel: the list of readers is not asked",
        f"{_CODE}/acl.py",
        '    _check_list(state, "read", state.acl.read, user)\n',
        "",
        _OPS,
    ),
    (
        "channel: more members than max_clients",
        f"{_CODE}/acl.py",
        "    if len(state.members) >= state.config.max_clients:\n",
        "    if False:\n",
        _OPS,
    ),
    (
        "channel: messages of any size",
        f"{_CODE}/acl.py",
        "    if size > state.config.max_payload_size:\n",
        "    if False:\n",
        _OPS,
    ),
    (
        "channel: a token acts as anybody",
        "topicd/rights.py",
        "        if self.local or self.taken_at_word or check_user(wanted) == user:\n",
        "        if True:\n",
        "tests/unit/test_rights.py",
    ),
    (
        "channel: anybody asks for slots of anybody",
        "shards/delivery/ops/channels.py",
        "    if not _principal(call).local:\n        raise Forbidden",
        "    if False:\n        raise Forbidden",
        _OPS,
    ),
    (
        "channel: a token's prefixes do not hold for its list",
        "shards/delivery/ops/channels.py",
        "        if rights.prefixes and not state.handler.startswith(rights.prefixes):\n            continue\n",
        "",
        _OPS,
    ),
    (
        "channel over HTTP: an operator without subject is the gateway's user",
        "topicd/gateway/api/channels.py",
        "    if user is None and call.service.keys.needed:\n",
        "    if False:\n",
        "tests/process/test_http_channels.py",
    ),
    (
        "channel over HTTP: the list ends where a key may see none",
        "topicd/gateway/api/channels.py",
        "    while after is not None and len(rows) <= limit:\n"
        "        found, after = await _page(call, member, after, limit)\n",
        '    while after == "" or (after is not None and not rows and len(rows) > limit):\n'
        "        found, after = await _page(call, member, after, limit)\n",
        "tests/process/test_http_channels.py",
    ),
    # ---- slots ----
    (
        "channel: two joins at once take one slot",
        f"{_CODE}/slots.py",
        "        held[handler] = now + HELD_S\n        try:\n            channels = await self._settled(user)\n",
        "        try:\n            channels = await self._settled(user)\n            held[handler] = now + HELD_S\n",
        f"{_UNIT}/test_delivery_slots.py",
    ),
    (
        "channel: a join that ended while others were asked is not counted",
        f"{_CODE}/slots.py",
        "            if before <= set(self._held.get(user, ())):\n",
        "            if True:\n",
        f"{_UNIT}/test_delivery_slots.py",
    ),
    (
        "channel: a slot that was refused is kept",
        f"{_CODE}/slots.py",
        "            self.give_back(user, handler)\n            raise ChannelLimit(",
        "            raise ChannelLimit(",
        f"{_UNIT}/test_delivery_slots.py",
    ),
    (
        "channel: a slot that nobody gave back is held for ever",
        f"{_CODE}/slots.py",
        "        for name in [name for name, until in held.items() if until < now]:\n            del held[name]\n",
        "",
        f"{_UNIT}/test_delivery_slots.py",
    ),
    (
        "channel: only channels of one shard count",
        f"{_CODE}/slots.py",
        '                found.update((await self._ask(shard, "channels", user, ""))["channels"])\n',
        "                pass\n",
        f"{_UNIT}/test_delivery_slots.py",
    ),
    # ---- turns and messages ----
    (
        "channel: any number of changes wait",
        f"{_CODE}/channel.py",
        "        if self._waiting >= WAITING_MAX or self._tallies.waiting >= MAILBOX_MAX:\n",
        "        if False:\n",
        f"{_UNIT}/test_delivery_channel.py",
    ),
    (
        "channel: any number of changes of a shard wait",
        f"{_CODE}/channel.py",
        " or self._tallies.waiting >= MAILBOX_MAX",
        "",
        f"{_UNIT}/test_delivery_channel.py",
    ),
    (
        "channel: changes are begun while it stops",
        f"{_CODE}/channels.py",
        "        if self.draining:\n",
        "        if False:\n",
        f"{_UNIT}/test_delivery_channels.py",
    ),
    (
        "channel: a message that is repeated is stored again",
        f"{_CODE}/publishing.py",
        "topic, frames, 1, once=key)",
        "topic, frames, 1, once=0)",
        _OPS,
    ),
    (
        "channel: an interval is forgotten",
        f"{_CODE}/publishing.py",
        "        self._outlets[topic.outlet].when_synced(lambda: None)\n",
        "",
        f"{_UNIT}/test_delivery_channels_publishing.py",
    ),
    (
        "channel: history of any length",
        f"{_CODE}/publishing.py",
        "min(limit, CHANNEL_HISTORY_MAX)",
        "limit",
        f"{_UNIT}/test_delivery_channels_publishing.py",
    ),
    (
        "queue of a channel: as many elements as come",
        f"{_CODE}/publishing.py",
        "        if queue.depth(topic) >= limit and not",
        "        if False and not",
        _OPS,
    ),
    (
        "queue of a channel: a repetition is refused when it is full",
        f"{_CODE}/publishing.py",
        " and not (key and not topic.producers.is_next(key, 1))",
        "",
        _OPS,
    ),
    (
        "queue of a channel: pushed to though it needs recovery",
        f"{_CODE}/publishing.py",
        "        queue.check()\n",
        "",
        f"{_UNIT}/test_delivery_restoring.py",
    ),
    (
        "queue of a channel: an element is handed out whose cursor was not written",
        f"{_CODE}/fifo.py",
        "                raise self._failure\n        return element\n",
        "                break\n        return element\n",
        f"{_UNIT}/test_delivery_fifo.py",
    ),
    (
        "queue of a channel: cleared under a pop",
        f"{_CODE}/fifo.py",
        "        while self._writing is not None:\n"
        "            await asyncio.shield(self._writing)\n"
        "        self._given = head + 1\n",
        "        self._given = head + 1\n",
        f"{_UNIT}/test_delivery_fifo.py",
    ),
    (
        "queue of a channel: works again though it was not cleared",
        f"{_CODE}/fifo.py",
        "            raise self._failure\n        self.broken = False\n",
        "            pass\n        self.broken = False\n",
        f"{_UNIT}/test_delivery_fifo.py",
    ),
    # ---- watches ----
    (
        "channel: whoever may read no more goes on watching",
        f"{_CODE}/mutations.py",
        '                    channel.end_watches("forbidden", connected)\n',
        "                    pass\n",
        f"{_UNIT}/test_delivery_presence.py",
    ),
    (
        "channel: a watch stays behind in the old log",
        f"{_CODE}/mutations.py",
        "        channel.move_watchers(new)\n",
        "",
        _OPS,
    ),
    (
        "channel: whoever left goes on watching",
        f"{_CODE}/mutations.py",
        '            channel.end_watches("left", user)\n',
        "",
        f"{_UNIT}/test_delivery_presence.py",
    ),
    (
        "channel: a seq of an earlier log counts in a new one",
        "shards/delivery/ops/channels.py",
        "want.epoch is None and want.from_seq > topic.seqs.head",
        "False",
        f"{_UNIT}/test_delivery_presence.py",
    ),
    (
        "channel: nobody is told of a new log",
        f"{_CODE}/presence.py",
        "        if anew:\n",
        "        if False:\n",
        f"{_UNIT}/test_delivery_presence.py",
    ),
    (
        "channel: events wait in memory for who does not read",
        f"{_CODE}/presence.py",
        "        if outbox.write_blocked:\n            self._missed += 1\n            return\n",
        "",
        f"{_UNIT}/test_delivery_presence.py",
    ),
    (
        "channel: a connection that broke is connected",
        f"{_CODE}/presence.py",
        "        self._channel.detach(self)\n",
        "        pass\n",
        f"{_UNIT}/test_delivery_presence.py",
    ),
]
