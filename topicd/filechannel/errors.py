"""What can go wrong with a file channel. Each is also one of the shared errors, so code, status and retriable hold."""

from __future__ import annotations

from topicd.errors import Conflict, FormatError, InvalidRequest, NotReady, StorageCorrupt, StorageFailed, Throttled

VERIFY = "`topicctl filechannel verify DIR` names all that is damaged"


class InUse(Conflict):
    """Another process, or this one, has the writer's lock or the receiver open; detail.pid says which."""


class ChannelClosed(Conflict):
    """The channel, sender or receiver was closed."""


class ChannelFull(Throttled):
    """max_bytes is reached and the receivers have not made room."""


class ChannelFailed(StorageFailed):
    """A write or a sync failed earlier: the channel can be read, and written again once it was opened anew."""

    retriable = False


class NotEnough(NotReady):
    """There are not enough messages: none is there, or none came within the time given."""


class TooManyUnacked(Throttled):
    """The receiver has handed out max_unacked messages that were not acknowledged."""


class DecodeFailed(FormatError):
    """The codec refused a message's bytes. The message counts as handed out: ack() steps over it."""


class NotUnacked(InvalidRequest):
    """More messages were to be acknowledged than were handed out."""


class OffsetDamaged(StorageCorrupt):
    """Both slots of a receiver's offset fail their checksum: only its owner can say where it goes on."""

    hint = VERIFY


class Damaged(StorageCorrupt):
    """Messages between two offsets cannot be read. Nothing is skipped until skip_damage() is called."""

    hint = VERIFY

    def __init__(self, begin: int, end: int, reason: str) -> None:
        super().__init__(
            f"offsets {begin} to {end} are damaged: {reason}; skip_damage() steps over them",
            begin=begin,
            end=end,
            reason=reason,
        )
        self.begin, self.end, self.reason = begin, end, reason

    def __reduce__(self) -> tuple[type[Damaged], tuple[int, int, str]]:
        return type(self), (self.begin, self.end, self.reason)
