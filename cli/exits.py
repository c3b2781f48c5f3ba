"""Exit codes of topicctl and the one place that maps errors to them. Promise: scripts may rely on the codes."""

from __future__ import annotations

from enum import IntEnum

from topicd import errors
from topicd.errors import TopicdError


class Exit(IntEnum):
    OK = 0
    FAILED = 1  # something went wrong, or damage was found
    USAGE = 2  # the command line or a value in it is wrong
    NO_DAEMON = 3  # nothing answers at the socket
    NOT_FOUND = 4  # no such topic, router, consumer or file
    REFUSED = 5  # understood and declined: not allowed, full, in conflict, too large, directory in use
    TRY_AGAIN = 6  # busy, not ready, or the disk refuses for now
    INTERRUPTED = 130  # Ctrl-C
    PIPE_CLOSED = 141  # the reader of our output left


EXIT_OF: dict[type[TopicdError], Exit] = {
    errors.InvalidRequest: Exit.USAGE,
    errors.RecordTooLarge: Exit.REFUSED,
    errors.BatchTooLarge: Exit.REFUSED,
    errors.Unauthorized: Exit.REFUSED,
    errors.Forbidden: Exit.REFUSED,
    errors.TopicNotFound: Exit.NOT_FOUND,
    errors.RouterNotFound: Exit.NOT_FOUND,
    errors.ConsumerNotFound: Exit.NOT_FOUND,
    errors.ChannelNotFound: Exit.NOT_FOUND,
    errors.ChatNotFound: Exit.NOT_FOUND,
    errors.NotMember: Exit.REFUSED,
    errors.NotOwner: Exit.REFUSED,
    errors.ChannelFull: Exit.REFUSED,
    errors.ChannelLimit: Exit.REFUSED,
    errors.PayloadTooLarge: Exit.REFUSED,
    errors.QueueFull: Exit.REFUSED,
    errors.QueueEmpty: Exit.NOT_FOUND,
    errors.NeedsRecovery: Exit.REFUSED,
    errors.Conflict: Exit.REFUSED,
    errors.ConsumerHeld: Exit.REFUSED,
    errors.SchemaViolation: Exit.REFUSED,
    errors.NotAQueue: Exit.REFUSED,
    errors.Incompatible: Exit.REFUSED,
    errors.RouterCycle: Exit.REFUSED,
    errors.OutOfOrder: Exit.TRY_AGAIN,
    errors.TopicFull: Exit.REFUSED,
    errors.Throttled: Exit.TRY_AGAIN,
    errors.StorageFailed: Exit.TRY_AGAIN,
    errors.ColdUnavailable: Exit.TRY_AGAIN,
    errors.StorageCorrupt: Exit.FAILED,
    errors.NotReady: Exit.TRY_AGAIN,
    errors.WrongShard: Exit.TRY_AGAIN,
    errors.UnsupportedVersion: Exit.REFUSED,
    errors.ConnectionLost: Exit.NO_DAEMON,
    errors.FormatError: Exit.FAILED,
}

HINT_OF: dict[type[TopicdError], str] = {
    errors.ConnectionLost: "start it with `topicd`, or name its socket with --socket or TOPICD_SOCKET",
    errors.TopicNotFound: "`topicctl topic list` shows all topics",
    errors.RouterNotFound: "`topicctl router list` shows all routers",
    errors.RouterCycle: "--allow-cycle permits it",
    errors.ConsumerNotFound: "`topicctl consumer list TOPIC` shows all consumers",
    errors.ChannelNotFound: "`topicctl channel join CHANNEL` makes it; `topicctl channel list` shows all",
    errors.ChatNotFound: "`topicctl chat inbox --as USER` shows the chats of a user",
    errors.NotMember: "`topicctl channel join CHANNEL` makes you a member; --as says on whose behalf",
    errors.NeedsRecovery: "`topicctl channel clear CHANNEL` gives up what is in it",
    errors.ConsumerHeld: "--takeover takes its place, and tells it so",
    errors.Unauthorized: "TOPICD_TOKEN holds the token, TOPICD_CA_FILE the certificates to trust",
    errors.Forbidden: "a token has scopes and prefixes: `topicctl token list` where the daemon runs",
    errors.TopicFull: "raise the cap with `topicctl topic config`, or make room with `topicctl delete`",
    errors.Throttled: "try again a little later",
    errors.NotReady: "`topicctl status` shows how far recovery is; --timeout waits longer",
    errors.StorageFailed: "free space or look at the daemon's log; `topicctl status` shows failed shards",
    errors.ColdUnavailable: "`topicctl tier status` says what is wrong with the cold directory",
    errors.StorageCorrupt: "stop the daemon and run `topicctl fsck`",
    errors.UnsupportedVersion: "use the topicctl that came with the daemon",
}


class CliError(Exception):
    """One line, an exit code and perhaps a hint. code: the name of the error where the daemon or the client told it."""

    def __init__(self, message: str, exit_code: Exit = Exit.FAILED, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
        self.code = code


def exit_of(error: TopicdError) -> Exit:
    return next((EXIT_OF[cls] for cls in type(error).__mro__ if cls in EXIT_OF), Exit.FAILED)


def hint_of(error: TopicdError) -> str:
    if isinstance(error, errors.Forbidden) and "token" not in error.detail:
        return ""  # who may connect, who is a member: no token is concerned
    if error.hint is not None:
        return error.hint
    if isinstance(error, errors.Throttled) and "max" in error.detail:
        return f"{error.detail.get('limit')} is a setting of the daemon; or delete what is not needed"
    return next((HINT_OF[cls] for cls in type(error).__mro__ if cls in HINT_OF), "")


def as_cli_error(error: TopicdError) -> CliError:
    """On one line: what stands on further lines is joined to the first."""
    first, *rest = error.message.splitlines() or [error.code]
    text = " ".join([first, "; ".join(line.strip() for line in rest)]).strip()
    return CliError(text, exit_of(error), hint_of(error), error.code)
