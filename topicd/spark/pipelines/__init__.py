"""Spark jobs over topics: `topicctl pipeline run NAME`, spark-submit, or `NAME.run(...)` from a notebook.

Each module has a `run(spark, options, progress)` that returns a Report. Reference: docs/spark.md.
"""

from __future__ import annotations

PIPELINES = {
    "archive": "Topics to Parquet, incrementally; may delete what is verified in the archive.",
    "restore": "An archive, or any Parquet, JSON or CSV files, into topics: in order, once.",
    "rollup": "Counts, bytes, rates, gaps and latencies per window, to Parquet or to a topic.",
    "dedup": "Repeated records: a report, a plan, and deletes as far as the daemon has them.",
    "fsck": "Every frame of every segment of a data directory, verified in parallel.",
    "loss-audit": "Seqs that are neither live nor deleted nor reported as removed: there must be none.",
    "membership-audit": "Members of channels by their files and by the daemon: they must be the same.",
    "queue-report": "Throughput, waiting and running times, retries and failures of a queue, by group.",
    "inbox-rollup": "Chats and unread messages of every user of a chat store, from its log.",
    "retention-plan": "What a cutoff would remove from a chat store, chat by chat.",
    "digests": "The digests of a chat store, from its log.",
    "anti-entropy": "What each of two chat stores lacks of the other, by their logs.",
}
