"""Safeguards of the chat store, each taken away; tests/mutants.py runs them."""

from __future__ import annotations

MUTANTS = [
    # (name, file, old, new, the test that minds)
    (
        "chat: a batch without the seq of its last entry",
        "shards/chat/changes.py",
        "        self.put(DEFAULT, keys.APPLIED, keys.u64(topic_id) + keys.u64(seq))\n",
        "",
        "test_chat_store.py",
    ),
    (
        "chat: a hole in the log is passed over without a word",
        "shards/chat/log.py",
        "                    if not over_holes:\n                        raise FormatError(missing)\n"
        "                    entries.append((seq - 1, Unreadable(missing, seq - 1 - at)))\n",
        "                    del missing\n",
        "test_chat_log.py",
    ),
    (
        "chat: of a hole one entry is counted",
        "shards/chat/log.py",
        "Unreadable(missing, seq - 1 - at)",
        "Unreadable(missing)",
        "test_chat_log.py",
    ),
    (
        "chat: how far somebody has read is remembered as it was",
        "shards/chat/changes.py",
        "            self._kept.keep_progress(read)\n",
        "            del read\n",
        "test_chat_store.py",
    ),
    (
        "chat: of two of the same id in one batch both are stored",
        "shards/chat/changes.py",
        "        if msg_id in rows:\n            return rows[msg_id] is not None\n",
        "        del rows\n",
        "test_chat_store.py",
    ),
    (
        "chat: answered before it is applied",
        "shards/chat/writer.py",
        "        applied = self._view.apply([(seq, item.entry) for seq, item in ready])\n",
        "        for _, item in ready:\n"
        "            self._answer(item, [True] * len(item.entry.operations))\n"
        "        await asyncio.sleep(0)\n"
        "        applied = self._view.apply([(seq, item.entry) for seq, item in ready])\n",
        "test_chat_writer.py",
    ),
    (
        "chat: an entry whose answer was lost is passed over",
        "shards/chat/writer.py",
        "            await self._fetch(ready[0][0] - 1)\n",
        "            self._view.applied = ready[0][0] - 1\n",
        "test_chat_writer.py",
    ),
    (
        "chat: the log forgets before the base is there",
        "shards/chat/shard.py",
        "            checking.put_base(service.store, self._where, seq)\n        await service.log.forget(seq + 1)\n",
        "            await service.log.forget(seq + 1)\n"
        "            checking.put_base(service.store, self._where, seq)\n",
        "test_chat_writer.py",
    ),
    (
        "chat: a removal does not beat an addition at the same time",
        "shards/chat/members.py",
        "return self.removed_at < self.added_at",
        "return self.removed_at <= self.added_at",
        "test_chat_members.py",
    ),
    (
        "chat: an old addition takes a later removal back",
        "shards/chat/members.py",
        "max(one.removed_at, other.removed_at))",
        "other.removed_at if other.added_at else max(one.removed_at, other.removed_at))",
        "test_chat_members.py",
    ),
    (
        "chat: an id that is known is stored again",
        "shards/chat/messages.py",
        '    if changes.seen(message.msg_id):\n        return Stored(message.msg_id, 0, "")\n    meta =',
        "    meta =",
        "test_chat_store.py",
    ),
    (
        "chat: what is at or below the cutoff is taken in",
        "shards/chat/messages.py",
        "    if hlc.physical_ms(message.stamp) <= cutoff_ms:\n        raise Conflict",
        "    if hlc.physical_ms(message.stamp) < cutoff_ms:\n        raise Conflict",
        "test_chat_digests.py",
    ),
    (
        "chat: what is written while a digest is made is not counted",
        "shards/chat/digests.py",
        "                self._noted[domain] += changes\n",
        "                pass\n",
        "test_chat_digests.py",
    ),
    (
        "chat: an entry that cannot be read stops everything",
        "shards/chat/operations.py",
        "        return Unreadable(exc.message)\n",
        "        raise\n",
        "test_chat_unreadable.py",
    ),
    (
        "chat: an entry that is passed over is noted nowhere",
        "shards/chat/view.py",
        "        changes.put(DEFAULT, keys.UNREADABLE, msgpack.packb([count, seq, found.why[:_WHY_MAX]]))\n",
        "",
        "test_chat_unreadable.py",
    ),
    (
        "chat: half of an entry that breaks is kept",
        "shards/chat/view.py",
        "            self.reload()\n            why =",
        "            why =",
        "test_chat_unreadable.py",
    ),
    (
        "chat: who is removed hears of it with the next message only",
        "shards/chat/changes.py",
        "        if were - stays:\n            self._told.parted.add(chat)\n",
        "",
        "test_chat_live.py",
    ),
    (
        "chat: who was removed listens on",
        "shards/chat/live.py",
        "            self.close()\n            return\n        while",
        "            return\n        while",
        "test_chat_live.py",
    ),
    (
        "chat: a base that could not be copied stays open",
        "shards/chat/checking.py",
        "        finally:\n            source.close()\n",
        "        finally:\n            pass\n        source.close()\n",
        "test_chat_engine.py",
    ),
    (
        "chat: a passing fault of the engine is taken for broken files",
        "shards/chat/store.py",
        "kind = StorageFailed if any(why in str(exc) for why in _PASSING) else FormatError",
        "kind = FormatError",
        "test_chat_engine.py",
    ),
]
