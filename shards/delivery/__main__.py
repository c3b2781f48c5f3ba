"""`python -m topicd.shards.delivery`: one delivery shard."""

from topicd.shards import runtime
from topicd.shards.delivery.shard import make_clock, serve

if __name__ == "__main__":
    runtime.run(serve, make_clock)
