"""`benchmarks` is not installed; it is found at the root of the tree, behind everything that is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))
