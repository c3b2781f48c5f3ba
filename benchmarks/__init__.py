"""Ours and the peers measured side by side: `python -m benchmarks --help`."""
