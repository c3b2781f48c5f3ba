"""`python -m topicd.shards.wal`: one WAL shard."""

from topicd.shards import runtime
from topicd.shards.wal.shard import serve

if __name__ == "__main__":
    runtime.run(serve)
