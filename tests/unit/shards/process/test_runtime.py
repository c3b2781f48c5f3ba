"""What every shard has."""

from __future__ import annotations

import os
import subprocess
import sys

_TABLE = """
import resource, sys
from topicd.shards.process.runtime import make_room_for_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
make_room_for_descriptors(0)
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("FDSize")])
import os
print(len(os.listdir("/proc/self/fd")))
"""


def table(limit: int) -> tuple[int, int]:
    """(descriptors that there is room for, those that are open) afterwards, where so many are allowed."""
    done = subprocess.run([sys.executable, "-c", _TABLE, str(limit)], capture_output=True, text=True, check=True)
    room, open_ones = done.stdout.split()
    return int(room), int(open_ones)


def test_there_is_room_for_many_descriptors_from_the_start() -> None:
    assert table(8_192)[0] >= 4_096
    room, open_ones = table(300)
    assert 300 <= room < 4_096  # no more than are allowed
    assert open_ones < 20


def test_what_cannot_be_had_is_done_without() -> None:
    from topicd.shards.process.runtime import make_room_for_descriptors

    before = os.listdir("/proc/self/fd")
    make_room_for_descriptors(999_999)  # no descriptor
    assert len(os.listdir("/proc/self/fd")) == len(before)
