"""Do the tests notice a missing safeguard? `python -m tests.mutants [part of a name]` takes each one away, in a copy of
the source, and runs the tests that should mind.

Every mutant must be caught; one that no longer matches the source is an error too. The list is also the answer to
"why is this line here?". Those of the storage layer are in tests/unit/storage/mutants.py and run along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.faults import mutants as faults
from tests.unit.chat import mutants as chat
from tests.unit.delivery.channels import mutants as channels
from tests.unit.delivery.storing import mutants as storing
from tests.unit.filechannel import mutants as filechannel
from tests.unit.storage import mutants as storage

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 900
IGNORED = shutil.ignore_patterns(".git", ".venv", "var", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: list[str]  # arguments of python that must fail


def sweep(scene: str, kinds: str) -> list[str]:
    return ["-m", "tests.faults", "--full", "--first", "--workers", "1", "--scene", scene, "--kinds", kinds]


def router_sweep(scene: str) -> list[str]:
    return ["-m", "tests.faults.router_sweep", "--first", scene]


def pytest(where: str) -> list[str]:
    return ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", where]


MUTANTS = [
    # ---- fan-out ----
    Mutant(
        "fan-out: what a full socket did not take is forgotten",
        "shards/delivery/reading/fan_out.py",
        "            outbox.write(memoryview(data)[sent:])\n",
        "",
        pytest("tests/unit/delivery/reading/test_delivery_fan_out.py"),
    ),
    Mutant(
        "fan-out: a push overtakes what waits in an outbox",
        "shards/delivery/sessions/outbox.py",
        "self._socket < 0 or self._out or self._paused",
        "self._socket < 0 or self._paused",
        pytest("tests/unit/delivery/reading/test_delivery_fan_out.py"),
    ),
    Mutant(
        "fan-out: a push overtakes what waits in a transport",
        "shards/delivery/sessions/outbox.py",
        "if transport.is_closing() or transport.get_write_buffer_size():",
        "if transport.is_closing():",
        pytest("tests/unit/delivery/reading/test_delivery_fan_out.py"),
    ),
    Mutant(
        "fan-out: nobody's credit is used up",
        "shards/delivery/reading/fan_out.py",
        "                feed.subscription.credit -= answer.bytes\n",
        "",
        pytest("tests/unit/delivery/reading/test_delivery_fan_out.py"),
    ),
    # ---- fair turns ----
    Mutant(
        "fairness: who writes much does not pause for those who ask for little",
        "shards/delivery/sessions/fairness.py",
        "        self._owed_s += min(self._leave() * (now - since), PAUSE_MAX_S)\n",
        "        self._owed_s = 0.0\n",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: pauses of several floods are one",
        "shards/delivery/sessions/fairness.py",
        "        self._paused_until = max(self._paused_until, now) + own\n",
        "        self._paused_until = now + own\n",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: a slow disk makes a flood pause for as long as it likes",
        "shards/delivery/sessions/fairness.py",
        "min(self._leave() * (now - since), PAUSE_MAX_S)",
        "self._leave() * (now - since)",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: pauses too short for the loop's timers are forgotten",
        "shards/delivery/sessions/fairness.py",
        "        if self._owed_s < PAUSE_MIN_S:\n",
        "        if self._owed_s < PAUSE_MIN_S:\n            self._owed_s = 0.0\n",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: only who writes counts as somebody who asks for little",
        "shards/delivery/sessions/session.py",
        "                    self._note_asking()\n",
        "                    pass\n",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: a flood pauses for who asks now and then",
        "shards/delivery/sessions/session.py",
        "        again = now - self._asked_at < RECENT_S and",
        "        again = True and",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: a flood pauses for another shard",
        "shards/delivery/sessions/session.py",
        " and not (self.trusted and self.client.startswith(DELIVERY))",
        "",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: who reads much does not pause",
        "shards/delivery/sessions/session.py",
        "            if reads and self._asking.much and self._pauses():",
        "            if False:",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: the gateway pauses with the requests of all its clients",
        "shards/delivery/sessions/session.py",
        "        if self.trusted or not self._began",
        "        if not self._began",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "fairness: a writer that paused does not wait for memory",
        "shards/delivery/sessions/session.py",
        "        if self._pace.much and self._parts.pressure.holds_writers:",
        "        if False:",
        pytest("tests/unit/delivery/sessions/test_delivery_fairness.py"),
    ),
    Mutant(
        "subscriptions: the first of a connection is always the first to be pushed to",
        "shards/delivery/sessions/session.py",
        "                subscriptions[sub_id] = subscriptions.pop(sub_id)",
        "                pass",
        pytest("tests/unit/delivery/reading/test_delivery_subscriptions.py"),
    ),
    # ---- HTTP ----
    Mutant(
        "http2: a stream sends all it has before the next has its turn",
        "topicd/gateway/web/http2_outgoing.py",
        "            self.pending[stream.number] = stream\n        if was_full and stream.writable",
        "            self.pending = {stream.number: stream, **self.pending}\n        if was_full and stream.writable",
        pytest("tests/unit/gateway/test_http2_outgoing.py"),
    ),
    Mutant(
        "http2: answers are made whatever waits for the peer already",
        "topicd/gateway/web/http2_outgoing.py",
        "        return not used or used + size <= ANSWERS_MAX",
        "        return True",
        pytest("tests/process/web/test_http_many.py"),
    ),
    Mutant(
        "http2: leaving a stream of events counts as abuse",
        "topicd/gateway/web/http2.py",
        "if stream is None or not stream.streaming:",
        "if True:",
        pytest("tests/process/web/test_http_many.py"),
    ),
    Mutant(
        "http1: answers are made although nobody takes them",
        "topicd/gateway/web/http1.py",
        "        if self.paused:\n            return  # it asks",
        "        if False:\n            return  # it asks",
        pytest("tests/process/web/test_http_many.py"),
    ),
    Mutant(
        "http: a key names a dead letter topic beyond its prefixes",
        "topicd/gateway/api/topics.py",
        "        require_name(rights, config.dead_letter, in_body=True)\n",
        "        pass\n",
        pytest("tests/process/web/test_http_keys.py"),
    ),
    Mutant(
        "a token names a dead letter topic beyond its prefixes",
        "shards/delivery/ops/topics.py",
        '        call.connection.rights.require("admin", wanted)',
        "        pass",
        pytest("tests/unit/delivery/sessions/test_delivery_session.py"),
    ),
    Mutant(
        "http: a port of systemd beyond loopback is open to everybody",
        "topicd/supervisor/resources.py",
        "        if given is not None:\n            host",
        "        if False:\n            host",
        pytest("tests/process/web/test_http_listeners.py"),
    ),
    # ---- routers ----
    Mutant(
        "derived: copies that no segment has are not logged with the first direct write",
        "shards/delivery/writing/log.py",
        "            parts += pieces(blob.view(), blob.offsets, self._place.piece_bytes)\n",
        "            pass\n",
        router_sweep("write directly"),
    ),
    Mutant(
        "derived: copies that segments have are made once more",
        "shards/delivery/topic/inflows.py",
        "        flow.cursor, self.skip = self.mark.cursor, max(0, head - self.mark.seq)\n",
        "        flow.cursor, self.skip = self.mark.cursor, 0\n",
        router_sweep("copy"),
    ),
    Mutant(
        "derived: the mark is ahead of the segments",
        "shards/delivery/topic/inflows.py",
        " and self._planned.seq <= stored:\n",
        ":\n",
        pytest("tests/unit/delivery/topic/test_delivery_inflows.py"),
    ),
    Mutant(
        "derived: a snapshot speaks of copies that no segment has",
        "shards/delivery/storing/topic_state.py",
        "        head=seqs.stored if derived else seqs.visible,\n",
        "        head=seqs.visible,\n",
        router_sweep("copy"),
    ),
    Mutant(
        "derived: whoever writes while copies are made again gets their seqs",
        "shards/delivery/writing/append.py",
        "        if inflows.remaking:\n",
        "        if False:\n",
        pytest("tests/unit/delivery/routing/test_delivery_safety.py"),
    ),
    Mutant(
        "derived: a source is deleted from without asking",
        "shards/delivery/removing/deletion.py",
        "            *(topic, _DELETED, lambda: self._delete(",
        "            *(Topic(0, '', topic.config, 0, 0), _DELETED, lambda: self._delete(",
        router_sweep("delete at the source"),
    ),
    Mutant(
        "derived: what was evicted comes back with the copies that are made again",
        "shards/delivery/writing/in_flight.py",
        "        if gone > 0:\n",
        "        if False:\n",
        pytest("tests/process/test_derived.py::test_evicted_copies_that_are_made_again_are_not_counted_again"),
    ),
    Mutant(
        "derived: a router is deleted before its copies are logged",
        "shards/delivery/routing/registry.py",
        '            await self.settle([known], "its router was deleted")\n',
        "",
        router_sweep("delete the router"),
    ),
    Mutant(
        "routers: acknowledged records are freed before they are copied",
        "shards/delivery/removing/deletion.py",
        "topic.consumers.acked_by_all, self.copied(topic))\n",
        "topic.consumers.acked_by_all)\n",
        pytest("tests/process/test_derived.py"),
    ),
    Mutant(
        "routers: writers of another shard are forgotten between two of its messages",
        "shards/delivery/routing/pump.py",
        "self._crowded_until = now + _CROWDED_S",
        "self._crowded_until = now",
        pytest("tests/unit/delivery/routing/test_delivery_pump.py"),
    ),
    Mutant(
        "routers: who has been behind for long in a flood takes a batch at a time",
        "shards/delivery/routing/pump.py",
        "polite = self._left if",
        "polite = 1.0 if",
        pytest("tests/unit/delivery/routing/test_delivery_pump.py"),
    ),
    Mutant(
        "routers: however much there is to copy, as much time is taken",
        "shards/delivery/routing/share.py",
        "return _FAIR if needed <= _FAIR else ",
        "return _FAIR if needed else ",
        pytest("tests/unit/delivery/routing/test_delivery_share.py"),
    ),
    Mutant(
        "routers: records that came one by one are copied one by one",
        "shards/delivery/routing/feeds.py",
        "        if len(self._pieces) > 1:\n            self._join()\n",
        "",
        pytest("tests/unit/delivery/routing/test_delivery_feeds.py"),
    ),
    # ---- topicd's own topics ----
    Mutant(
        "routers: what a record says is taken for a template",
        "shards/delivery/routing/copies.py",
        "FIELD.sub(lambda found: names[found[1]], template)",
        'template.replace("{tag}", names["tag"]).replace("{node}", names["node"]).replace("{source}", names["source"])',
        pytest("tests/unit/delivery/routing/test_delivery_copies.py"),
    ),
    Mutant(
        "routers: a stamp is written over what somebody else has there",
        "shards/delivery/routing/copies.py",
        "if _is_stamp(original.get(STAMP)):",
        "if STAMP in original:",
        pytest("tests/unit/delivery/routing/test_delivery_copies.py"),
    ),
    Mutant(
        "odd: what is no directory is found out by whoever needs it",
        "topicd/supervisor/resources.py",
        "        layout.check(self._data)\n",
        "",
        [*pytest("tests/crash/test_odd_starts.py"), "-k", "nothing_changes and wal"],
    ),
    Mutant(
        "odd: whoever opens a pipe waits for its other end",
        "topicd/disk/fs.py",
        "flags = os.O_NONBLOCK | (os.O_RDWR if write else os.O_RDONLY)",
        "flags = os.O_RDWR if write else os.O_RDONLY",
        [*pytest("tests/crash/test_odd_starts.py"), "-k", "pipe"],
    ),
    Mutant(
        "odd: a link that leads nowhere is a file",
        "shards/storage/segment/load.py",
        "if what := no_file(fs, listed.path):",
        'if what := "":',
        [*pytest("tests/crash/test_odd_starts.py"), "-k", "leads_nowhere"],
    ),
    Mutant(
        "odd: a pipe in the place of a file ends the start",
        "topicd/disk/fs.py",
        "        if error.errno == errno.ENXIO:\n",
        "        if False:\n",
        [*pytest("tests/corrupt/test_corrupt_small.py"), "-k", "no_file and pipe"],
    ),
    Mutant(
        "odd: a device is a file",
        "topicd/disk/fs.py",
        " or not (write or stat.S_ISREG(kind) or stat.S_ISDIR(kind)):",
        ":",
        [*pytest("tests/corrupt/test_corrupt_small.py"), "-k", "no_file and hungry"],
    ),
    Mutant(
        "odd: a link to itself ends the start",
        "topicd/disk/fs.py",
        "    if error.errno != errno.ELOOP:\n        return error\n",
        "    return error\n",
        [*pytest("tests/corrupt/test_corrupt_small.py"), "-k", "no_file and itself"],
    ),
    Mutant(
        "own topics: anybody writes them",
        "shards/delivery/topic/topic.py",
        "        if self.policy.own and not (keeps and self.name.startswith(keeps)):\n",
        "        if False:\n",
        pytest("tests/process/test_chat.py"),
    ),
    Mutant(
        "own topics: whoever calls itself the chat process writes its log",
        "shards/delivery/ops/hello.py",
        "connection.trusted and want.client",
        "want.client",
        pytest("tests/process/test_chat.py"),
    ),
    # ---- chat, in a daemon; more: tests/unit/chat/mutants.py ----
    Mutant(
        "chat: a rebuild does not wait for those who read",
        "shards/chat/ops/admin.py",
        "            await service.store.unread()\n",
        "",
        [*pytest("tests/process/test_chat_damage.py"), "-k", "a_rebuild_waits"],
    ),
    Mutant(
        "chat: a room under its id hides the chat of two",
        "shards/chat/ops/messages.py",
        "if meta.kind != _DM and ref.peer and",
        "if not meta.exists and ref.peer and",
        [*pytest("tests/process/test_chat_names.py"), "-k", "his_own"],
    ),
    Mutant(
        "chat: a record of a far future keeps all others back",
        "shards/chat/ops/sync.py",
        "        except Conflict as exc:\n            why = exc\n",
        "        except Conflict:\n            raise\n",
        [*pytest("tests/process/test_chat_damage.py"), "-k", "far_future"],
    ),
    Mutant(
        "chat: a store that another log made is thrown away",
        "shards/chat/shard.py",
        "            self._check_owner(place)\n",
        "",
        [*pytest("tests/process/test_chat_damage.py"), "-k", "another_log"],
    ),
    Mutant(
        "chat: who asks while the daemon begins anew is told that there is no store",
        "topicd/client/core/shardmap.py",
        "if not (self.chat or found.exists()):",
        "if not found.exists():",
        [*pytest("tests/process/test_chat_damage.py"), "-k", "begins_anew"],
    ),
    Mutant(
        "chat: a key that may read reads the log of all chats over HTTP",
        "topicd/gateway/keys.py",
        "    if not rights.allows(name) and not (",
        "    if rights.prefixes and not name.startswith(rights.prefixes) and not (",
        [*pytest("tests/process/web/test_http_chat.py"), "-k", "read_by_no_key"],
    ),
    # ---- schemas ----
    Mutant(
        "schema: the quick way for single records does not look",
        "shards/delivery/writing/append.py",
        "topic.policy.own or topic.policy.schema is not None or",
        "topic.policy.own or",
        pytest("tests/unit/delivery/writing/test_delivery_schema.py"),
    ),
    Mutant(
        "schema: what cannot be checked is let through",
        "shards/delivery/writing/schema.py",
        '        return NotReady(f"the schema of topic',
        '        return None and NotReady(f"the schema of topic',
        pytest("tests/unit/delivery/writing/test_delivery_schema.py"),
    ),
    Mutant(
        "schema: patterns may take for ever",
        "shards/delivery/writing/schema.py",
        "pattern_options=options, ",
        "",
        pytest("tests/unit/delivery/writing/test_delivery_schema.py"),
    ),
    # ---- consumers ----
    Mutant(
        "stats: all consumers are listed, not those furthest behind",
        "shards/delivery/laggards.py",
        "            if len(self._found) < TOP_CONSUMERS:",
        "            if len(self._found) >= 0:",
        pytest("tests/unit/delivery/test_delivery_laggards.py"),
    ),
    # ---- channels ----
    Mutant(
        "channel: applied before it is saved",
        "shards/delivery/channels/mutations.py",
        "        if wanted.config.persist:\n            channel.saved = await self._files.save(wanted, channel.saved)\n"
        "        self._registry.apply(channel, wanted)\n",
        "        self._registry.apply(channel, wanted)\n"
        "        if wanted.config.persist:\n"
        "            channel.saved = await self._files.save(wanted, channel.saved)\n",
        pytest("tests/unit/delivery/ops/test_delivery_ops_channels.py"),
    ),
    Mutant(
        "channel: a save whose last sync failed is left as it is",
        "shards/delivery/channels/store.py",
        "        except OSError:\n            self._put_back(path, before)\n            raise\n        return Saved",
        "        except OSError:\n            raise\n        return Saved",
        pytest("tests/unit/delivery/channels/test_delivery_store.py"),
    ),
    Mutant(
        "channel: its new directory is not synced",
        "shards/delivery/channels/store.py",
        "                self._fs.mkdir(path)\n                self._fs.sync_dir(path.parent)\n",
        "                self._fs.mkdir(path)\n",
        pytest("tests/unit/delivery/channels/test_delivery_store.py"),
    ),
    Mutant(
        "channel: deleted before it is durable",
        "shards/delivery/channels/store.py",
        "                self._sync_or_put_back(path, before)\n",
        "                pass\n",
        pytest("tests/unit/delivery/channels/test_delivery_store.py"),
    ),
    Mutant(
        "channel: logs of channels that cannot be read are swept",
        "shards/delivery/channels/restoring.py",
        " and hash_of_log(topic.name) not in skipped",
        "",
        pytest("tests/unit/delivery/channels/test_delivery_restoring.py"),
    ),
    Mutant(
        "channel: a slot is not given back",
        "shards/delivery/channels/mutations.py",
        "            # Whether it is a member now or not is what this shard knows.\n"
        "            self._slots.release(user, channel.handler)\n",
        "            pass\n",
        pytest("tests/unit/delivery/channels/test_delivery_slots.py"),
    ),
    Mutant(
        "channel: messages that cannot be read take those before them with them",
        "shards/delivery/channels/publishing.py",
        "                if not found:\n                    raise\n                break\n",
        "                raise\n",
        pytest("tests/process/test_channel_logs.py"),
    ),
    Mutant(
        "queue of a channel: an element is handed out before the cursor is behind it",
        "shards/delivery/channels/fifo.py",
        "        while self._durable <= element.seq:\n",
        "        while False:\n",
        pytest("tests/unit/delivery/channels/test_delivery_fifo.py"),
    ),
    Mutant(
        "queue of a channel: its metadata before its cursor",
        "shards/delivery/channels/mutations.py",
        "                await queue.clear(topic.seqs.head)\n                wanted = replace(state, type=FIFO)\n"
        "                await self._save(channel, wanted)\n",
        "                wanted = replace(state, type=FIFO)\n                await self._save(channel, wanted)\n"
        "                await queue.clear(topic.seqs.head)\n",
        ["-m", "tests.faults.channel_sweep", "type"],
    ),
    # ---- WAL: append ----
    Mutant(
        "jobs: what a snapshot knows to be done is not deleted again",
        "shards/delivery/starting/recovery.py",
        '        if "no" not in body or topic.changes.is_new(int(body["no"])):\n'
        "            topic.queue.replay(FrameType.LEASE, body, 0)\n",
        '        if "no" in body and not topic.changes.is_new(int(body["no"])):\n            return\n'
        "        topic.queue.replay(FrameType.LEASE, body, 0)\n",
        ["-m", "pytest", "-q", "-x", "tests/faults/test_recovery.py", "-k", "jobs"],
    ),
    Mutant(
        "jobs: acknowledged before it is stored",
        "shards/delivery/queues/ending.py",
        "            need=topic.policy.need,\n",
        "            need=Need.PLACED,\n",
        sweep("jobs", "crash"),
    ),
    Mutant(
        "jobs: any number passes for that of the lease",
        "shards/delivery/queues/leases.py",
        "(not number or grant.base + seq - grant.first == number) and ",
        "",
        pytest("tests/unit/delivery/queues"),
    ),
    Mutant(
        "jobs: a number stands for any node",
        "shards/delivery/queues/leases.py",
        " and (not node or grant.node == node)\n",
        "\n",
        pytest("tests/unit/delivery/queues"),
    ),
    Mutant(
        "jobs: answered before the log has it",
        "shards/delivery/queues/ending.py",
        "        if not topic.policy.logged or not topic.live:\n            self._applied()\n            return\n",
        "        self._applied()\n        return\n",
        pytest("tests/unit/delivery/queues/test_delivery_ending.py"),
    ),
    Mutant(
        "jobs: deleted before the dead letter is there",
        "shards/delivery/queues/burying.py",
        "            error = await self._try_often(service, seq)\n",
        "            service.ending().buried.append(seq)\n            error = await self._try_often(service, seq)\n",
        pytest("tests/unit/delivery/queues/test_delivery_burying.py"),
    ),
    Mutant(
        "jobs: handed out before what is finished first is stored",
        "shards/delivery/ops/queues.py",
        "        ending.acknowledge(held)\n        ending.then_claim(taker)\n",
        "        ending.acknowledge(held)\n        service.endings.go_on([taker])\n",
        pytest("tests/unit/delivery/ops/test_delivery_ops_queues.py"),
    ),
    Mutant(
        "jobs: handed out before the one that is finished first is stored",
        "shards/delivery/ops/queues.py",
        "        ending.done.append(seq)\n        ending.then_claim(taker)\n",
        "        ending.done.append(seq)\n        service.endings.go_on([taker])\n",
        pytest("tests/unit/delivery/ops/test_delivery_ops_queues.py"),
    ),
    Mutant(
        "jobs: those that came back are passed over the short way",
        "shards/delivery/queues/handing.py",
        "        if not usual or lane.back or jobs.past or len(jobs.keys):\n",
        "        if not usual or len(jobs.keys):\n",
        pytest("tests/unit/delivery/queues/test_delivery_handing.py"),
    ),
    Mutant(
        "jobs: a lease that was given the short way ends when nobody looks",
        "shards/delivery/queues/service.py",
        "            if not due or due > deadline + (1 if self.takers else _AT_REST_MS):\n",
        "            if False:\n",
        pytest("tests/unit/delivery/queues/test_delivery_burying.py"),
    ),
    Mutant(
        "jobs: a part of what was handed out together counts for all of it",
        "shards/delivery/queues/states.py",
        "            elif grant.first == seq and grant.last <= last and grant.size >= 0 and size >= 0:\n",
        "            elif grant.size >= 0 and size >= 0:\n",
        pytest("tests/unit/delivery/queues/test_delivery_handing.py"),
    ),
    Mutant(
        "jobs: done in two segments they are marked in one",
        "shards/delivery/removing/deletion.py",
        "        if info.first_seq > first or last > info.last_seq or ",
        "        if ",
        pytest("tests/unit/delivery/queues/test_delivery_handing.py"),
    ),
    Mutant(
        "jobs: handed out to a connection that has ended meanwhile",
        "shards/delivery/queues/ending.py",
        "            elif not taker.outbox.gone:\n",
        "            else:\n",
        pytest("tests/unit/delivery/ops/test_delivery_ops_queues.py"),
    ),
    Mutant(
        "jobs: what was handed out together ends together though a part is somebody else's",
        "shards/delivery/queues/leases.py",
        "        if grant.left != last - first + 1:\n            return None\n",
        "",
        pytest("tests/unit/delivery/queues/test_delivery_leases.py"),
    ),
    Mutant(
        "jobs: finished before what it leads to is stored",
        "topicd/client/blocking/queue.py",
        "        if then:\n            self._publish_then(job, then)\n"
        "        ours = not self._ack(leased_rows([job.key])).skipped\n",
        "        ours = not self._ack(leased_rows([job.key])).skipped\n"
        "        if then:\n            self._publish_then(job, then)\n",
        pytest("tests/unit/client/blocking/test_client_queue.py"),
    ),
    Mutant(
        "jobs: of a stream, finished before what it leads to is stored",
        "topicd/client/blocking/work.py",
        "        if then:\n            self._queue._publish_then(job, then)\n        if wait:\n"
        "            ours = self._finish_now(job)\n",
        "        if wait:\n            ours = self._finish_now(job)\n            if then:\n"
        "                self._queue._publish_then(job, then)\n",
        pytest("tests/unit/client/blocking/test_client_queue.py"),
    ),
    Mutant(
        "jobs: lease numbers begin anew with each run",
        "shards/delivery/queues/leases.py",
        "        self.next_number = max(self.next_number, self.marked, (run << RUN_SHIFT) + 1)\n",
        "        self.next_number = max(self.next_number, 1)\n",
        pytest("tests/unit/delivery/queues/test_delivery_leases.py"),
    ),
    Mutant(
        "jobs: leaving an asyncio loop blocks it",
        "topicd/client/aio/work.py",
        "        if is_running(self._loop):\n",
        "        if False and is_running(self._loop):\n",
        pytest("tests/unit/client/aio/test_client_aio_queue.py"),
    ),
    Mutant(
        "jobs: who asks does not wait for what a loop left",
        "topicd/client/aio/caller.py",
        "        if self._partings:\n            await self._until_parted()\n",
        "",
        pytest("tests/unit/client/aio/test_client_aio_queue.py"),
    ),
    Mutant(
        "jobs: groups that have had their share are forgotten",
        "shards/delivery/queues/service.py",
        "            self.jobs.lanes.unpark(now, self.jobs.limits)",
        "            pass",
        pytest("tests/unit/delivery/queues/test_delivery_service.py"),
    ),
    Mutant(
        "jobs: a clock that is set back wakes nobody",
        "shards/delivery/queues/deadlines.py",
        "        while heap and (set_back or heap[0][0] <= now):\n",
        "        while heap and heap[0][0] <= now:\n",
        pytest("tests/unit/delivery/queues"),
    ),
    Mutant(
        "jobs: a key until the start outlives it with the lease",
        "shards/delivery/queues/jobs.py",
        "                self.keys.started(seq)\n",
        "",
        pytest("tests/unit/delivery/queues/test_delivery_jobs.py"),
    ),
    Mutant(
        "jobs: a worker holds on to what can never run",
        "topicd/client/worker/running.py",
        "        return job.fail(reason)\n",
        "        raise\n",
        pytest("tests/unit/client/worker"),
    ),
    Mutant(
        "jobs: a worker holds on to what it could not report",
        "topicd/client/worker/running.py",
        "            job.settled = True  # Its lease ends, extended by nobody, and it is delivered again.\n",
        "",
        pytest("tests/unit/client/worker"),
    ),
    Mutant(
        "jobs: what comes to a claim that was given up stays with nobody",
        "topicd/client/aio/queue.py",
        "            asked.add_done_callback(self._nobody_waits)\n",
        "            asked.cancel()\n",
        pytest("tests/process/test_workers.py::test_jobs_of_a_claim_that_was_given_up_are_everybodys_at_once"),
    ),
    Mutant(
        "jobs: a key is taken for two seqs",
        "topicd/client/core/held.py",
        "    if isinstance(jobs, HeldJob | int) or _is_key(jobs):\n",
        "    if isinstance(jobs, HeldJob | int):\n",
        pytest("tests/unit/client/core"),
    ),
    Mutant(
        "append: not synced",
        "shards/wal/log.py",
        "            self._require_active().file.sync_data()\n",
        "            self._require_active()\n",
        sweep("append", "crash"),
    ),
    Mutant(
        "append: acknowledged before the sync",
        "shards/delivery/writing/durability.py",
        "    Durability.FSYNC: Need.SYNCED,\n",
        "    Durability.FSYNC: Need.WRITTEN,\n",
        sweep("append", "crash"),
    ),
    Mutant(
        "append: counters told before they are true",
        "shards/wal/committer.py",
        "        try:\n            self.log.append(parts, length)\n",
        "        for take in group:\n"
        "            take.inlet.ring.set_written(take.end)\n            take.inlet.ring.set_synced(take.end)\n"
        "        try:\n            self.log.append(parts, length)\n",
        sweep("append", "crash,step"),
    ),
    Mutant(
        "append: a file whose sync failed is written again",
        "shards/wal/log.py",
        "        self.lsn = self.synced_lsn\n        self._abandon_active()\n",
        "",
        sweep("append", "once"),
    ),
    Mutant(
        "append: a failed write leaves unsynced groups in between",
        "shards/wal/committer.py",
        "        self._secure_written()\n",
        "",
        sweep("slow delivery", "once,always"),
    ),
    Mutant(
        "sync beside: said to cover what was written meanwhile",
        "shards/wal/committer.py",
        "        self._tell_synced(self._beside)\n",
        "        self._tell_synced([inlet.written for inlet in self.inlets])\n",
        pytest("tests/unit/wal/test_wal_aside.py"),
    ),
    Mutant(
        "sync beside: the log takes what was written meanwhile for synced",
        "shards/wal/log.py",
        "            self.synced_lsn = covers\n",
        "            self.synced_lsn = self.lsn\n",
        pytest("tests/unit/wal/test_wal_aside.py"),
    ),
    Mutant(
        "sync beside: another one at the same time hears nothing of its failure",
        "shards/wal/log.py",
        "        if self.syncs_beside:\n",
        "        if False:\n",
        pytest("tests/unit/wal/test_wal_aside.py"),
    ),
    Mutant(
        "sync beside: whoever wished for it is not rung",
        "shards/wal/committer.py",
        "            waited_for = max(inlet.ring.sync_wanted_pos, inlet.ring.sync_wished_pos)\n",
        "            waited_for = inlet.ring.sync_wanted_pos\n",
        pytest("tests/unit/wal/test_wal_turns.py"),
    ),
    Mutant(
        "sync beside: it covers nothing that fails",
        "shards/wal/committer.py",
        '            self._fail(exc, "sync")\n            return False\n        self._note_sync(took_s)\n',
        "            return False\n        self._note_sync(took_s)\n",
        pytest("tests/unit/wal/test_wal_aside.py"),
    ),
    Mutant(
        "append: what was visible is not sent again",
        "shards/delivery/writing/outlet.py",
        "        for parts in [*(parts for end, parts in seen if end not in ends), *waiting]:\n",
        "        for parts in []:\n",
        pytest("tests/faults/test_wal_failures.py"),
    ),
    Mutant(
        "append: name of the WAL's directory not synced",
        "shards/wal/log.py",
        "        self._fs.sync_dir(self._directory.parent)\n",
        "",
        pytest("tests/faults/test_recovery.py"),
    ),
    # ---- many segments of one topic ----
    Mutant(
        "flood: names before bytes",
        "shards/storage/segment/jobs.py",
        "    _for_each_root(new, fs.sync_filesystem)\n",
        "",
        sweep("flood", "crash"),
    ),
    Mutant(
        "flood: a name before that of its predecessor",
        "shards/storage/segment/jobs.py",
        "work.segment + DATA), SyncDir(work.place), _index(work)]\n",
        "work.segment + DATA), _index(work)]\n",
        sweep("flood", "crash"),
    ),
    Mutant(
        "flood: goes on behind one that failed",
        "shards/storage/segment/jobs.py",
        "    synced = list(takewhile(lambda work: work.result.ok, new))\n",
        "    synced = [work for work in new if work.result.ok]\n",
        sweep("flood", "once"),
    ),
    # ---- direct writes ----
    Mutant(
        "direct: what comes later overtakes it in the log",
        "shards/delivery/writing/append.py",
        "        elif entry.direct or topic.flight.behind_direct:\n",
        "        elif entry.direct:\n",
        sweep("direct writes", "crash,kill"),
    ),
    Mutant(
        "direct: the log forgets the claim before the batch is stored",
        "shards/delivery/writing/direct.py",
        "            self._log.outlet_of(topic).pins.add(position)\n",
        "",
        pytest("tests/faults/test_direct.py"),
    ),
    Mutant(
        "direct: numbers of a producer out of order in the log",
        "shards/delivery/writing/direct.py",
        "        in_order = not waiting or waiting[-1].announced\n",
        "        in_order = True\n",
        sweep("direct writes", "crash,kill"),
    ),
    Mutant(
        "direct: a claim counts whoever has its seqs",
        "shards/delivery/starting/replay.py",
        " and self._checksum_at(topic, claim.last_seq) == claim.last_xxh3:\n",
        ":\n",
        pytest("tests/faults/test_direct.py"),
    ),
    Mutant(
        "direct: claims do not count",
        "shards/delivery/starting/recovery.py",
        "            self._appends.claim(topic, view, run)\n",
        "            pass\n",
        sweep("direct writes", "crash,kill"),
    ),
    Mutant(
        "direct: half a batch stays after a crash",
        "shards/delivery/starting/holes.py",
        "            self._cut_open_batch(topic, claims)\n",
        "            pass\n",
        sweep("direct writes", "crash,kill"),
    ),
    Mutant(
        "direct: what a failed one left is not cleared",
        "shards/delivery/storing/checkpoint_round.py",
        "                clear_debris(fs, *self.ends[topic_id])\n                self.unclear.remove(topic_id)\n",
        "                self.unclear.remove(topic_id)\n",
        sweep("direct writes", "once,always"),
    ),
    Mutant(
        "direct: a torn one is called damage",
        "shards/delivery/starting/holes.py",
        "            last = cut.indexed if first in claims else cut.last_seq\n",
        "            last = cut.last_seq\n",
        sweep("direct writes", "crash"),
    ),
    Mutant(
        "direct: acknowledged before its index is synced",
        "shards/storage/segment/jobs.py",
        "(job.index,), job.direct and job.seal is None)\n",
        "(job.index,), False)\n",
        pytest("tests/unit/storage/segment/test_segment_jobs.py"),
    ),
    # ---- WAL: rotation, spares, recycling, start ----
    Mutant(
        "rotation: finished file not synced",
        "shards/wal/log.py",
        "            if self.dirty:\n                self.sync()\n",
        "            self.synced_lsn = self.lsn\n",
        sweep("rotation of unsynced files", "crash"),
    ),
    Mutant(
        "rotation: name of the new file not synced",
        "shards/wal/log.py",
        "            self._fs.rename(prepared.path, target)\n            self._fs.sync_dir(self._directory)\n",
        "            self._fs.rename(prepared.path, target)\n",
        sweep("rotation", "crash"),
    ),
    Mutant(
        "recycling: files leave in any order",
        "shards/wal/spares.py",
        "the log would seem to have a hole.\n        self._fs.sync_dir(self._directory)\n",
        "the log would seem to have a hole.\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    Mutant(
        "recycling: files go before every shard has absorbed them",
        "shards/wal/committer.py",
        "            if any(have is not None and have < end for have, end in zip(absorbed, ends, strict=True)):\n"
        "                break\n",
        "",
        sweep("recycling", "crash,kill"),
    ),
    Mutant(
        "start: the log of a killed writer not synced",
        "shards/wal/log.py",
        "        file.sync_data()\n        size, written = file.size(), self.lsn - first_lsn\n",
        "        size, written = file.size(), self.lsn - first_lsn\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    Mutant(
        "start: rings of the killed run not drained",
        "shards/wal/adopt.py",
        "    committer.finish()\n",
        "",
        sweep("append", "restart"),
    ),
    Mutant(
        "start: bells of the dead not rung",
        "shards/wal/committer.py",
        "        # A predecessor may have been killed between a counter and its bell, or with the bell half rung.\n"
        "        self._ring_all()\n",
        "",
        sweep("append", "step"),
    ),
    # ---- checkpoint, seal, snapshot ----
    Mutant(
        "checkpoint: data not synced",
        "shards/storage/segment/jobs.py",
        "    return [_data(work, sync=True), *named, _index(work)]",
        "    return [_data(work, sync=False), *named, _index(work)]",
        sweep("recycling", "crash"),
    ),
    Mutant(
        "checkpoint: runs ahead of the WAL",
        "shards/delivery/storing/rounds.py",
        "                await self._wal_sync.wait()\n",
        "                pass\n",
        sweep("checkpoint and seal", "crash"),
    ),
    Mutant(
        "seal: index not synced",
        "shards/storage/segment/jobs.py",
        "    return [index, table] if sync else [table]",
        "    return [table]",
        sweep("checkpoint and seal", "crash"),
    ),
    Mutant(
        "snapshot: bytes not synced before the rename",
        "topicd/disk/fs.py",
        "            file.pwrite(parts, 0)\n            file.sync()\n",
        "            file.pwrite(parts, 0)\n",
        sweep("snapshot", "crash"),
    ),
    Mutant(
        "snapshot: the WAL forgets what only the newest knows",
        "shards/delivery/storing/snapshots.py",
        "zip(self._outlets, self._stored, self._marks[0], strict=True)",
        "zip(self._outlets, self._stored, self._marks[-1], strict=True)",
        pytest("tests/faults/test_recovery.py"),
    ),
    Mutant(
        "snapshot: those of earlier runs go at once",
        "shards/storage/snapshot.py",
        "        if not all(self._settled(directory) for directory in siblings):\n",
        "        if False:\n",
        pytest("tests/faults/test_shard_counts.py"),
    ),
    # ---- deletes, floors ----
    Mutant(
        "delete: marks not synced",
        "shards/storage/segment/jobs.py",
        "    _write_and_sync_marks(fs, works)\n",
        "    for work in works:\n        work.run(_write_marks, fs, work)\n        work.close()\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    Mutant(
        "delete: marks never written",
        "shards/delivery/storing/rounds.py",
        "                work.add_marks(place.topic_dir(topic.id), topic, first_seq, ranges, backlog.unsure_marks)\n",
        "                pass\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    Mutant(
        "floors: not in the snapshot",
        "shards/delivery/storing/topic_state.py",
        "        earliest=floors.earliest,\n",
        "        earliest=1,\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    Mutant(
        "floors: deletes are not in the snapshot",
        "shards/delivery/storing/topic_state.py",
        "        delete_below=floors.delete_below,\n",
        "        delete_below=0,\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    # ---- producers ----
    Mutant(
        "dedupe: not rebuilt from the log",
        "shards/delivery/starting/replay.py",
        "                _stored(topic, mark.producer_id, mark.batch_no, mark.first_seq, mark.count)\n",
        "                pass\n",
        sweep("append", "kill"),
    ),
    Mutant(
        "parts: not in the snapshot",
        "shards/delivery/storing/topic_state.py",
        "        parts={part.KEY: part.to_snapshot(seqs.visible) for part in topic.parts()},\n",
        "        parts={},\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    Mutant(
        "dedupe: a mark counts without its batch",
        "shards/delivery/starting/replay.py",
        "            if run.first_seq + run.whole_count >= mark.first_seq + mark.count:\n",
        "            if True:\n",
        pytest("tests/faults/test_recovery.py"),
    ),
    # ---- the dashboard ----
    Mutant(
        "dashboard: names are told to somebody without a token",
        "topicd/gateway/api/dashboard.py",
        "whole if reads else bare",
        "whole",
        pytest("tests/process/web/test_http_dashboard.py::test_without_a_token_there_are_figures_and_no_names"),
    ),
    Mutant(
        "dashboard: the supervisor is asked for nobody",
        "topicd/gateway/dashboard/pulse.py",
        "            if not self._pages and self._end is not None:\n",
        "            if False and self._end is not None:\n",
        pytest("tests/unit/gateway/test_gateway_dashboard.py"),
    ),
    Mutant(
        "dashboard: a search without an end",
        "topicd/gateway/dashboard/scan.py",
        "return self.looked >= SCAN or self._bytes >= BYTES or time.monotonic() > self._ends",
        "return False",
        pytest("tests/process/web/test_http_dashboard.py::test_a_search_says_how_far_it_looked"),
    ),
    Mutant(
        "queue: a waiting job is handed out while its end is on the way to the log",
        "shards/delivery/queues/steering.py",
        "before = [(seq, jobs.withdraw(seq)) for seq in seqs]",
        "before = [(seq, 0) for seq in seqs]",
        pytest("tests/unit/delivery/queues/test_delivery_steering.py"),
    ),
]

# Those around the core, the chat store's and the file channel's stand beside their tests.
MUTANTS += [Mutant(*mutant, pytest(test)) for *mutant, test in (*faults.MUTANTS, *channels.MUTANTS, *storing.MUTANTS)]
MUTANTS += [Mutant(*mutant, pytest(f"tests/unit/chat/{test}")) for *mutant, test in chat.MUTANTS]
MUTANTS += [Mutant(*mutant, pytest(f"tests/unit/filechannel/{test}")) for *mutant, test in filechannel.MUTANTS]


def caught(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory(prefix="topicd-mutant-") as scratch:
        copy = Path(scratch) / "copy"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=IGNORED)
        target = copy / mutant.file
        source = target.read_text()
        if source.count(mutant.old) != 1:
            raise LookupError(f"{mutant.name}: {source.count(mutant.old)} places match in {mutant.file}")
        target.write_text(source.replace(mutant.old, mutant.new))
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        try:
            done = subprocess.run(
                [sys.executable, *mutant.tests],
                cwd=copy,
                env=environment,
                capture_output=True,
                check=False,
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def healthy(tests: list[str]) -> bool:
    """The same tests on the source as it is."""
    return subprocess.run([sys.executable, *tests], cwd=ROOT, capture_output=True, check=False).returncode == 0


def verdicts(wanted: str) -> Iterator[tuple[str, str]]:
    chosen = [mutant for mutant in MUTANTS if wanted in mutant.name]
    stored = [mutant for mutant in storage.MUTANTS if wanted in f"storage: {mutant.name}"]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        baselines = {tuple(m.tests): pool.submit(healthy, m.tests) for m in chosen}
        for tests, fine in baselines.items():
            if not fine.result():
                yield "BROKEN", f"fails without any mutant: python {' '.join(tests)}"
                return
        ours = [(mutant.name, pool.submit(caught, mutant)) for mutant in chosen]
        theirs = [(f"storage: {mutant.name}", pool.submit(storage.killer, mutant)) for mutant in stored]
        for name, future in [*ours, *theirs]:
            try:
                yield ("caught" if future.result() else "SURVIVED"), name
            except (LookupError, SystemExit) as exc:
                yield "OUTDATED", str(exc)


def main() -> int:
    began, found = time.monotonic(), []
    for verdict, name in verdicts(sys.argv[1] if len(sys.argv) > 1 else ""):
        found.append(verdict)
        print(f"{verdict:<9} {name}", flush=True)
    if not found:
        raise SystemExit(f"no mutant has {sys.argv[1]!r} in its name")
    bad = len(found) - found.count("caught")
    print(f"{len(found)} mutants in {time.monotonic() - began:.0f} s, {bad} not caught")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
