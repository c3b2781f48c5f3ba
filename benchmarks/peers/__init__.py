"""Every system that can be measured, by name, in the order of a round."""

from __future__ import annotations

import importlib

from benchmarks.peers.base import Peer

# Imported on use: a client library that is not installed must not stop the others.
MODULES = {
    "disk": ("benchmarks.peers.disk", "Disk"),
    "topicd": ("benchmarks.peers.topicd", "Topicd"),
    "http": ("benchmarks.peers.http", "Http"),
    "filechannel": ("benchmarks.peers.queues", "Channel"),
    "redis": ("benchmarks.peers.redis", "Redis"),
    "nats": ("benchmarks.peers.nats", "Nats"),
    "sqlite": ("benchmarks.peers.sqlite", "Sqlite"),
    "beanstalkd": ("benchmarks.peers.beanstalkd", "Beanstalkd"),
    "postgres": ("benchmarks.peers.postgres", "Postgres"),
    "parquet": ("benchmarks.peers.parquet", "Parquet"),
    "persist-file": ("benchmarks.peers.queues", "PersistFile"),
    "persist-default": ("benchmarks.peers.queues", "PersistDefault"),
    "persist-sqlite": ("benchmarks.peers.queues", "PersistSqlite"),
    "litequeue": ("benchmarks.peers.queues", "Lite"),
    "diskcache": ("benchmarks.peers.queues", "Diskcache"),
    "sqlite-queue": ("benchmarks.peers.queues", "PlainSqlite"),
}


def load(name: str) -> type[Peer]:
    """The class of a peer; ImportError when its client library is absent."""
    module, attribute = MODULES[name]
    found: type[Peer] = getattr(importlib.import_module(module), attribute)
    return found
