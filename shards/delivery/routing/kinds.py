"""Which destinations are derived and which are logged (docs/adr/0021). Promise: a destination is derived only while its
copies can be made again from its source, the same ones at the same seqs; whatever could end that waits until the copies
are logged. Each function says why not, or nothing.
"""

from __future__ import annotations

from topicd.model import Durability, TopicConfig
from topicd.shards.delivery.routing.graph import Graph
from topicd.shards.delivery.topic.topic import Topic

_RANK = {name: rank for rank, name in enumerate(Durability)}


def unfit_source(config: TopicConfig) -> str:
    """Sources whose records go by themselves, or whose seqs may be given out twice."""
    if config.type == "queue":
        return "its source is a queue, whose jobs go when they are done"
    if config.durability in (Durability.EPHEMERAL, Durability.MEMORY):
        return f"its source is of class {config.durability} and may lose its newest records"
    if config.ttl_ms:
        return "its source has a TTL"
    if (config.cap_records or config.cap_bytes) and config.discard != "reject":
        return "its source has a cap"
    if config.retain == "acked":
        return "its source keeps records only until they are acknowledged"
    if config.compact != "none":
        return "its source keeps the newest record of each tag only"
    return ""


def logged_from(source: Topic) -> str:
    """With what is about to be."""
    if source.inflows.derived is not None:
        return "its source is derived itself"
    return unfit_source(source.config) or (unfit_source(source.next_config) if source.next_config else "")


def logged_into(dest: Topic, graph: Graph, durability: str) -> str:
    """durability: the class of the source."""
    config = dest.next_config or dest.config
    if dest.seqs.head:
        return "others have written to it"
    if len(graph.reaching(dest.name)) > 1:
        return "another router leads to it"
    if graph.leaving(dest.name):
        return "routers leave it"
    if config.type == "queue":
        return "it is a queue"
    if config.durability == Durability.EPHEMERAL:
        return "it is ephemeral"
    if _RANK[Durability(config.durability)] > _RANK[Durability(durability)]:
        return f"its class {config.durability} promises more than its source's, {durability}"
    if config.retain == "acked":
        return "it keeps records only until they are acknowledged"
    if config.compact != "none":
        return "it keeps the newest record of each tag only"
    return ""
