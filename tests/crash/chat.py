"""`python -m tests.crash.chat`: two chat stores with clocks minutes apart, random operations on both, comparisons that
break off, a wire between the two that breaks, processes and whole daemons killed; after the last comparison of a round
both must hold the same, all that was acknowledged among it, once, and nobody may see a member who was removed last.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.chatpair import Pair, Wire
from tests.support.daemon import SUPERVISOR
from topicd.client.blocking.chat import Chat
from topicd.errors import ChatNotFound, Conflict, ConnectionLost, Forbidden, TopicdError

USERS = [f"user {number}" for number in range(8)]
ROOMS = [f"room {number}" for number in range(5)]
SKEW_MS = 7 * 60_000
VICTIMS = ("chat-00", "chat-00", "dlv-00", "wal-00", SUPERVISOR)


class Storm:
    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        # The second one's clock is minutes ahead.
        self.pair = Pair(root, 0, SKEW_MS)
        self.wire = Wire(self.pair.ports)
        self.acked: dict[str, tuple[str, str]] = {}  # message id: its room, or @user, and as whom it is read
        self.removed: tuple[str, str] | None = None  # (room, user) whose last change was a removal
        self.counts = dict.fromkeys(("operations", "kills", "partitions", "broken syncs", "syncs", "verified rows"), 0)

    # ---- operations ----

    def act(self, chat: Chat) -> None:
        room, user, other = self.random.choice(ROOMS), self.random.choice(USERS), self.random.choice(USERS)
        what = self.random.choice(("send", "send", "send", "many", "dm", "add", "remove", "identity", "mark"))
        try:
            if what == "send":
                self._sent(chat.send(room, f"by {user}", user=user).id, room, USERS[0])
            elif what == "many":
                for one in chat.send_many([(room, str(number)) for number in range(20)], user=user):
                    if not isinstance(one, TopicdError):
                        self._sent(one.id, room, USERS[0])
            elif what == "dm":
                self._sent(chat.send(f"@{other}", "psst", user=user).id, f"@{other}", user)
            elif what == "add":
                chat.add(room, user)
            elif what == "remove":
                chat.remove(room, user)
            elif what == "identity":
                chat.put_identity(user, self.random.randbytes(9))
            else:
                chat.mark(room, 1, user=user)
        except (ChatNotFound, Forbidden, Conflict):
            pass
        self.counts["operations"] += 1

    def _sent(self, msg_id: str, room: str, reader: str) -> None:
        self.acked[msg_id] = (room, reader)

    # ---- a round ----

    def round(self) -> None:
        chats = self.pair.chats()
        for _ in range(self.random.randrange(10, 40)):
            self.act(self.random.choice(chats))
        if self.random.random() < 0.7:
            self.trouble(chats)
        for _ in range(self.random.randrange(5, 20)):
            self.act(self.random.choice(chats))
        self.part_with(chats)
        self.settle(chats)
        self.check(chats)

    def trouble(self, chats: list[Chat]) -> None:
        """Somebody dies, perhaps while the two compare."""
        if self.random.random() < 0.3:
            self.partition(chats)
            return
        victim, side = self.random.choice(VICTIMS), self.random.randrange(2)
        daemon = self.pair.daemons[side]
        beside: threading.Thread | None = None
        if self.random.random() < 0.6:
            beside = threading.Thread(target=self.try_sync, args=(chats[0], 1))
            beside.start()
            time.sleep(self.random.random() * 0.05)
        daemon.kill(victim)
        self.counts["kills"] += 1
        if victim == SUPERVISOR:
            daemon.kill_all()
            daemon.start()
        daemon.wait_ready()
        if beside is not None:
            beside.join()

    def partition(self, chats: list[Chat]) -> None:
        """The wire between the two breaks in the middle of a comparison, and both go on without each other."""
        side = self.random.randrange(2)
        self.wire.cut_after(self.random.choice((0, 100, 2_000, 20_000)))
        try:
            found = self.wire.sync(self.pair, chats[side], 1 - side, self.random.choice(("digest", "negentropy")))
            assert found["equal"]
        except (ConnectionLost, Conflict):
            self.counts["broken syncs"] += 1
        self.counts["partitions"] += 1
        for _ in range(self.random.randrange(5)):
            self.act(self.random.choice(chats))

    def try_sync(self, chat: Chat, to: int) -> None:
        try:
            self.pair.sync(chat, to, self.random.choice(("digest", "negentropy")))
        except TopicdError:
            self.counts["broken syncs"] += 1

    def part_with(self, chats: list[Chat]) -> None:
        """A member is added on one side and later, by the clocks, removed on the other, which does not know of it."""
        room, user = self.random.choice(ROOMS), self.random.choice(USERS)
        chats[0].add(room, user)
        chats[1].remove(room, user)  # its clock is ahead
        self.removed = (room, user)

    def settle(self, chats: list[Chat]) -> None:
        side = self.random.randrange(2)
        deadline = time.monotonic() + 60
        while True:
            try:
                found = self.pair.sync(chats[side], 1 - side, self.random.choice(("digest", "negentropy")))
            except (ConnectionLost, Conflict) as exc:
                if time.monotonic() > deadline:
                    raise AssertionError("the stores cannot be compared") from exc
                continue
            self.counts["syncs"] += 1
            assert found["equal"], f"not equal after a comparison at rest: {found}"
            assert all(one["refused"] == 0 for one in found["domains"].values()), found
            return

    # ---- what must hold ----

    def check(self, chats: list[Chat]) -> None:
        digests = [chat.digest(fresh=True) for chat in chats]
        assert digests[0] == digests[1] == chats[0].digest(), digests
        for user in USERS:
            assert shown(chats[0], user) == shown(chats[1], user), f"the inboxes of {user} differ"
            assert chats[0].identity(user) == chats[1].identity(user)
        for room in ROOMS:
            members = [sorted((one.user, one.role) for one in chat.members(room)) for chat in chats]
            assert members[0] == members[1], f"the members of {room} differ"
        for chat in chats if self.removed else ():
            room, user = self.removed
            assert user not in [one.name for one in chat.members(room)], f"{user} came back to {room}"
            assert room not in [one.chat_name for one in chat.inbox(user, limit=1_000).chats]
            self.sees_nothing(chat, room, user)
        self.check_messages(chats)
        for chat in chats if self.random.random() < 0.3 else ():
            found = chat.verify()
            assert found["differences"] == [], found
            self.counts["verified rows"] += found["rows"]

    def check_messages(self, chats: list[Chat]) -> None:
        places = {(room, "") for room in ROOMS}
        places |= {(room, reader) for room, reader in self.acked.values() if room.startswith("@")}
        for chat in chats:
            found: set[str] = set()
            for room, reader in places:
                ids = [one.id for one in chat.messages(room, user=reader or None)]
                assert len(ids) == len(set(ids)), f"a message is twice in {room}"
                found |= set(ids)
            missing = self.acked.keys() - found
            assert not missing, f"{len(missing)} acknowledged messages are missing"

    def sees_nothing(self, chat: Chat, room: str, user: str) -> None:
        for ask in (chat.read, chat.members, chat.info):
            try:
                ask(room, user=user)
            except Forbidden:
                continue
            raise AssertionError(f"{user}, who was removed, still sees {room}")


def shown(chat: Chat, user: str) -> list[tuple[Any, ...]]:
    """As two stores must agree on it; rows without messages have no order of their own."""
    rows = chat.inbox(user, limit=1_000).chats
    return sorted((-one.ms, one.chat, one.kind, one.last_id, one.last_sender, one.preview) for one in rows)


def run(root: Path, rounds: int, seed: int, tell: Callable[[str], None]) -> dict[str, int]:
    storm = Storm(root, seed)
    with storm.pair:
        for room in ROOMS:
            storm.pair.chats()[0].send(room, "so that there is one", user=USERS[0])
        for number in range(1, rounds + 1):
            try:
                storm.round()
            except BaseException as exc:
                exc.add_note(f"round {number}, seed {seed}")
                for daemon in storm.pair.daemons:
                    exc.add_note(daemon.log_tail())
                raise
            tell(f"round {number}/{rounds}: {storm.counts}")
        for chat in storm.pair.chats():
            assert chat.verify()["differences"] == []
        storm.wire.close()
    return storm.counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.chat", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    given = parser.parse_args()
    seed = secrets.randbits(31) if given.seed is None else given.seed
    print(f"seed {seed}, {given.rounds} rounds", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topicd-chat-") as scratch:
        counts = run(Path(scratch), given.rounds, seed, lambda line: print(line, flush=True))
    took = time.monotonic() - began
    print(f"{given.rounds} rounds in {took:.0f} s, seed {seed}: both stores equal, nothing lost: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
