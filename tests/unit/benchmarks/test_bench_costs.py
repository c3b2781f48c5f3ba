"""What a round costs is counted for all who took part, and told per record."""

from __future__ import annotations

import os
import time

from benchmarks.costs import Costs


def test_a_round_that_says_its_records_has_a_cost():
    costs = Costs(list)
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    found = costs.added_to({"rate": 1.0, "records": 1_000}, 100)
    assert (
        50 < found["cpu_m"] < 2_000
    )  # seconds per million, of 100 ms and more per thousand; the kernel counts in 10 ms
    assert found["rate"] == 1.0


def test_what_a_server_writes_is_told_per_byte_of_payload(tmp_path):
    costs = Costs(lambda: [os.getpid()])
    with open(tmp_path / "file", "wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    assert costs.added_to({"records": 1_024}, 1_024)["written"] >= 1.0


def test_a_round_without_a_count_is_left_as_it_is():
    assert Costs(list).added_to({"seconds": 1.0}, 100) == {"seconds": 1.0}


def test_a_server_that_ends_meanwhile_is_no_error():
    pids = [[os.getpid()], []]
    costs = Costs(lambda: pids[0])
    assert "cpu_m" in Costs(lambda: [4_000_000]).added_to({"records": 1}, 1)
    assert "cpu_m" in costs.added_to({"records": 1}, 1)
