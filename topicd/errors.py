"""What can go wrong, as one class per code. Promise: code, status and retriable are part of the contract.

The table in docs/protocol.md is generated from these classes; the wire carries {code, message, detail, retriable}.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TopicdError(Exception):
    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    summary: ClassVar[str] = "something failed inside the daemon; its log says what"
    hint: ClassVar[str | None] = None  # what topicctl advises, where that of the code would be wrong

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = detail

    def to_wire(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "detail": self.detail,
            "retriable": self.retriable,
        }


class InvalidRequest(TopicdError):
    code, status, retriable = "invalid_request", 400, False
    summary = "a field is malformed, missing or outside its range"


class RecordTooLarge(TopicdError):
    code, status, retriable = "record_too_large", 413, False
    summary = "data, meta, tag or node exceeds its limit"


class BatchTooLarge(TopicdError):
    code, status, retriable = "batch_too_large", 413, False
    summary = "more records or bytes than one write may hold"


class Unauthorized(TopicdError):
    code, status, retriable = "unauthorized", 401, False
    summary = "no or unknown credentials"


class Forbidden(TopicdError):
    code, status, retriable = "forbidden", 403, False
    summary = "the credentials do not allow this"


class TopicNotFound(TopicdError):
    code, status, retriable = "topic_not_found", 404, False
    summary = "no topic of that name or id"


class RouterNotFound(TopicdError):
    code, status, retriable = "router_not_found", 404, False
    summary = "no router of that name"


class ConsumerNotFound(TopicdError):
    code, status, retriable = "consumer_not_found", 404, False
    summary = "no consumer of that name on the topic"


class ChannelNotFound(TopicdError):
    code, status, retriable = "channel_not_found", 404, False
    summary = "no channel of that name"


class ChatNotFound(TopicdError):
    code, status, retriable = "chat_not_found", 404, False
    summary = "no chat of that name: nobody is in it and nothing was said"


class NotMember(TopicdError):
    code, status, retriable = "not_member", 403, False
    summary = "the user is no member of the channel"


class NotOwner(TopicdError):
    code, status, retriable = "not_owner", 403, False
    summary = "only the owner of the channel may do this; detail.owner says who it is"


class ChannelFull(TopicdError):
    code, status, retriable = "channel_full", 422, False
    summary = "the channel has max_clients members already"


class ChannelLimit(TopicdError):
    code, status, retriable = "channel_limit", 422, False
    summary = "the user is a member of max_channels_per_user channels already"


class PayloadTooLarge(TopicdError):
    code, status, retriable = "payload_too_large", 413, False
    summary = "a message is larger than the channel's max_payload_size"


class QueueFull(TopicdError):
    code, status, retriable = "queue_full", 422, False
    summary = "a channel of type fifo holds max_persist_messages elements already"


class QueueEmpty(TopicdError):
    code, status, retriable = "queue_empty", 404, False
    summary = "a channel of type fifo has no element to pop"


class NeedsRecovery(TopicdError):
    code, status, retriable = "needs_recovery", 409, False
    summary = "where a channel of type fifo goes on cannot be read; its owner clears it"


class ConsumerHeld(TopicdError):
    code, status, retriable = "consumer_held", 409, False
    summary = "somebody else reads as that consumer, or has taken it over"


class SchemaViolation(TopicdError):
    code, status, retriable = "schema_violation", 422, False
    summary = "a record does not follow the topic's schema; detail has index, path and reason"


class Conflict(TopicdError):
    code, status, retriable = "conflict", 409, False
    summary = "the change contradicts what exists (for example the immutable type)"


class NotAQueue(TopicdError):
    code, status, retriable = "not_a_queue", 409, False
    summary = "the topic is a log: there are no jobs in it"


class Incompatible(TopicdError):
    code, status, retriable = "topic_exists_incompatible", 409, False
    summary = "what exists does not go together with the request; detail.reason says why"


class RouterCycle(TopicdError):
    code, status, retriable = "router_cycle", 409, False
    summary = "records would come back to their source; detail.cycle is the way, allow_cycle permits it"


class OutOfOrder(TopicdError):
    code, status, retriable = "out_of_order", 409, True
    summary = "a batch number came before its predecessor was stored; detail.expected says which is next"


class TopicFull(TopicdError):
    code, status, retriable = "topic_full", 422, False
    summary = "discard: reject and the cap is reached; nothing was stored"


class Throttled(TopicdError):
    code, status, retriable = "throttled", 429, True
    summary = "a bounded resource is full; detail.limit names it, detail.retry_after_ms says when to retry"


class StorageFailed(TopicdError):
    code, status, retriable = "storage_failed", 503, True
    summary = "the disk refused the write or the sync; nothing of the batch was stored"


class ColdUnavailable(TopicdError):
    code, status, retriable = "cold_unavailable", 503, True
    summary = "the records are in the cold directory, whose disk is missing or does not answer"


class StorageCorrupt(TopicdError):
    code, status, retriable = "storage_corrupt", 500, False
    summary = "stored bytes fail their checksum; detail names the file and the range of seqs"


class NotReady(TopicdError):
    code, status, retriable = "not_ready", 503, True
    summary = "the daemon is recovering or draining"


class WrongShard(TopicdError):
    code, status, retriable = "wrong_shard", 421, True
    summary = "the topic belongs to another shard; fetch the shard map anew"


class UnsupportedVersion(TopicdError):
    code, status, retriable = "unsupported_version", 400, False
    summary = "protocol or format version not known here"


class Internal(TopicdError):
    pass


class ConnectionLost(TopicdError):
    """Raised by the client library only: the outcome of what was under way is unknown until it is retried."""

    code, status, retriable = "connection_lost", 503, True
    summary = "the connection to the daemon broke or could not be made (client side)"


class FormatError(TopicdError):
    """A file or message whose bytes do not follow the documented layout."""

    code, status, retriable = "format_error", 500, False
    summary = "a file's bytes do not follow the documented layout"


ERRORS: dict[str, type[TopicdError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        RecordTooLarge,
        BatchTooLarge,
        Unauthorized,
        Forbidden,
        TopicNotFound,
        RouterNotFound,
        ConsumerNotFound,
        ChannelNotFound,
        ChatNotFound,
        NotMember,
        NotOwner,
        ChannelFull,
        ChannelLimit,
        PayloadTooLarge,
        QueueFull,
        QueueEmpty,
        NeedsRecovery,
        ConsumerHeld,
        SchemaViolation,
        Conflict,
        NotAQueue,
        Incompatible,
        RouterCycle,
        OutOfOrder,
        TopicFull,
        Throttled,
        StorageFailed,
        ColdUnavailable,
        StorageCorrupt,
        NotReady,
        WrongShard,
        UnsupportedVersion,
        Internal,
        ConnectionLost,
        FormatError,
    )
}


def from_wire(body: dict[str, Any]) -> TopicdError:
    """The exception a peer described; an unknown code becomes TopicdError and keeps its text."""
    cls = ERRORS.get(str(body.get("code")), TopicdError)
    detail = body.get("detail")
    error = cls(str(body.get("message", "")))
    if isinstance(detail, dict):
        error.detail = {str(k): v for k, v in detail.items()}
    return error
