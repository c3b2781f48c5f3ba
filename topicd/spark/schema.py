"""The columns of a read. Promise: a schema the user gives is followed to the letter (a choice of columns, their order,
another type where there is one) or refused with what is possible.

| column | type | |
|---|---|---|
| topic | string | |
| seq | bigint | |
| ts | timestamp | when the daemon stored it; also timestamp_ntz, in UTC |
| node | string | null: none was given |
| tag | string | null: none was given |
| meta | string | with includeMeta; JSON, see `metas`. Also binary (msgpack as stored) and map<string,string>: |
| | | includeMeta=binary and includeMeta=map |
| data | binary | also string; with valueFormat=json whatever the option `schema` says, with avro and protobuf |
| | | what the schema file says; null where it does not fit |
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from topicd.errors import InvalidRequest
from topicd.spark.options import META_FORMS, ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The first type is the default.
_TYPES: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "seq": ("bigint",),
    "ts": ("timestamp", "timestamp_ntz"),
    "node": ("string",),
    "tag": ("string",),
    "meta": ("string", "map<string,string>", "binary"),
    "data": ("binary", "string"),
}
_META_TYPES = dict(zip(META_FORMS, _TYPES["meta"], strict=True))
_DDL = {"timestamp": "timestamp_ltz"}  # a bare timestamp is what the session's settings say
_ALWAYS = ("topic", "seq", "ts", "data")  # never null
_WHOLE_TYPE = re.compile(r"\s*(struct|array|map)\s*<", re.IGNORECASE)


def default_schema(options: ReadOptions) -> str:
    """DDL, for only the JVM can parse the user's part of it."""
    columns = []
    for name, kinds in _TYPES.items():
        if name == "meta" and options.meta_form is None:
            continue
        kind = _DDL.get(kinds[0], kinds[0])
        if name == "data":
            kind = _data_type(options)
        elif name == "meta":
            kind = _META_TYPES[options.meta_form or ""]
        always = name in _ALWAYS and not (name == "data" and options.parses)
        columns.append(f"{name} {kind}{' NOT NULL' if always else ''}")
    return ", ".join(columns)


def _data_type(options: ReadOptions) -> str:
    if options.codec is not None:
        return options.codec.ddl()
    if options.value_format != "json":
        return options.value_format or "binary"
    if options.value_schema is None:
        raise InvalidRequest('valueFormat=json needs option schema, for example "id INT, total DOUBLE"')
    return options.value_schema if _WHOLE_TYPE.match(options.value_schema) else f"struct<{options.value_schema}>"


def check_schema(schema: StructType, options: ReadOptions) -> None:
    names = schema.fieldNames()
    if len(set(names)) != len(names) or not names:
        raise InvalidRequest(f"the schema must name columns once each: {', '.join(names)}")
    for field in schema.fields:
        if field.name not in _TYPES:
            raise InvalidRequest(f"topics have no column {field.name!r:.100}; there are {', '.join(_TYPES)}")
        kind, allowed = field.dataType.simpleString(), _TYPES[field.name]
        if field.name == "data":
            if options.parses or (options.value_format is None and _WHOLE_TYPE.match(kind)):
                continue
            allowed = allowed if options.value_format is None else (options.value_format,)
        if kind not in allowed:
            raise InvalidRequest(f"column {field.name} cannot be {kind}; it can be {' or '.join(allowed)}")
