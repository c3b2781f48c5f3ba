"""The embedded file channel: a persistent channel in one directory, without a daemon. docs/filechannel.md."""

from topicd.filechannel.channel import FileChannel
from topicd.filechannel.codecs import Codec
from topicd.filechannel.errors import (
    ChannelClosed,
    ChannelFailed,
    ChannelFull,
    Damaged,
    DecodeFailed,
    InUse,
    NotEnough,
    NotUnacked,
    OffsetDamaged,
    TooManyUnacked,
)
from topicd.filechannel.layout import Span
from topicd.filechannel.reading import Gap
from topicd.filechannel.receiver import Receiver
from topicd.filechannel.sender import Sender
from topicd.filechannel.stats import ReceiverStats, Stats

__all__ = [
    "ChannelClosed",
    "ChannelFailed",
    "ChannelFull",
    "Codec",
    "Damaged",
    "DecodeFailed",
    "FileChannel",
    "Gap",
    "InUse",
    "NotEnough",
    "NotUnacked",
    "OffsetDamaged",
    "Receiver",
    "ReceiverStats",
    "Sender",
    "Span",
    "Stats",
    "TooManyUnacked",
]
