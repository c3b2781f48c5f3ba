"""The file channel's functions: of the C core, or of their pure-Python twin where topicd._native chose that."""

from __future__ import annotations

from topicd import _native
from topicd._native.channel_interface import ChannelCore


def _choose() -> ChannelCore:
    if _native.is_native:
        from topicd._native import _core

        return _core
    from topicd._native import pure_channel

    return pure_channel


core = _choose()

__all__ = ["ChannelCore", "core"]
