"""Spark looks for modules of this kind by name: with it, `format("topicd")` needs no registration.

Promise: importing it never fails. One such module that does takes every Python data source of the session with it.
"""

import logging

try:
    from topicd.spark.source import TopicdSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception as exc:
    logging.getLogger(__name__).warning('format("topicd") is not available: %s', exc)
