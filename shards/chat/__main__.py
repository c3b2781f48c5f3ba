"""`python -m topicd.shards.chat`: one chat process."""

import gc


def main() -> None:
    gc.disable()  # until it serves, see Process.serving
    from topicd import child
    from topicd.shards.chat.shard import make_clock, serve

    child.run(child.boot(make_clock), serve)


if __name__ == "__main__":
    main()
