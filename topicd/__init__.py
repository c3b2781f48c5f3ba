"""Durable, ordered, replayable topics behind a Unix socket."""

__version__ = "0.1.0"
