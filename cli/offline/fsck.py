"""`topicctl fsck`: is everything in the data directory what it claims to be?"""

from __future__ import annotations

from typing import Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import Exit
from topicd.cli.offline.check import Checked, check_all, work_bytes
from topicd.cli.offline.data_dir import locked, open_offline
from topicd.cli.offline.repair import repair as mend
from topicd.cli.offline.repair import settle_known
from topicd.cli.offline.segment_check import DAMAGE, Finding
from topicd.cli.options import data_dir_option
from topicd.cli.show.human import size
from topicd.cli.show.progress import Bar
from topicd.words import counted

EXAMPLES = """
topicctl fsck
topicctl fsck --data-dir /var/lib/topicd
topicctl fsck --repair
topicctl fsck --json | jq '.findings[] | select(.severity == "damage")'
"""


@verb("fsck", online=False, examples=EXAMPLES)
@data_dir_option
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@pass_app
def fsck(app: App, data_dir: str | None, repair: bool) -> int:
    """Check a data directory whose daemon is stopped. Exit code 1 when damage was found.

    Every frame of WAL and segments is read; indexes, seals, tag tables, deletion marks and snapshots are
    compared with what they describe; files that topicd did not make are named.

    --repair builds damaged indexes and seals anew from the data, so that every readable record is served, and
    puts what cannot be read into quarantine/. It never discards a readable record.
    """
    offline = open_offline(data_dir, to_judge=True)
    offline.format  # noqa: B018  (says early when this is no data directory)
    with locked(offline):
        with Bar("fsck", work_bytes(offline), "bytes") as bar:
            checked = check_all(offline, bar.advance)
        settle_known(checked, offline)
        found = checked.damaged
        if repair and found:
            mend(checked, offline)
    if app.json:
        app.out.document(document(checked, str(offline.data.root), repair))
    else:
        _print(app, checked, repair)
    return Exit.FAILED if found else Exit.OK


def document(checked: Checked, root: str, repaired: bool) -> dict[str, Any]:
    return {
        "data_dir": root,
        "damaged": checked.damaged,
        "repair": repaired,
        "topics": checked.topics,
        "channels": checked.channels,
        "segments": len(checked.segments),
        "records": sum(report.count for report in checked.segments),
        "data_bytes": sum(report.data_bytes for report in checked.segments),
        "wal": [
            {"shard": w.shard, "files": len(w.files), "groups": w.groups, "frames": w.frames, "end_lsn": w.end_lsn}
            for w in checked.wal
        ],
        "findings": [_body(finding) for finding in checked.findings],
    }


def _body(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "path": str(finding.path),
        "what": finding.what,
        "first_seq": finding.first_seq or None,
        "last_seq": finding.last_seq or None,
        "action": finding.action or None,
    }


def _print(app: App, checked: Checked, repaired: bool) -> None:
    out = app.out
    for finding in checked.findings:
        color = "red" if finding.severity == DAMAGE else "yellow"
        out.text(f"{out.styled(finding.severity, color)}: {finding}")
        if finding.action:
            out.text(f"  -> {finding.action}")
    out.text(
        f"{counted(checked.topics, 'topic')}, {counted(len(checked.segments), 'segment')} with "
        f"{counted(sum(r.count for r in checked.segments), 'seq')} "
        f"in {size(sum(r.data_bytes for r in checked.segments))}; "
        f"{counted(len(checked.wal), 'WAL shard')} with {counted(sum(w.frames for w in checked.wal), 'frame')}"
    )
    damage = [finding for finding in checked.findings if finding.severity == DAMAGE]
    if not damage:
        out.text(out.styled("no damage", "green"))
        return
    left = [finding for finding in damage if not finding.action]
    text = counted(len(damage), "damaged place")
    if repaired:
        text += f", {len(damage) - len(left)} dealt with, {len(left)} left as they are"
    else:
        text += "; `topicctl fsck --repair` mends what can be mended"
    out.text(out.styled(text, "red"))
