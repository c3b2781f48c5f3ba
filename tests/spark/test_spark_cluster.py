"""A real standalone cluster: executors are processes of their own that reach the daemon by themselves."""

from __future__ import annotations

import json

import pytest

from tests.spark.cluster import Cluster
from topicd.client.blocking.client import Client

pytestmark = pytest.mark.timeout(180)
JOBS = "tests.spark.cluster_jobs"


def test_executors_read_by_socket_and_by_tls_and_one_that_is_killed_costs_nothing(
    cluster: Cluster, client: Client, socket: str, remote: dict[str, str], topic: str
) -> None:
    client.publish_many(topic, [f"order {n}" for n in range(1, 3_001)])
    before = cluster.executors_started()
    answer = cluster.run(JOBS, "read", topic, json.dumps({"socket": socket}), json.dumps(remote))
    assert answer == [[n, f"order {n}"] for n in range(1, 3_001) for _ in range(2)]
    assert cluster.executors_started() - before == 3  # two, and one in place of the lost one
