"""What a declared request is: its op, its right, whether it goes through the log. Each is in REQUESTS under its op."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

from topicd.ipc.protocol import wire
from topicd.ipc.protocol.fields import Message


class Op(IntEnum):
    """Requests below 0x80; one for each verb. The answer to op x is x | 0x80, or ERROR. PUSH and NOTICE follow a
    SUBSCRIBE under its request id, JOBS and NOTICE a WORK."""

    HELLO = wire.OP_HELLO
    PING = wire.OP_PING
    STATUS = wire.OP_STATUS
    CONNECTIONS = 0x04
    BACKUP_HOLD = 0x05
    BACKUP_STILL = 0x06
    BACKUP_FREEZE = 0x07
    BACKUP_CUT = 0x08
    BACKUP_RELEASE = 0x09
    OPEN = 0x10
    CONFIGURE = 0x11
    STATE = 0x12
    LIST = 0x13
    DELETE_TOPIC = 0x14
    FORGIVE_GAP = 0x15
    SYNC_TOPIC = 0x16
    TIER_STATE = 0x17
    TIER_NOW = 0x18
    APPEND = wire.OP_APPEND
    FETCH = wire.OP_FETCH
    DELETE_RECORDS = 0x22
    CUT_TOPIC = 0x2A
    PRODUCER = 0x23
    RELEASE_PRODUCER = 0x24
    OPEN_COMMIT = 0x25
    CLOSE_COMMIT = 0x26
    ABANDON_COMMIT = 0x27
    TOTALS = 0x29
    SUBSCRIBE = 0x30
    UNSUBSCRIBE = 0x31
    CREDIT = wire.OP_CREDIT
    CONSUMER_OPEN = 0x40
    CONSUMER_ACK = 0x41
    CONSUMER_RESET = 0x42
    CONSUMER_REMOVE = 0x43
    CONSUMER_STATE = 0x44
    CONSUMER_LIST = 0x45
    ROUTER_CREATE = 0x46
    ROUTER_GET = 0x47
    ROUTER_LIST = 0x48
    ROUTER_DELETE = 0x49
    ROUTERS_OF = 0x4A
    SOURCE_HEAD = 0x4B
    ROUTERS_LOG = 0x4C
    ROUTER_PROGRESS = 0x4D
    ROUTERS_APPLY = 0x4E
    ROUTERS_FORGET = 0x4F
    CLAIM = wire.OP_CLAIM
    ACK = wire.OP_ACK
    NACK = 0x52
    EXTEND = 0x53
    WORK = 0x54
    STOP_WORK = 0x55
    QUEUE_STATE = 0x56
    QUEUE_PEEK = 0x57
    QUEUE_WHY = 0x58
    QUEUE_PAUSE = 0x59
    QUEUE_RESUME = 0x5A
    QUEUE_DRAIN = 0x5B
    REDRIVE = 0x5C
    CRON_ADD = 0x5D
    CRON_REMOVE = 0x5E
    CRON_LIST = 0x5F
    CHANNEL_JOIN = 0x60
    CHANNEL_LEAVE = 0x61
    CHANNEL_PUBLISH = 0x62
    CHANNEL_WATCH = 0x63
    CHANNEL_HISTORY = 0x64
    CHANNEL_SEQ = 0x65
    CHANNEL_STATE = 0x66
    CHANNEL_ACL = 0x67
    CHANNEL_CONFIG = 0x68
    CHANNEL_TYPE = 0x69
    CHANNEL_DELETE = 0x6A
    CHANNEL_PUSH = 0x6B
    CHANNEL_POP = 0x6C
    CHANNEL_CLEAR = 0x6D
    CHANNEL_LIST = 0x6E
    CHANNEL_SLOTS = 0x6F
    ROUTERS_PASSED = 0x70
    QUEUE_STEER = 0x71
    ROUTER_SKIP = 0x72
    ROUTERS_SKIP = 0x73
    DEBUG = wire.OP_DEBUG
    PUSH = wire.OP_PUSH
    NOTICE = wire.OP_NOTICE
    JOBS = wire.OP_JOBS
    ERROR = wire.OP_ERROR


class Request(Message):
    """A message with an op of its own.

    right: the scope that a token needs, for the topic if the request names one; of several, any one will do.
    changes: it may go through the log, so it waits where too many changes are under way.
    answer: the fields of the answer, for the reference.
    """

    OP: ClassVar[Op]
    RIGHT: ClassVar[tuple[str, ...]] = ()
    CHANGES: ClassVar[bool] = False
    ANSWER: ClassVar[str] = "{}"

    def __init_subclass__(
        cls, *, op: Op, right: str | tuple[str, ...] = (), changes: bool = False, answer: str = "{}", **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls.OP = op
        cls.RIGHT = (right,) if isinstance(right, str) else right
        cls.CHANGES = changes
        cls.ANSWER = answer
        REQUESTS[op] = cls


REQUESTS: dict[int, type[Request]] = {}
