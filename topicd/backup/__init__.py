"""Backups of a data directory: made while it is served, verified, restored. Their bytes: docs/formats.md."""
