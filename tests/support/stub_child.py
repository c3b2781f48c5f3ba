"""A child that only lives: boots, beats, obeys. TOPICD_STUB (JSON, by name or "*") makes it misbehave.

crash: exit at once; fail: the message of a "failed" event; mute: no heartbeat; deaf: ignores stop; stubborn:
ignores SIGTERM; slow: seconds until serving; log: a file to which every step is appended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

from topicd.ipc.control import BootInfo, ControlChannel, attach_child
from topicd.ipc.shardboot import WAL
from topicd.ipc.stats import StatsPage


class Stub:
    def __init__(self, channel: ControlChannel, boot: BootInfo) -> None:
        plans = json.loads(os.environ.get("TOPICD_STUB", "{}"))
        self.plan: dict[str, Any] = {**plans.get("*", {}), **plans.get(boot.name, {})}
        self.channel = channel
        self.boot = boot
        self.page = StatsPage.attach(boot.instance, boot.name)
        self.stopping = False

    def note(self, what: str, **facts: Any) -> None:
        if path := self.plan.get("log"):
            line = json.dumps({"name": self.boot.name, "pid": os.getpid(), "what": what, **facts}) + "\n"
            with open(path, "ab") as stream:
                stream.write(line.encode())

    def run(self) -> int:
        told = self.boot.to_wire()
        self.note("boot", **told.pop("extras"), **told)
        if self.plan.get("crash"):
            return 7
        if self.plan.get("fail"):
            self.channel.send({"event": "failed", "message": self.plan["fail"]})
            return 1
        if self.plan.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.beat("recovering")
        self.channel.send({"event": "progress", "percent": 50.0, "what": "replay"})
        due = time.monotonic() + self.plan.get("slow", 0.0)
        waits = self.boot.kind != WAL
        serving = False
        while not self.stopping:
            if not serving and not waits and time.monotonic() >= due:
                self.note("serving")
                self.channel.send({"event": "serving"})
                serving = True
            select.select([self.channel], [], [], 0.05)
            self.beat("serving" if serving else "recovering")
            try:
                for message in self.channel.receive():
                    self.note(message["event"], message=message)
                    waits = waits and message["event"] != "start"
                    self.stopping = self.stopping or (message["event"] == "stop" and not self.plan.get("deaf"))
            except EOFError:
                self.note("orphan")
                return 0
        self.note("exit")
        return 0

    def beat(self, state: str) -> None:
        if not self.plan.get("mute"):
            self.page.state = state
            self.page.publish({"turns": 1})


if __name__ == "__main__":
    sys.exit(Stub(*attach_child()).run())
