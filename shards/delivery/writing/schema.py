"""The JSON Schema of a topic, and whether a write follows it. Promise: a write is taken whole or refused whole, with
the place in the record and the reason; a schema that cannot be checked refuses writes, it never lets them through.

Bounded: patterns are matched in linear time (no look-around, no references back), nothing is fetched from anywhere, and
one write to a topic with a schema holds at most SCHEMA_WRITE_MAX bytes, since the shard serves nobody while it looks.
What topicd itself writes (copies of routers, dead letters, jobs of schedules) was checked where it came from, or not
at all: refusing it would stop a router or lose a job. The batches of a commit are judged before it is decided, and not
again when they are published (docs/adr/0012).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from topicd._native.interface import Buffer
from topicd.errors import BatchTooLarge, InvalidRequest, NotReady, SchemaViolation, TopicdError
from topicd.frames import core
from topicd.limits import LASTING, MIB, SCATTERED, SCHEMA_WRITE_MAX

_MISSING = "the daemon has no jsonschema_rs: pip install 'topicd[schema]'"
_PATTERN_BYTES = 1 * MIB  # of a compiled pattern
_REASON_MAX = 300
_COMPILED_KEPT = 256  # schemas; a topic whose schema is not among them compiles it again


def check_schema(text: str | None) -> None:
    """Raises what is wrong with a schema, before a topic has it."""
    if text is None:
        return
    try:
        _compiled(text)
    except ImportError:
        raise InvalidRequest(f"config field schema cannot be used: {_MISSING}") from None
    except ValueError as exc:
        raise InvalidRequest(f"config field schema is no JSON Schema: {_first_line(exc)}") from None


def refusal(topic: str, text: str, datas: list[bytes]) -> TopicdError | None:
    """Why records with these data do not go into the topic; None: they do."""
    size = sum(map(len, datas))
    if size > SCHEMA_WRITE_MAX:
        return BatchTooLarge(
            f"a write to topic {topic}, which has a schema, holds at most {SCHEMA_WRITE_MAX} bytes, this one {size}",
            topic=topic,
            cap=SCHEMA_WRITE_MAX,
            what="bytes",
        )
    try:
        validator, read = _compiled(text)
    except (ImportError, ValueError) as exc:  # it was checked before, by a daemon that was installed otherwise
        why = _MISSING if isinstance(exc, ImportError) else _first_line(exc)
        return NotReady(f"the schema of topic {topic} cannot be checked: {why}", topic=topic, retry_after_ms=5_000)
    for index, data in enumerate(datas):
        try:
            value = read(data)
            if validator.is_valid(value):
                continue
            error = next(iter(validator.iter_errors(value)))
        except (ValueError, RecursionError) as exc:
            return _violation(topic, index, "", f"the data cannot be read as JSON: {_first_line(exc)}")
        return _violation(topic, index, pointer(error.instance_path), str(error.message))
    return None


def judged(topic: str, text: str | None, parts: list[Buffer], count: int) -> int:
    """How many of so many records, from the first on, follow the schema: all that one look holds, and one at least.
    Raises why one does not, or that they are no records."""
    if text is None:
        return count
    datas: list[bytes] = []
    room = SCHEMA_WRITE_MAX
    for part in parts:
        for data in core.payloads(part, 0, len(part)):
            room -= len(data)
            if room < 0 and datas:
                break
            datas.append(data)
        if room < 0:
            break
    bad = refusal(topic, text, datas)
    if bad is not None:
        raise bad
    return len(datas)


def digest(text: str | None) -> str:
    """By which a schema is known again; empty: there is none."""
    if text is None:
        return ""
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:32]


def is_checked(producer_id: int) -> bool:
    """False: topicd itself writes, as the queue that a dead letter or a following job comes from."""
    return not SCATTERED <= producer_id < LASTING


def pointer(path: list[str | int]) -> str:
    """As RFC 6901 writes it; empty: the whole."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _violation(topic: str, index: int, path: str, reason: str) -> SchemaViolation:
    reason = reason if len(reason) <= _REASON_MAX else reason[: _REASON_MAX - 1] + "…"
    where = f"record {index} of the write, {path or 'the whole value'}"
    message = f"topic {topic} refuses {where}: {reason}"
    return SchemaViolation(message, topic=topic, index=index, path=path, reason=reason)


@lru_cache(maxsize=_COMPILED_KEPT)
def _compiled(text: str) -> tuple[Any, Any]:
    """The validator, and what reads JSON for it."""
    import json

    import jsonschema_rs
    import msgspec

    options = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES)
    made = jsonschema_rs.validator_for(json.loads(text), pattern_options=options, retriever=_fetch_nothing)
    return made, msgspec.json.decode


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is not part of the schema, and nothing is fetched")


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:_REASON_MAX]
