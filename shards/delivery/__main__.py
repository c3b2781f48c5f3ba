"""`python -m topicd.shards.delivery`: one delivery shard."""

import gc


def main() -> None:
    gc.disable()  # until it serves, see Process.serving
    from topicd.shards.delivery.shard import make_clock, serve
    from topicd.shards.process import runtime

    runtime.run(serve, make_clock)


if __name__ == "__main__":
    main()
