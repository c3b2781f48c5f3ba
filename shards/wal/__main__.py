"""`python -m topicd.shards.wal`: one WAL shard."""

import gc


def main() -> None:
    gc.disable()  # until it serves, see Process.serving
    from topicd.shards.process import runtime
    from topicd.shards.wal.shard import serve

    runtime.run(serve)


if __name__ == "__main__":
    main()
