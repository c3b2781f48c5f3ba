"""The HTTP face of the daemon: a process of its own, a client of the shards. Contract: docs/http.md."""
