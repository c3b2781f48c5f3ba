"""No descriptors or no memory for this process now. Promise: that says nothing about any file. Whoever judges a file by
the error of a call lets a refusal pass first.
"""

from __future__ import annotations

import errno

from topicd.errors import Throttled

RESOURCES = {errno.EMFILE: "descriptors", errno.ENFILE: "descriptors", errno.ENOMEM: "memory"}


def raise_refusal(error: Exception) -> None:
    """Raises it if it is one, as the kernel says it or as a reader has told it."""
    if isinstance(error, Throttled) or (isinstance(error, OSError) and error.errno in RESOURCES):
        raise error
