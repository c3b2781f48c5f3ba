"""Schedules of a queue: a job at each time that one names."""

from __future__ import annotations

from topicd import limits
from topicd.ipc.protocol.fields import anything, number, schedule_name, text, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request

_SCHEDULE = "name, schedule, timezone, data, tag, priority, group, next_ts, last_ts"


class AddCron(Request, op=Op.CRON_ADD, right="admin", changes=True, answer=f"topic_id, created, {_SCHEDULE}"):
    """A job at each time that the schedule names; one with that name is replaced."""

    topic: str = topic_name()
    name: str = schedule_name()
    schedule: str = text(128, help="five fields: minute hour day month weekday")
    timezone: str = text(64, default="UTC")
    data: bytes = anything(default=b"", help="of the job, as bytes")
    tag: str = text(limits.MAX_TAG, default="")
    priority: int = number(0, limits.PRIORITY_MAX, default=limits.PRIORITY_DEFAULT)
    group: str = text(limits.GROUP_MAX, default="")


class RemoveCron(Request, op=Op.CRON_REMOVE, right="admin", changes=True, answer="topic_id, removed"):
    topic: str = topic_name()
    name: str = schedule_name()


class ListCron(Request, op=Op.CRON_LIST, right="read", answer=f"topic_id, schedules [{{{_SCHEDULE}}}] by name"):
    topic: str = topic_name()
