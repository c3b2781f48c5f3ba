"""The queues of this shard: found by name or id, looked at by the clock. Promise: a log is told from a queue in one
place.
"""

from __future__ import annotations

from typing import Any

from topicd.errors import NotAQueue, TopicNotFound
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.publishing import Publishing
from topicd.shards.delivery.queues.service import QueueService
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic

STOPPED_SHOWN = 5  # on the stats page


class Queues:
    def __init__(self, tools: Tools, catalog: Catalog, publishing: Publishing) -> None:
        self.tools = tools
        self._catalog = catalog
        self._services: dict[int, QueueService] = {}
        publishing.look = self._look
        publishing.moved = tools.agenda.moved
        catalog.on_gone.append(self._gone)

    def of(self, topic: Topic) -> QueueService:
        found = self._services.get(topic.id)
        if found is None:
            if topic.queue is None:
                raise NotAQueue(f"topic {topic.name!r} is a log: there are no jobs in it", topic=topic.name)
            found = self._services[topic.id] = QueueService(self.tools, topic, topic.queue)
        return found

    def named(self, name: str) -> QueueService:
        return self.of(self._catalog.get(name))

    def numbered(self, topic_id: int) -> QueueService:
        found = self._services.get(topic_id)
        if found is None or not found.topic.live:
            topic = self._catalog.by_id.get(topic_id)
            if topic is None or not topic.live:
                raise TopicNotFound(f"no topic with id {topic_id}", topic_id=topic_id)
            found = self.of(topic)
        return found

    def start(self) -> None:
        """After a recovery: what was under way goes on."""
        for topic in list(self._catalog.by_name.values()):
            jobs = topic.queue
            if jobs is not None and (jobs.dying or jobs.kept or jobs.crons or jobs.replaced or jobs.delayed):
                self.of(topic).wake()
            elif jobs is not None and (jobs.paused or jobs.draining):
                self.of(topic)  # the stats page tells of it

    def page(self) -> dict[str, Any]:
        """For the stats page: together; and by name those that somebody, or they themselves, stopped."""
        services = self._services.values()
        stopped = [service for service in services if service.jobs.paused or service.jobs.draining]
        jobs = [service.jobs for service in services]
        totals = [service.endings.totals for service in services]
        return {
            "queues": len(jobs),
            "queues_stopped": len(stopped),
            "stopped_queues": [_stopped(service) for service in stopped[:STOPPED_SHOWN]],
            "jobs_ready": sum([one.ready for one in jobs]),
            "jobs_in_flight": sum([one.in_flight for one in jobs]),
            "jobs_delayed": sum([len(one.delayed) for one in jobs]),
            "jobs_acked": sum([one.acked for one in totals]),
            "jobs_failed": sum([one.failed for one in totals]),
            "jobs_expired": sum([one.expired for one in totals]),
            "jobs_dead": sum([one.dead for one in totals]),
        }

    def _look(self, topic: Topic) -> Jobs:
        service = self.of(topic)
        service.look()
        return service.jobs

    def _gone(self, topic: Topic) -> None:
        service = self._services.pop(topic.id, None)
        if service is not None:
            service.gone()


def _stopped(service: QueueService) -> list[str]:
    """Its name, who stopped it, and why."""
    stop = service.jobs.paused or service.jobs.draining
    state = "paused" if service.jobs.paused else "draining"
    by, reason = ("", "") if stop is None else (stop.by, stop.reason)
    return [service.topic.name[:64], state, by, reason[:80]]
