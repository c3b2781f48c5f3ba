"""Named consumers: their place is kept by the daemon."""

from __future__ import annotations

from topicd.ipc.protocol.fields import consumer_name, number, start, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ, MAX_U64

_ROW = "name, acked_seq, head_seq, lag, updated_ts, topic_id, holder (who reads as it, or empty)"


class OpenConsumer(Request, op=Op.CONSUMER_OPEN, right="consume", changes=True, answer=f"{_ROW}, created"):
    """One that exists keeps its place."""

    topic: str = topic_name()
    name: str = consumer_name()
    start: tuple[str, int] | None = start(help="default: earliest")


class AckConsumer(Request, op=Op.CONSUMER_ACK, right="consume", changes=True, answer=_ROW):
    """A seq below the present one changes nothing, one above the head is a conflict."""

    topic: str = topic_name()
    name: str = consumer_name()
    seq: int = number(0, MAX_SEQ, help="everything up to it is done")
    holder: int = number(
        0, MAX_U64, default=0, help="that of the SUBSCRIBE it reads with: refused when another one reads; 0: whoever"
    )


class ResetConsumer(Request, op=Op.CONSUMER_RESET, right="consume", changes=True, answer=_ROW):
    topic: str = topic_name()
    name: str = consumer_name()
    start: tuple[str, int] | None = start(help="default: earliest")


class RemoveConsumer(Request, op=Op.CONSUMER_REMOVE, right="consume", changes=True, answer="name"):
    topic: str = topic_name()
    name: str = consumer_name()


class ConsumerState(Request, op=Op.CONSUMER_STATE, right="read", answer=_ROW):
    topic: str = topic_name()
    name: str = consumer_name()


class ListConsumers(Request, op=Op.CONSUMER_LIST, right="read", answer=f"consumers [{{{_ROW}}}] by name"):
    topic: str = topic_name()
