"""What a router is: from where to where, and what becomes of a record on the way. Bytes in the log: docs/formats.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import msgpack

from topicd.errors import FormatError, InvalidRequest
from topicd.ipc.protocol.messages import CreateRouter
from topicd.model import TagMatch, is_internal

GUARANTEES = ("at_least_once", "exactly_once")
_OPTIONS = (
    *("preserve_node", "preserve_tag", "filter", "allow_cycle"),
    *("guarantee", "sample", "set_tag", "set_node"),
)
_KEPT = ("sample", "set_tag", "set_node")
FIELD = re.compile(r"\{(tag|node|source)\}")


@dataclass(frozen=True, slots=True)
class Definition:
    router: str
    source: str
    dest: str
    id: int = 0  # seq of the record that created it: never used again
    source_id: int = 0
    dest_id: int = 0
    from_seq: int = 0  # of the source when it was created: what comes behind it is copied
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: str = "at_least_once"
    sample: int = 1
    set_tag: str | None = None
    set_node: str | None = None

    @classmethod
    def wanted(cls, want: CreateRouter, there: Definition | None = None) -> Definition:
        """As it was asked for; what cannot be is refused. there: the one of that name."""
        if want.source == want.dest:
            raise InvalidRequest(f"source and dest of a router are different topics, both are {want.source!r}")
        for name in (want.source, want.dest):
            if is_internal(name):
                raise InvalidRequest(f"topic {name!r} is topicd's own: no router leads there", topic=name)
        if want.guarantee not in GUARANTEES:
            raise InvalidRequest(f"guarantee is {' or '.join(GUARANTEES)}, not {want.guarantee!r}")
        options = {name: getattr(want, name) for name in _OPTIONS}
        if want.keep and there is not None:
            options |= {name: getattr(there, name) for name in _KEPT}
        for part in ("tag", "node"):
            template = options[f"set_{part}"]
            _check_template(f"set_{part}", template)
            if template is not None and not options[f"preserve_{part}"]:
                raise InvalidRequest(f"copies get a {part} (set_{part}) or have none (preserve_{part}), not both")
        return cls(want.router, want.source, want.dest, **options)

    def with_options_of(self, other: Definition) -> Definition:
        return replace(self, **{name: getattr(other, name) for name in _OPTIONS})

    def options(self) -> dict[str, Any]:
        """As answers tell them."""
        told = {name: getattr(self, name) for name in ("router", "source", "dest", *_OPTIONS)}
        return {**told, "filter": None if self.filter is None else self.filter.to_wire()}

    @property
    def plain(self) -> bool:
        """Copies differ from their records in nothing but what the codec does by itself."""
        return self.sample == 1 and self.set_tag is None and self.set_node is None and not self.stamped

    @property
    def stamped(self) -> bool:
        return self.guarantee == "exactly_once"

    # ---- in the log ----

    def to_record(self) -> bytes:
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        body["filter"] = None if self.filter is None else self.filter.to_wire()
        raw: bytes = msgpack.packb({"put": body})
        return raw

    @classmethod
    def from_body(cls, body: dict[str, Any], seq: int) -> Definition:
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in body.items() if name in known}
        given["filter"] = None if given.get("filter") is None else TagMatch.from_wire(given["filter"])
        given["id"] = given.get("id") or seq
        return cls(**given)


def forget_record(ids: list[int]) -> bytes:
    """By id, which is short: a topic may take very many routers along."""
    raw: bytes = msgpack.packb({"forget": ids})
    return raw


def parse_record(data: bytes, seq: int) -> Definition | list[int]:
    """A definition, or the ids of routers that are gone."""
    try:
        body = msgpack.unpackb(data)
        if "put" in body:
            return Definition.from_body(body["put"], seq)
        return [int(number) for number in body["forget"]]
    except (ValueError, TypeError, KeyError, InvalidRequest) as exc:
        raise FormatError(f"record {seq} of the routers' topic makes no sense: {exc}") from None


def _check_template(field: str, template: str | None) -> None:
    """Braces stand for one of the fields, or are not there."""
    if template is None:
        return
    rest = FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        raise InvalidRequest(f"{field} knows {{node}}, {{source}}, {{tag}}, and no other braces: {template!r:.100}")
