"""A file channel under SIGKILL: writers and readers die at random moments, an oracle knows what they were told.

    python -m tests.crash.filechannel --rounds 200 --seed 7

Each round starts a writer and a reader as processes, kills one or both after a random time, and looks at what they had
reported before: every message whose send returned is received, none twice after its acknowledgement returned, all in
order, the files whole. The writer numbers its messages; a message whose send was under way may be there or not.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from topicd.filechannel import FileChannel, NotEnough
from topicd.filechannel.inspect import overview, walk

ROOT = Path(__file__).resolve().parents[2]

# Reports through a pipe with one unbuffered write for each line: what is read there has happened.
WRITER = """
import os, random, sys
from topicd.filechannel import FileChannel
directory, durability, seed, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
channel = FileChannel(directory, durability=durability, segment_bytes=65536, compress=seed % 2 == 0)
sender = channel.sender()
os.write(1, b"ready\\n")
while True:
    count = rng.choice((1, 1, 1, 7, 300))
    batch = [b"%d " % n + b"x" * rng.randrange(200) for n in range(number, number + count)]
    if count == 1:
        sender.send(batch[0])
    else:
        sender.send_many(batch)
    number += count
    os.write(1, b"%d\\n" % number)
"""
READER = """
import os, random, sys
from topicd.filechannel import FileChannel
directory, durability, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
channel = FileChannel(directory, writer=False, durability=durability)
receiver = channel.receiver("reader")
os.write(1, b"ready\\n")
while True:
    found = receiver.recv_many(rng.choice((1, 2, 50)))
    numbers = [int(message.split()[0]) for message in found]
    os.write(1, b"got %d %d\\n" % (numbers[0], numbers[-1] + 1))
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    receiver.ack(len(found))
    os.write(1, b"acked %d\\n" % (numbers[-1] + 1))
"""


class Storm:
    def __init__(self, directory: Path, seed: int, durability: str) -> None:
        self._directory = directory
        self._random = random.Random(seed)
        self._durability = durability
        self.sent = 0  # messages below this were sent
        self.acked = 0  # messages below this were acknowledged
        self._maybe = 0  # messages below this may have been acknowledged
        self.kills = 0

    def round(self) -> None:
        seed = str(self._random.randrange(2**31))
        writer = self._start(WRITER, seed, str(self.sent))
        reader = self._start(READER, seed)
        for process in (writer, reader):
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise AssertionError("a process did not start")
        time.sleep(self._random.uniform(0.0, 0.3))
        order = [writer, reader]
        self._random.shuffle(order)
        for process in order:
            process.kill()
            self.kills += 1
            time.sleep(self._random.choice((0.0, 0.02)))
        reports = {process: process.communicate()[0] for process in order}
        last = [int(line) for line in _lines(reports[writer])]
        self.sent = max([self.sent, *last])
        self._check_reader(_lines(reports[reader]))
        self._check_files()

    def _start(self, code: str, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(self._directory), self._durability, *args]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def _check_reader(self, lines: list[str]) -> None:
        """What was received continues where it was acknowledged; an ack under way may have been done or not."""
        at, handed = self.acked, self._maybe
        fresh = True
        for line in lines:
            what, *numbers = line.split()
            if what == "got":
                first, behind = map(int, numbers)
                expected = {at, handed} if fresh else {handed}
                if first not in expected:
                    raise AssertionError(f"received from {first} on, expected {sorted(expected)}")
                at, handed, fresh = first, behind, False
            elif what == "acked":
                at = self.acked = int(numbers[0])
        self.acked, self._maybe = at, max(handed, at)

    def _check_files(self) -> None:
        """The repair finds no damage, and every message that was sent is there."""
        with FileChannel(self._directory, durability=self._durability, segment_bytes=65536) as channel:  # type: ignore[call-overload]
            if channel.damage:
                raise AssertionError(f"damage: {channel.damage}")
        found = overview(self._directory)
        numbers = []
        for item in walk(self._directory, found.survey.begin, found.end):
            if not isinstance(item, tuple):
                raise AssertionError(f"{item!r} among the messages")
            numbers.append(int(item[1].split()[0]))
        if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
            raise AssertionError("the messages are not in order")
        if numbers and not (numbers[0] <= self._maybe and self.sent <= numbers[-1] + 1):
            raise AssertionError(f"messages {numbers[0]} to {numbers[-1]}, sent {self.sent}, acked {self.acked}")
        if not numbers and self.sent > self._maybe:
            raise AssertionError(f"nothing is left, but {self.sent} were sent and {self._maybe} received")
        # A send that was under way may have been done, and its message received.
        self.sent = numbers[-1] + 1 if numbers else max(self.sent, self._maybe)

    def finish(self) -> None:
        """Everything that is left is received, once."""
        with FileChannel(self._directory, durability="os") as channel:
            receiver = channel.receiver("reader")
            numbers = []
            try:
                while True:
                    message = receiver.recv(0)
                    assert isinstance(message, bytes)
                    numbers.append(int(message.split()[0]))
                    receiver.ack()
            except NotEnough:
                pass
        first = numbers[0] if numbers else self.sent
        if first not in (self.acked, self._maybe) or numbers != list(range(first, self.sent)):
            raise AssertionError(f"left from {first}, acked {self.acked} or {self._maybe}, sent {self.sent}")


def _lines(text: str) -> list[str]:
    """Whole lines only: the last may be cut by the kill."""
    return text.split("\n")[:-1]


def storm(directory: Path, rounds: int, seed: int, durability: str = "os") -> Storm:
    found = Storm(directory, seed, durability)
    for number in range(rounds):
        try:
            found.round()
        except AssertionError as error:
            error.add_note(f"seed {seed}, round {number}, {durability}")
            raise
    found.finish()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    options = parser.parse_args()
    for durability in ("os", "fsync"):
        with tempfile.TemporaryDirectory() as directory:
            found = storm(Path(directory), options.rounds, options.seed, durability)
            print(f"{durability}: {found.kills} kills, {found.sent} messages, all is well; seed {options.seed}")


if __name__ == "__main__":
    main()
