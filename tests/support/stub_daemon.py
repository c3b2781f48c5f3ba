"""topicd with stub children in the place of its shards; takes the same arguments. TOPICD_STUB_THIRD=1 adds a third kind
to the table, `extra`, two of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from topicd.supervisor import kinds
from topicd.supervisor.kinds import Handed, Kind, Stage
from topicd.supervisor.main import main

STUB = (sys.executable, "-P", str(Path(__file__).with_name("stub_child.py")))
EXTRA = Kind(
    name="extra",
    command=STUB,
    how_many=lambda settings: 2,
    stops=Stage(0.15, 0.25),
    hand=lambda held, settings, index, restarts: Handed({"greeting": f"hello {index}", "restarts": restarts}),
    starts_after=("dlv",),
    socket=lambda run_dir, index: run_dir.root / f"extra-{index:02d}.sock",
)

if __name__ == "__main__":
    table = [kind._replace(command=STUB, copied=False) for kind in kinds.KINDS]
    kinds.KINDS = (*table, EXTRA) if os.environ.get("TOPICD_STUB_THIRD") else tuple(table)
    main(prog_name="topicd")
