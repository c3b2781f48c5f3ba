"""One queue at work: who waits for jobs, and what has to happen when. Promise: whoever waits gets a job in the turn in
which there is one that may go; nobody polls, and a queue at rest costs nothing.
"""

from __future__ import annotations

import heapq
from collections import deque

from topicd.shards.delivery.queues.deadlines import Sleeper, is_over
from topicd.shards.delivery.queues.ending import Ending, Endings
from topicd.shards.delivery.queues.facts import Past
from topicd.shards.delivery.queues.handing import Handing
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.takers import NONE, Taker, WaitingClaim, WorkStream
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.topic.follower import Follower
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges

_KEYS_KEPT = 256  # unique keys whose time may be over
_WAITS_MS = 60_000  # no claim and no window waits longer
_AT_REST_MS = 1_000  # while nobody waits, it is looked at so often at most


class QueueService(Follower):
    def __init__(self, tools: Tools, topic: Topic, jobs: Jobs) -> None:
        self.tools = tools
        self.topic = topic
        self.jobs = jobs
        self.handing = Handing(tools, topic, jobs)
        self.takers: dict[Taker, None] = {}  # in the order in which they came
        self._alarm = Sleeper(self.wake)
        self.endings = Endings(tools, topic, jobs, self._alarm, self._note_ended, self._follow)
        self._give_ups: list[tuple[int, int, Taker]] = []  # a heap
        self._asked = 0
        self._window_ms = 0  # claims are gathered until then; 0: there is no window
        self._keys_looked_at = _KEYS_KEPT  # with more than these, it is time to look for some that are over
        self._ticking: set[str] = set()  # schedules whose job is on its way to the log
        self._again_ms: dict[str, int] = {}  # schedules whose job was refused, and when they try again
        self.recent: deque[bool] = deque()  # of the last jobs, which failed: see breaker
        jobs.leases.begin_run(tools.place.run)

    # ---- who waits ----

    def claim(self, taker: WaitingClaim, wait_ms: int) -> None:
        """Answered now, when there are jobs, or when it has waited long enough."""
        now = self.look()
        jitter = self.topic.config.claim_jitter_ms
        if jitter:
            if not self._window_ms:
                self._window_ms = now + jitter
            self._wait(taker, now + max(wait_ms, jitter))
        elif not self._may_go or not self.handing.hand_out(taker, taker.most, now):
            if wait_ms:
                self._wait(taker, now + wait_ms)
            else:
                taker.deliver(self.topic, self.jobs.ready, NONE)
        self.arm(now)

    def _follow(self, taker: WaitingClaim, now: int) -> int:
        """The jobs that it finished are done, it takes others. now: the time of the last look, -1 if there was none."""
        if now < 0:
            now = self.look()
        deadline = self.handing.hand_next(taker, now) if taker.most == 1 and self._may_go else 0
        if deadline:
            # It is woken for the first of all leases that end, a little later if nobody waits.
            due = self._alarm.due_ms
            if not due or due > deadline + (1 if self.takers else _AT_REST_MS):
                self.arm(now)
            return now
        taker.enlist()
        self.claim(taker, taker.wait_ms)
        return -1

    def work(self, taker: WorkStream) -> None:
        now = self.look()
        taker.on_stop = self.stop
        taker.on_release = self.release_all
        if self.topic.config.claim_jitter_ms and not self._window_ms:
            self._window_ms = now + self.topic.config.claim_jitter_ms
        self._wait(taker, 0)
        self.serve(now)

    def _wait(self, taker: Taker, give_up_ms: int) -> None:
        self.takers[taker] = None
        taker.on_leave = self.leave
        taker.on_room = self._resumed
        taker.give_up_ms = give_up_ms
        if give_up_ms:
            self._asked += 1
            heapq.heappush(self._give_ups, (give_up_ms, self._asked, taker))
        self.topic.followers.add(self)

    def leave(self, taker: Taker) -> None:
        """It takes no more. What a stream holds is everybody's again, at once."""
        self.stop(taker)
        self.release_all(taker)

    def _resumed(self, taker: Taker) -> None:
        if taker in self.takers:
            self.tools.agenda.moved(self.topic)

    def stop(self, taker: Taker) -> None:
        self.takers.pop(taker, None)
        taker.give_up_ms = 0
        if not self.takers:
            self.topic.followers.discard(self)

    def release_all(self, taker: Taker) -> int:
        jobs, now, released = self.jobs, self.tools.clock.now_ms(), 0
        for grant in list(taker.grants):
            for seq in jobs.leases.of(grant):
                released += 1
                if jobs.logs_leases:
                    self.endings.gather().free.append(seq)
                else:
                    jobs.release(seq, now)
        if released:
            self.endings.count(released=released)
            self.tools.agenda.moved(self.topic)
        return released

    # ---- what is known ----

    def look(self) -> int:
        """Everything as it is now, by the clock: which time it is."""
        tools, topic, jobs = self.tools, self.topic, self.jobs
        tools.retention.expire(topic)
        now = tools.clock.now_ms()
        visible = topic.seqs.visible
        if jobs.stale or not jobs.opened:
            tools.ahead.forget(topic.id)
            runs = [(a, b) for a, b, _ in tools.live.runs(topic, topic.floors.earliest, visible)]
            jobs.open(runs, visible, now)
        jobs.catch_up(visible, now)
        if jobs.replaced:
            self._drop_replaced()
        for seq, grant in jobs.leases.take_expired(now):
            self._expire(seq, grant.deadline, now)
        jobs.wake_delayed(now)
        if jobs.kept:
            self._drop_kept(now)
        if len(jobs.keys) > self._keys_looked_at:
            jobs.keys.expire(now)
            self._keys_looked_at = 2 * len(jobs.keys) + _KEYS_KEPT
        return now

    def _expire(self, seq: int, deadline: int, now: int) -> None:
        past = self.jobs.expired(seq, deadline, now)
        self.endings.count(expired=1)
        self.note_outcome(failed=True)
        if self.is_last(past):
            self.jobs.dying.add(seq)
            self.endings.gather().bury(seq, past)
        else:
            self.jobs.back_again(seq, deadline)

    def is_last(self, past: Past) -> bool:
        """It was tried often enough, and there is somewhere to put it."""
        config = self.topic.config
        return bool(config.dead_letter) and 0 < config.max_deliveries <= past.deliveries

    def _drop_replaced(self) -> None:
        """The log says it with the job that took the place."""
        seqs, self.jobs.replaced = self.jobs.replaced, []
        self.tools.deletion.apply_seqs(self.topic, Ranges((seq, seq) for seq in sorted(seqs)))

    def _drop_kept(self, now: int) -> None:
        """Done, and readable long enough."""
        keep, gone = self.topic.config.keep_done_ms, []
        for row in self.jobs.kept:
            if row.at + keep > now:
                break
            gone += [row.first, row.last]
        if gone:
            self.endings.drop_kept(gone, now)

    def _note_ended(self, done: int) -> None:
        """That many acknowledgements are stored, and perhaps that jobs are on their way out."""
        if self.topic.config.breaker_failures:
            for _ in range(done):
                self.note_outcome(failed=False)
        if self.jobs.dying:
            self.tools.bury(self)

    def note_unburied(self, seq: int, error: str, pause_ms: int) -> None:
        """The dead letters did not take it: it is a job again."""
        past, now = self.jobs.past[seq], self.tools.clock.now_ms()
        self.endings.gather().give_back(seq, past._replace(reason=(past.reason or error)[:1_024]), now + pause_ms)

    # ---- schedules ----

    def _fire(self, now: int) -> None:
        for cron in list(self.jobs.crons.values()):
            if max(cron.next_ms, self._again_ms.get(cron.name, 0)) <= now and cron.name not in self._ticking:
                self._ticking.add(cron.name)
                self.tools.tick(self, cron, now)

    def ticked(self, name: str, again_ms: int) -> None:
        """Its job is stored; or it is tried again at that time."""
        self._ticking.discard(name)
        self._again_ms[name] = again_ms
        self.tools.agenda.moved(self.topic)
        self.tools.deadlines.wake_at(self._alarm, self.tools.clock.now_ms() + 1)

    def _next_tick(self, now: int) -> int | None:
        """None: none is waited for."""
        waiting = [cron for cron in self.jobs.crons.values() if cron.name not in self._ticking]
        return min((max(cron.next_ms, self._again_ms.get(cron.name, 0)) for cron in waiting), default=None)

    def note_outcome(self, *, failed: bool) -> None:
        """For the breaker: too many failures among the last jobs, and the queue stops itself."""
        limit, among = self.topic.config.breaker_failures, self.topic.config.breaker_jobs
        if not limit:
            if self.recent:
                self.recent.clear()
            return
        self.recent.append(failed)
        while len(self.recent) > among:
            self.recent.popleft()
        if failed and self.jobs.paused is None and sum(self.recent) >= limit:
            reason = f"{sum(self.recent)} of the last {len(self.recent)} jobs failed"
            self.recent.clear()
            self.endings.stop_itself(reason)

    # ---- jobs go ----

    @property
    def _may_go(self) -> bool:
        return self.jobs.paused is None and not self.tools.draining and not self._window_ms

    def serve(self, now: int) -> None:
        """Whoever waits gets what there is: as much as fits if one waits, in even shares if several do."""
        if self._window_ms and is_over(self._window_ms, now, _WAITS_MS):
            self._window_ms = 0
        if self._may_go:
            self.jobs.lanes.unpark(now, self.jobs.limits)  # else there may be nothing to pick from, and nobody picks
            while self.jobs.lanes.any_may_go and self._serve_once(now):
                pass
        self.arm(now)

    def _serve_once(self, now: int) -> bool:
        waiting = [taker for taker in self.takers if taker.wants > 0]
        if not waiting:
            return False
        went = 0
        if len(waiting) == 1:
            went = self._hand_to(waiting[0], waiting[0].wants, now)
        else:
            supply = min(self.jobs.ready, max(0, self.handing.room(now)))
            for taker, share in zip(waiting, shares(supply, [taker.wants for taker in waiting]), strict=True):
                if share:
                    went += self._hand_to(taker, share, now)
        return went > 0

    def _hand_to(self, taker: Taker, share: int, now: int) -> int:
        alone = share == 1 or self.jobs.lanes.ready == 1
        went = 1 if alone and self.handing.hand_next(taker, now) else self.handing.hand_out(taker, share, now)
        if went:
            if isinstance(taker, WaitingClaim):
                self.stop(taker)
            else:  # the next one to be served is another
                self.takers.pop(taker, None)
                self.takers[taker] = None
            self.tools.agenda.flush_first(taker.outbox)
        return went

    # ---- told by others ----

    @property
    def asked(self) -> bool:
        return True

    def moved(self) -> None:
        """There are new records, or something else has changed."""
        self.serve(self.look())

    def gone(self) -> None:
        takers, self.takers = list(self.takers), {}
        for taker in takers:
            taker.topic_gone(self.topic)
        self.tools.deadlines.wake_at(self._alarm, None)
        self.tools.ahead.forget(self.topic.id)

    def wake(self) -> None:
        """A time has come that it asked for."""
        if not self.topic.live:
            return
        now = self.look()
        if self.jobs.crons and not self.tools.draining:
            self._fire(now)
        if self.jobs.dying:
            self.tools.bury(self)
        self.serve(now)
        while self._give_ups and is_over(self._give_ups[0][0], now, _WAITS_MS):
            at, _, taker = heapq.heappop(self._give_ups)
            if taker.give_up_ms == at:
                self.stop(taker)
                taker.deliver(self.topic, self.jobs.ready, NONE)
                self.tools.agenda.flush_later(taker.outbox)
        self.arm(now)

    def arm(self, now: int) -> None:
        """When it wants to be woken next."""
        times = [self._window_ms] if self._window_ms else []
        while self._give_ups and self._give_ups[0][2].give_up_ms != self._give_ups[0][0]:
            heapq.heappop(self._give_ups)
        if self._give_ups:
            times.append(self._give_ups[0][0])
        times += self._limits_end(now)
        if self.jobs.crons and (tick := self._next_tick(now)) is not None:
            times.append(tick)
        soon = [at for at in (self.jobs.next_ready, self.jobs.leases.next_end, self._kept_until) if at is not None]
        if soon:
            at = max(min(soon), now + 1)
            times.append(at if self.takers else at + _AT_REST_MS - at % _AT_REST_MS)
        self.tools.deadlines.wake_at(self._alarm, max(min(times), now + 1) if times else None)

    @property
    def _kept_until(self) -> int | None:
        kept = self.jobs.kept
        return kept[0].at + self.topic.config.keep_done_ms if kept else None

    def _limits_end(self, now: int) -> list[int]:
        """When limits of rate allow more, if somebody waits for that."""
        jobs = self.jobs
        if not self.takers or not jobs.ready or jobs.paused is not None:
            return []
        found = [] if jobs.lanes.parked_until is None else [jobs.lanes.parked_until]
        per_s = self.topic.config.rate_per_s
        if per_s and not self.handing.rate.room(now, per_s):
            found.append(self.handing.rate.free_at(per_s))
        return found

    def ending(self) -> Ending:
        return self.endings.gather()


def shares(supply: int, wanted: list[int]) -> list[int]:
    """One each in turn, until there is nothing left or nobody wants more."""
    given = [0] * len(wanted)
    while supply > 0:
        open_ = [i for i, most in enumerate(wanted) if given[i] < most]
        if not open_:
            break
        least = min(wanted[i] - given[i] for i in open_)
        each = max(1, min(supply // len(open_), least))
        for i in open_[:supply] if each == 1 else open_:
            given[i] += each
            supply -= each
    return given
