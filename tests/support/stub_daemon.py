"""topicd with stub children in the place of its shards; takes the same arguments."""

from __future__ import annotations

import sys
from pathlib import Path

from topicd.supervisor import child
from topicd.supervisor.main import main

STUB = [sys.executable, "-P", str(Path(__file__).with_name("stub_child.py"))]

if __name__ == "__main__":
    for kind in child.COMMANDS:
        child.COMMANDS[kind] = STUB
    main(prog_name="topicd")
