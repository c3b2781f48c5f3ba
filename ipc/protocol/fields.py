"""Fields of declared messages. Promise: a value that arrives is checked here and nowhere else, and a refusal says which
field it was, what it may be and what it is.

A rule is written where a dataclass would have its field(); a field with a default may be left out, one whose default is
None may also be nil.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, dataclass_transform

from topicd.channel import check_handler, check_user
from topicd.errors import BatchTooLarge, InvalidRequest
from topicd.limits import (
    CHANNEL_ACL_MAX,
    HANDLER_MAX,
    MAX_NODE,
    MAX_SEQ,
    ROUTER_NAME,
    ROUTER_NAME_RULE,
    TOPIC_NAME,
    TOPIC_NAME_RULE,
    USER_NAME_RULE,
)
from topicd.model import TagMatch, check_topic_name

NODES_MAX = 256
_NEEDED: Any = object()  # the default of a field that has none
NEEDED = _NEEDED


class Rule:
    """How one field is checked, how its value travels, and how it reads in the reference."""

    __slots__ = ("check", "default", "help", "kind", "pack")

    def __init__(
        self,
        kind: str,
        check: Callable[[str, Any], Any],
        default: Any,
        help: str = "",
        pack: Callable[[Any], Any] | None = None,
    ) -> None:
        self.kind = kind
        self.check = check
        self.default = default
        self.help = help
        self.pack = pack

    @property
    def needed(self) -> bool:
        return self.default is _NEEDED


def topic_name(*, help: str = "") -> Any:
    return Rule("topic name", lambda _, value: check_topic_name(value), _NEEDED, help)


def router_name(*, help: str = "") -> Any:
    return Rule("router name", _router_name, _NEEDED, help)


def consumer_name(*, help: str = "") -> Any:
    return Rule("consumer name", _consumer_name, _NEEDED, help)


def schedule_name(*, help: str = "") -> Any:
    return Rule("schedule name", _schedule_name, _NEEDED, help)


def text(most: int, *, default: Any = _NEEDED, help: str = "") -> Any:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{name} must be a string, not {value!r:.100}")
        if len(value) > most:
            raise InvalidRequest(f"{name} has at most {most} characters, this one has {len(value)}")
        return value

    return Rule(f"text, at most {most} characters", check, default, help)


def handler(*, default: Any = _NEEDED, help: str = "") -> Any:
    """A channel."""
    rule = f"text of 1 to {HANDLER_MAX} printable bytes"
    return Rule(rule, lambda _, value: check_handler(value), default, help)


def user(*, default: Any = None, help: str = "") -> Any:
    return Rule(f"user: {USER_NAME_RULE}", lambda _, value: check_user(value), default, help)


def users(*, default: tuple[str, ...] = (), help: str = "") -> Any:
    def check(name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > CHANNEL_ACL_MAX:
            raise InvalidRequest(f"{name} must be a list of at most {CHANNEL_ACL_MAX} users")
        return tuple(check_user(one) for one in value)

    return Rule(f"list of at most {CHANNEL_ACL_MAX:,} users", check, default, help, pack=list)


def payload(*, default: Any = _NEEDED, help: str = "") -> Any:
    def check(name: str, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise InvalidRequest(f"{name} must be bytes, not {type(value).__name__}")
        return value

    return Rule("bytes", check, default, help)


def number(low: int, high: int, *, default: Any = _NEEDED, help: str = "") -> Any:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidRequest(f"{name} must be an integer from {low} to {high}, not {value!r:.100}")
        return value

    return Rule(f"integer, {low:,} to {high:,}" if high < 2**32 else f"integer from {low:,}", check, default, help)


def node(*, default: Any = _NEEDED, help: str = "") -> Any:
    """Who works: 1 to 128 bytes, or nothing where that may be left out."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value.encode()) <= MAX_NODE:
            raise InvalidRequest(f"{name} must be a string of 1 to {MAX_NODE} bytes, not {value!r:.200}")
        return value

    return Rule(f"text, 1 to {MAX_NODE} bytes", check, default, help)


def choice(*allowed: str, default: Any = _NEEDED, help: str = "") -> Any:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}, not {value!r:.100}")
        return str(value)

    return Rule(f"one of {', '.join(allowed)}", check, default, help)


def numbers(low: int, high: int, most: int, *, default: Any = _NEEDED, help: str = "") -> Any:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise InvalidRequest(f"{name} must be a list of integers, not {value!r:.100}")
        if len(value) > most:
            raise BatchTooLarge(f"{name} has at most {most} entries, this one has {len(value)}")
        for one in value:
            if isinstance(one, bool) or not isinstance(one, int) or not low <= one <= high:
                raise InvalidRequest(f"each of {name} must be an integer from {low} to {high}, not {one!r:.100}")
        return tuple(value)

    return Rule(f"list of at most {most:,} integers", check, default, help, pack=list)


def flag(*, default: bool, help: str = "") -> Any:
    def check(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be true or false, not {value!r:.100}")
        return value

    return Rule("true or false", check, default, help)


def blob(low: int, high: int, *, default: Any = _NEEDED, help: str = "") -> Any:
    def check(name: str, value: Any) -> bytes:
        if not isinstance(value, bytes) or not low <= len(value) <= high:
            found = f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)[:100]
            raise InvalidRequest(f"{name} has {low} to {high} bytes, this is {found}")
        return value

    return Rule(f"bytes, {low} to {high:,}" if low < high else f"{low} bytes", check, default, help)


def anything(*, default: Any = None, help: str = "") -> Any:
    """A value that its operation judges itself."""
    return Rule("any", lambda _, value: value, default, help)


def config(*, default: Any = None, help: str = "") -> Any:
    """Fields of a TopicConfig, which has the rules for them."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidRequest(f"{name} must be a map of fields, not {type(value).__name__}")
        return value

    return Rule("map of topic fields", check, default, help)


def tag_match(*, default: Any = None, help: str = "") -> Any:
    return Rule(
        "tag match", lambda _, value: TagMatch.from_wire(value), default, help, pack=lambda value: value.to_wire()
    )


def nodes(*, default: tuple[bytes, ...] = (), help: str = "") -> Any:
    return Rule(
        f"list of at most {NODES_MAX} nodes", _nodes, default, help, pack=lambda found: [n.decode() for n in found]
    )


def start(*, default: Any = None, help: str = "") -> Any:
    """Where a consumer begins: ("earliest" or "latest", 0), ("seq", n) or ("ts", ms)."""
    return Rule("start", _start, default, help, pack=_pack_start)


def maps(of: type[Message], most: int, *, default: Any = (), help: str = "") -> Any:
    """Messages within a message."""

    def check(name: str, value: Any) -> tuple[Message, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise InvalidRequest(f"{name} must be a list of at most {most}")
        if not all(isinstance(entry, dict) for entry in value):
            raise InvalidRequest(f"each of {name} must be a map of {', '.join(of.RULES)}")
        return tuple(of.from_wire(entry) for entry in value)

    kind = f"list of at most {most} maps of {', '.join(of.RULES)}"
    return Rule(kind, check, default, help, pack=lambda entries: [entry.to_wire() for entry in entries])


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        topic_name,
        consumer_name,
        text,
        blob,
        number,
        numbers,
        node,
        choice,
        handler,
        user,
        users,
        payload,
        router_name,
        flag,
        anything,
        config,
        tag_match,
        nodes,
        start,
        maps,
    ),
)
class Message:
    """A map with declared fields. Subclasses name them; values are what the rules' checks return."""

    RULES: ClassVar[dict[str, Rule]] = {}
    OPEN_ENDED: ClassVar[bool] = False  # fields that are not declared are passed over, not refused

    def __init_subclass__(cls, *, open_ended: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.RULES = {name: rule for name, rule in vars(cls).items() if isinstance(rule, Rule)}
        cls.OPEN_ENDED = open_ended
        for name in cls.RULES:
            delattr(cls, name)

    def __init__(self, **values: Any) -> None:
        for name, rule in self.RULES.items():
            value = values.pop(name, rule.default)
            if value is _NEEDED:
                raise TypeError(f"{type(self).__name__} needs {name}")
            setattr(self, name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(values))}")

    @classmethod
    def from_wire(cls, given: dict[str, Any]) -> Self:
        """Checked; raises InvalidRequest."""
        found = cls.__new__(cls)
        for name, rule in cls.RULES.items():
            value = given.get(name, _NEEDED)
            if value is _NEEDED or (value is None and rule.default is None):
                if rule.needed:
                    # The check says best what belongs there.
                    rule.check(name, None)
                    raise InvalidRequest(f"{name} is missing")
                value = rule.default
            else:
                value = rule.check(name, value)
            setattr(found, name, value)
        if not cls.OPEN_ENDED and not cls.RULES.keys() >= given.keys():
            unknown = next(name for name in given if name not in cls.RULES)
            raise InvalidRequest(
                f"there is no field {unknown!r:.100} here, only {', '.join(cls.RULES) or 'an empty map'}"
            )
        return found

    def to_wire(self) -> dict[str, Any]:
        """What has to travel: everything that is not its default."""
        body: dict[str, Any] = {}
        for name, rule in self.RULES.items():
            value = getattr(self, name)
            if rule.needed or value != rule.default:
                body[name] = value if rule.pack is None or value is None else rule.pack(value)
        return body

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def _consumer_name(_: str, value: Any) -> str:
    return _name_of("consumer", value)


def _schedule_name(_: str, value: Any) -> str:
    return _name_of("schedule", value)


def _name_of(what: str, value: Any) -> str:
    if not isinstance(value, str) or not TOPIC_NAME.fullmatch(value):
        raise InvalidRequest(f"{what} name {value!r:.300} is not allowed: {TOPIC_NAME_RULE}")
    return value


def _router_name(_: str, value: Any) -> str:
    if not isinstance(value, str) or not ROUTER_NAME.fullmatch(value):
        raise InvalidRequest(f"router name {value!r:.300} is not allowed: {ROUTER_NAME_RULE}")
    return value


def _nodes(name: str, value: Any) -> tuple[bytes, ...]:
    given: Sequence[Any] = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or len(given) > NODES_MAX or not all(isinstance(node, str) for node in given):
        raise InvalidRequest(f"{name} must be a list of at most {NODES_MAX} strings, not {value!r:.200}")
    packed = tuple(sorted(node.encode() for node in given))
    if any(not 0 < len(node) <= MAX_NODE for node in packed):
        raise InvalidRequest(f"a node has 1 to {MAX_NODE} bytes")
    return packed


def _start(name: str, value: Any) -> tuple[str, int]:
    if isinstance(value, dict) and len(value) == 1:
        ((key, found),) = value.items()
        if key == "at" and found in ("earliest", "latest"):
            return found, 0
        if key in ("seq", "ts") and isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= MAX_SEQ:
            return key, found
    raise InvalidRequest(f"{name} must be {{at: earliest or latest}}, {{seq: n}} or {{ts: ms}}, not {value!r:.100}")


def _pack_start(value: tuple[str, int]) -> dict[str, Any]:
    kind, at = value
    return {"at": kind} if kind in ("earliest", "latest") else {kind: at}
