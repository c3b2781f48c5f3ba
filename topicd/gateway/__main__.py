"""`python -m topicd.gateway`: the HTTP face."""

import gc


def main() -> None:
    gc.disable()  # until it serves, see Process.serving
    from topicd import child
    from topicd.gateway.process import serve

    child.run(child.boot(), serve)


if __name__ == "__main__":
    main()
