"""Chooses the codec once per process: the C core, or its pure-Python twin where that is missing or unwanted.

Nothing is logged here; a daemon that finds `why_pure` set says so once at start, and what it costs: frames
are stamped and scanned some 20 to 50 times slower, and there is no store-load fence, so sleepers must poll.
"""

from __future__ import annotations

import os

from topicd._native.interface import ClaimNext, Commit, Core, Exchange, Guard, KeepOrphans, Look, RunChains, SendEach


def _choose() -> tuple[Core, str]:
    why = "TOPICD_PURE=1 is set"
    if os.environ.get("TOPICD_PURE") != "1":
        try:
            import topicd._native._core as native
        except ImportError as exc:
            why = f"the native core cannot be imported ({exc})"
        else:
            if not hasattr(native, "stamp_copies"):
                # Built before its sources had it: all but this is as it should be.
                from topicd._native.pure_write import stamp_copies

                native.stamp_copies = stamp_copies
            return native, ""
    # Only now: every process of the daemon would pay for it at each start.
    from topicd._native import pure

    return pure, why


core, why_pure = _choose()
is_native: bool = not why_pure
# Steps on files, and a look at many, with the interpreter's lock given away: only C can do that.
run_chains: RunChains | None = getattr(core, "run_chains", None)
look: Look | None = getattr(core, "look", None)
# The turns of a WAL shard in one call; its twin is Committer.turn().
commit: Commit | None = getattr(core, "commit", None)
# What takes a loop away: only C sees it.
guard: Guard | None = getattr(core, "guard", None)
keep_orphans: KeepOrphans | None = getattr(core, "keep_orphans", None)
# Many sends in one call; without it each connection writes by itself.
send_each: SendEach | None = getattr(core, "send_each", None)
# A request and its answer in one call; without it they are a send and a receive of Python.
exchange: Exchange | None = getattr(core, "exchange", None)
# The same of a claim that finishes a job and takes the next, decoded; without it that is done step by step.
claim_next: ClaimNext | None = getattr(core, "claim_next", None)

__all__ = [
    "Core",
    "claim_next",
    "commit",
    "core",
    "exchange",
    "guard",
    "is_native",
    "keep_orphans",
    "look",
    "run_chains",
    "send_each",
    "why_pure",
]
