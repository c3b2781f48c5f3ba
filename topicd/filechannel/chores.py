"""A thread of the writer that collects and compresses. It sleeps until a segment is sealed or a receiver leaves one."""

from __future__ import annotations

import logging
from threading import Thread

from topicd.errors import TopicdError
from topicd.filechannel.collector import Collector
from topicd.filechannel.compressing import candidates, compress
from topicd.filechannel.page import CHORE_AT
from topicd.filechannel.place import Place
from topicd.filechannel.settings import Settings

log = logging.getLogger(__name__)


class Chores:
    def __init__(self, place: Place, settings: Settings, collector: Collector) -> None:
        self._place = place
        self._settings = settings
        self._collector = collector
        self._stopped = False
        self._thread = Thread(target=self._run, name="filechannel-chores", daemon=True)

    def start(self) -> None:
        self._collector.on_seal = self.want
        self._thread.start()

    def want(self) -> None:
        self._place.page.wake(CHORE_AT)

    def stop(self) -> None:
        self._stopped = True
        self.want()
        if self._thread.is_alive():
            self._thread.join()

    def turn(self) -> None:
        """Everything there is to do now."""
        self._collector.collect()
        if not self._settings.compress:
            return
        for segment in candidates(self._collector):
            if self._stopped:
                return
            compress(self._place.fs, self._place.directory, self._collector, segment)

    def _run(self) -> None:
        page = self._place.page
        while True:
            seen = page.count(CHORE_AT)
            if self._stopped:
                return
            try:
                self.turn()
            except (OSError, TopicdError) as error:
                # Space is given back later; nothing is lost by that.
                extra = {"directory": str(self._place.directory), "error": str(error)}
                log.warning("a file channel could not give space back", extra=extra)
            page.wait(CHORE_AT, seen, None)
