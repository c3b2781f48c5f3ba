"""The nouns of channels: handler, user, configuration, access lists, and the record of all that outlives a restart. No
behaviour beyond validation; bytes: shards/storage/channel_file.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from topicd.errors import InvalidRequest
from topicd.limits import (
    CHANNEL_ACL_MAX,
    CHANNEL_FLUSH_MS_MAX,
    CHANNEL_MEMBERS_MAX,
    CHANNEL_PAYLOAD_MAX,
    CHANNELS,
    HANDLER_MAX,
    KIB,
    MAX_SEQ,
    USER_NAME,
    USER_NAME_RULE,
)

PUBSUB = "pubsub"
FIFO = "fifo"
TYPES = (PUBSUB, FIFO)
LISTS = ("join", "publish", "read")


def check_handler(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(_utf8(value)) <= HANDLER_MAX:
        raise InvalidRequest(
            f"channel {value!r:.300} is not allowed: 1 to {HANDLER_MAX} bytes of UTF-8, all of it printable"
        )
    return value


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        return b""


def check_user(value: Any) -> str:
    if not isinstance(value, str) or not USER_NAME.fullmatch(value):
        raise InvalidRequest(f"user {value!r:.200} is not allowed: {USER_NAME_RULE}")
    return value


def channel_hash(handler: str) -> str:
    """The name of the channel's directory: 64 lower-case hex digits, of the handler's bytes and nothing else."""
    import hashlib  # not at every start

    return hashlib.sha256(handler.encode()).hexdigest()


def channel_topic(handler: str) -> str:
    """What places a channel: its logs have names that begin so."""
    return f"{CHANNELS}{channel_hash(handler)}"


def hash_of_log(topic: str) -> str:
    """Whose log the topic of that name is; it begins with CHANNELS."""
    return topic[len(CHANNELS) : len(CHANNELS) + 64]


def is_channel_log(topic: str) -> bool:
    return topic.startswith(CHANNELS)


def _range(low: int, high: int) -> dict[str, Any]:
    return {"range": (low, high)}


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """What a channel promises. A field's metadata is its rule."""

    max_clients: int = field(default=10_000, metadata=_range(1, CHANNEL_MEMBERS_MAX))
    max_payload_size: int = field(default=64 * KIB, metadata=_range(1, CHANNEL_PAYLOAD_MAX))
    max_persist_messages: int = field(default=10_000, metadata=_range(0, MAX_SEQ))
    persist: bool = False
    message_flush_interval: int = field(default=0, metadata=_range(0, CHANNEL_FLUSH_MS_MAX))

    def updated(self, given: Any) -> ChannelConfig:
        """With the given fields changed; every violation names the field, the value and the rule."""
        if not isinstance(given, dict):
            raise InvalidRequest(f"config must be a map of fields, not {type(given).__name__}")
        known = {f.name: f for f in fields(ChannelConfig)}
        for name, value in given.items():
            if name not in known:
                raise InvalidRequest(f"unknown field {name!r:.100} of a channel; known are {', '.join(known)}")
            _check_field(name, value, known[name].metadata.get("range"))
        config = replace(self, **given)
        if config.persist and not config.max_persist_messages:
            raise InvalidRequest(
                "persist needs max_persist_messages above 0: a channel that keeps nothing keeps no history"
            )
        return config

    def to_fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(ChannelConfig)}


def _check_field(name: str, value: Any, rule: tuple[int, int] | None) -> None:
    if rule is None:
        if not isinstance(value, bool):
            raise InvalidRequest(f"field {name} of a channel must be true or false, not {value!r:.100}")
        return
    low, high = rule
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"field {name} of a channel must be an integer from {low} to {high}, not {value!r:.100}")


@dataclass(frozen=True, slots=True)
class ChannelAcl:
    """Who may, list by list, sorted; an empty list: everybody. The owner may in any case."""

    join: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    def with_list(self, name: str, users: tuple[str, ...]) -> ChannelAcl:
        if name not in LISTS:
            raise InvalidRequest(f"a list of a channel is one of {', '.join(LISTS)}, not {name!r:.100}")
        if len(users) > CHANNEL_ACL_MAX:
            raise InvalidRequest(f"a list has at most {CHANNEL_ACL_MAX} names, this one would have {len(users)}")
        return replace(self, **{name: tuple(sorted({check_user(user) for user in users}))})

    def to_fields(self) -> dict[str, list[str]]:
        return {name: list(getattr(self, name)) for name in LISTS}


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Everything about a channel that outlives a restart, if it is persistent."""

    handler: str
    owner: str | None = None
    type: str = PUBSUB
    config: ChannelConfig = ChannelConfig()
    acl: ChannelAcl = ChannelAcl()
    members: tuple[str, ...] = ()  # sorted
    log: str = ""  # what follows the hash in the name of the topic that holds its messages

    @property
    def fifo(self) -> bool:
        return self.type == FIFO

    @property
    def topic(self) -> str:
        return f"{channel_topic(self.handler)}.{self.log}"
