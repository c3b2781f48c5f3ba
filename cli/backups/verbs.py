"""`topicctl backup`: made while the daemon serves, listed, verified, restored, tried out."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from topicd.backup.create import Creation
from topicd.backup.manifest import TREE, Manifest
from topicd.backup.restore import check_target, finish, restore
from topicd.backup.shelf import Shelf, Shelved, lies_in, remove_tree
from topicd.backup.verify import problems
from topicd.cli.app import App, pass_app
from topicd.cli.backups.drill import audit, clear, laid_out, place_of
from topicd.cli.backups.sources import Served, Unused
from topicd.cli.backups.until import Until, check_reaches, choose_until, cut, no_backup
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group, did_you_mean
from topicd.cli.offline.check import check_all, work_bytes
from topicd.cli.offline.cold import require_answer
from topicd.cli.offline.data_dir import Offline
from topicd.cli.offline.segment_check import DAMAGE
from topicd.cli.options import END
from topicd.cli.show.human import count, duration, local_time, records_word, size
from topicd.cli.show.progress import Bar
from topicd.cli.show.render import Column
from topicd.clock import SystemClock
from topicd.disk.fs import RealFs
from topicd.errors import FormatError
from topicd.paths import DataDir
from topicd.words import counted


@click.group("backup", cls=Group, no_args_is_help=True)
def backup() -> None:
    """Make backups while the daemon serves, verify, restore and try them out.

    DIR is a directory of backups: each is a directory in it, named by its time. Segments that two of them share are
    stored once.
    """


_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_shelf = click.argument("shelf", metavar="DIR", type=_DIRECTORY)
_new_shelf = click.argument("shelf", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
_which = click.argument("which", metavar="[BACKUP]", required=False)


@backup.verb(
    "create",
    examples="topicctl backup create /backups\ntopicctl backup create /backups --data-dir /var/lib/topicd",
    apart=("--data-dir --socket", "--data-dir --context", "--data-dir --timeout"),
)
@_new_shelf
@click.option("--data-dir", "-d", metavar="DIR", help="Of a directory whose daemon is stopped.")
@pass_app
def create(app: App, shelf: Path, data_dir: str | None) -> int:
    """Make a backup of a running daemon, on its machine and as its user (or as root).

    On the same filesystem sealed segments are linked: it takes no room and next to no time. On another one they are
    copied, once. The backup is one moment of the whole daemon. Exit code 1, too, if the cold directory has lost files:
    they are named, and everything else is in the backup.
    """
    fs = RealFs()
    if inside := lies_in(fs, shelf):
        raise CliError(f"{shelf} lies in {inside}", Exit.USAGE, "backups belong elsewhere")
    fs.mkdir(shelf)
    if data_dir is not None:
        with closing(Unused(fs, DataDir(Path(data_dir)))) as unused:
            return _create(app, fs, shelf, unused)
    with app.connect() as client, closing(Served(fs, client)) as served:
        return _create(app, fs, shelf, served)


def _create(app: App, fs: RealFs, where: Path, source: Served | Unused) -> int:
    require_answer(fs, source.data)
    shelf = Shelf(fs, where)
    with shelf.lock(), Bar("backup", None, "bytes") as bar:
        creation = Creation(fs, shelf, source, SystemClock(), bar.advance)
        made = creation.run()
        seconds = bar.elapsed
    if app.json:
        told = {"path": str(shelf.path(made.id)), "seconds": round(seconds, 3), "lost": list(map(str, creation.lost))}
        app.out.document({**_body(made), **told})
        return Exit.FAILED if creation.lost else Exit.OK
    copied = made.bytes - made.linked_bytes
    app.out.text(
        f"{shelf.path(made.id)}: {counted(made.topics, 'stored topic')}, {counted(made.files, 'file')}, "
        f"{size(made.bytes)}; "
        f"{size(made.linked_bytes)} shared, {size(copied)} copied in {duration(seconds)}"
    )
    for path in creation.lost:
        app.out.text(app.out.styled(f"{path}: is lost, and not in the backup", "red"))
    return Exit.FAILED if creation.lost else Exit.OK


@backup.verb(
    "list", online=False, examples="topicctl backup list /backups/topicd\ntopicctl backup list /backups/topicd --json"
)
@_shelf
@pass_app
def list_backups(app: App, shelf: Path) -> None:
    """List the backups in a directory, oldest first, with those that were interrupted or are damaged."""
    found = Shelf(RealFs(), shelf).list()
    if app.json:
        rows = [{"id": row.id, "whole": row.whole, "problem": row.problem or None} for row in found]
        app.out.document(
            [row | (_body(one.manifest) if one.manifest else {}) for row, one in zip(rows, found, strict=True)]
        )
        return
    columns = [
        *(Column("backup"), Column("cut at"), Column("stored topics", right=True), Column("files", right=True, rank=1)),
        *(Column("bytes", right=True), Column("copied", right=True), Column("of", shrink=True, rank=1)),
        Column("state", shrink=True),
    ]
    app.out.table(columns, [_row(one) for one in found], empty="no backups")


def _row(one: Shelved) -> tuple[str, ...]:
    made = one.manifest
    if made is None:
        return (one.id, "-", "-", "-", "-", "-", "-", one.problem)
    sizes = (size(made.bytes), size(made.bytes - made.linked_bytes))
    return (one.id, local_time(made.cut_ms), count(made.topics), count(made.files), *sizes, made.data_dir, "whole")


def _body(made: Manifest) -> dict[str, Any]:
    body = asdict(made)
    del body["parts"]
    return {**body, "copied_bytes": made.bytes - made.linked_bytes}


@backup.verb(
    "verify",
    online=False,
    examples="topicctl backup verify /backups/topicd\ntopicctl backup verify /backups/topicd --all",
    apart=("BACKUP --all",),
)
@_shelf
@_which
@click.option("--all", "every", is_flag=True, help="Every backup in the directory, not the newest one only.")
@pass_app
def verify(app: App, shelf: Path, which: str | None, every: bool) -> int:
    """Read a backup whole: files, checksums, and every frame as `topicctl fsck` does. Exit code 1 if anything is
    wrong. Without a name: the newest one."""
    place = Shelf(RealFs(), shelf)
    chosen = [one for one in place.list() if one.finished] if every else [choose(place, which)]
    if not chosen:
        raise no_backup(place)
    reports = [verified(place, one) for one in chosen]
    if app.json:
        app.out.document(reports[0] if not every else reports)
    else:
        for report in reports:
            for what in report["problems"]:
                app.out.text(app.out.styled(what, "red"))
            verdict = "wrong" if report["problems"] else "whole"
            read = f"{counted(report['files'], 'file')}, {size(report['bytes'])}"
            read += f", {counted(report['records'], 'seq')} in segments"
            app.out.text(f"{report['id']}: {app.out.styled(verdict, 'red' if report['problems'] else 'green')}; {read}")
    return Exit.FAILED if any(report["problems"] for report in reports) else Exit.OK


def verified(shelf: Shelf, one: Shelved) -> dict[str, Any]:
    """Files by the manifest, then what is in them."""
    fs, made = RealFs(), one.manifest
    if made is None:
        return {"id": one.id, "files": 0, "bytes": 0, "records": 0, "problems": [f"{one.id}: {one.problem}"]}
    directory = shelf.path(one.id)
    with Bar("checksums", made.bytes, "bytes") as bar:
        found = list(problems(fs, directory, made, bar.advance))
    records = 0
    if not found:
        records, found = fsck(DataDir(directory / TREE))
    return {"id": one.id, "files": made.files, "bytes": made.bytes, "records": records, "problems": found}


def fsck(data: DataDir) -> tuple[int, list[str]]:
    """Seqs in segments, and what is damaged."""
    offline = Offline(data)
    with Bar("fsck", work_bytes(offline), "bytes") as bar:
        checked = check_all(offline, bar.advance)
    damage = [str(finding) for finding in checked.findings if finding.severity == DAMAGE]
    return sum(report.count for report in checked.segments), damage


def choose(shelf: Shelf, which: str | None) -> Shelved:
    """The one of that name, or the newest, even if it is damaged: nobody is given an older one without knowing it."""
    if which is None:
        newest = shelf.latest()
        if newest is None:
            raise no_backup(shelf)
        return newest
    names = [one.id for one in shelf.list()]
    if which not in names:
        raise CliError(f"there is no backup {which!r} in {shelf.root}{did_you_mean(which, names)}", Exit.NOT_FOUND)
    return shelf.look(which)


@backup.verb(
    "restore",
    online=False,
    examples="topicctl backup restore /backups /var/lib/topicd-restored\n"
    "topicctl backup restore /backups /var/lib/topicd-restored 20261118T120000.000Z\n"
    "topicctl backup restore /backups before-noon --until 2026-11-18T12:00\n"
    "topicctl backup restore /backups one --topic orders --until 5000",
)
@_shelf
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@_which
@click.option("--until", type=END, metavar="PLACE", help="A time, an age like 2h, or a seq of --topic; included.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only that topic; may be repeated.")
@click.option("--copy", "copies", is_flag=True, help="Share nothing with the backup: copy every byte.")
@pass_app
def restore_backup(
    app: App,
    shelf: Path,
    target: Path,
    which: str | None,
    until: int | datetime | None,
    topics: tuple[str, ...],
    copies: bool,
) -> None:
    """Restore a backup, the newest one if none is named, to a new data directory. Start a daemon on it with
    `topicd --data-dir TARGET`.

    With --until every topic ends there, and the first backup behind that time is taken: what was deleted since then
    is still in it.
    """
    fs, place = RealFs(), Shelf(RealFs(), shelf)
    topics = tuple(dict.fromkeys(topics))
    check_target(fs, target)
    end = Until.of(until, topics)
    one = choose_until(place, end) if end is not None and which is None else choose(place, which)
    made = require_whole(one)
    if end is not None:
        check_reaches(one, end)
    with Bar("restore", made.bytes, "bytes") as bar:
        partial = restore(fs, place.path(one.id), made, target, bar.advance, links=not copies)
        changed = None
        if end is not None or topics:
            try:
                changed = cut(partial, end, topics)
            except BaseException:
                remove_tree(fs, partial)
                raise
        finish(fs, partial, target)
        seconds = bar.elapsed
    if app.json:
        body = {"id": one.id, "target": str(target), "bytes": made.bytes, "cut_ms": made.cut_ms}
        app.out.document({**body, "until": changed, "seconds": round(seconds, 3)})
        return
    app.out.text(f"{target}: {one.id}, as it was at {local_time(made.cut_ms)}; {size(made.bytes)}")
    if changed is not None:
        _print_until(app, changed)


def _print_until(app: App, changed: dict[str, Any]) -> None:
    app.out.text(f"{counted(changed['topics'], 'topic')}, {counted(changed['deleted'], 'newer record')} deleted")
    if changed["queues"]:
        app.out.text(f"jobs that were acknowledged before the backup are not back: {', '.join(changed['queues'])}")
    if changed["routers"]:
        app.out.text(f"copies that were cut are not made again by: {', '.join(changed['routers'])}")
    if changed["chats"]:
        app.out.text(f"the log begins behind that time, the store is as it was then: {', '.join(changed['chats'])}")


@backup.verb("drill", online=False, examples="topicctl backup drill /backups\ntopicctl backup drill /backups --json")
@_shelf
@_which
@click.option("--in", "where", metavar="DIR", type=_DIRECTORY, help="Where to restore to, for a while.")
@click.option("--no-daemon", is_flag=True, help="Read the files only; start no daemon on them.")
@pass_app
def drill(app: App, shelf: Path, which: str | None, where: Path | None, no_daemon: bool) -> int:
    """Restore a backup, the newest one if none is named, to a temporary place, read it whole (fsck), start a daemon on
    it that nobody else can reach, and read every record of every topic. Exit code 1 if anything is wrong."""
    place = Shelf(RealFs(), shelf)
    one = choose(place, which)
    made = require_whole(one)
    target = place_of(place, one, where)
    report: dict[str, Any] = {"id": one.id, "cut_ms": made.cut_ms, "problems": [], "seqs": 0, "audit": None}
    with Bar("drill", None) as bar:
        try:
            laid_out(place, one, made, target)
            report["restore_seconds"] = round(bar.elapsed, 3)
            report["seqs"], report["problems"] = fsck(DataDir(target))
            report["fsck_seconds"] = round(bar.elapsed - report["restore_seconds"], 3)
            if not no_daemon:
                report["audit"] = audit(target)
                report["problems"] += report["audit"]["problems"]
        except (FormatError, CliError) as exc:
            report["problems"].append(exc.message)  # it ends there, as a restore in earnest would
        finally:
            clear(target)
        report["seconds"] = round(bar.elapsed, 3)
    if app.json:
        app.out.document(report)
    else:
        _print_drill(app, report)
    return Exit.FAILED if report["problems"] else Exit.OK


def _print_drill(app: App, report: dict[str, Any]) -> None:
    for what in report["problems"]:
        app.out.text(app.out.styled(what, "red"))
    if "fsck_seconds" in report:
        restored = duration(report["restore_seconds"])
        app.out.text(f"restored in {restored}; fsck: {counted(report['seqs'], 'seq')} in segments")
    read = report["audit"]
    if read is not None:
        gone = f"{count(read['evicted'])} evicted by cap or TTL, {count(read['lost'])} lost to power"
        app.out.text(f"daemon: {counted(read['topics'], 'topic')}, {records_word(read['records'])} read; {gone}")
    verdict = "fails" if report["problems"] else "would work"
    color = "red" if report["problems"] else "green"
    app.out.text(f"{report['id']}: a restore {app.out.styled(verdict, color)}; {duration(report['seconds'])}")


def require_whole(one: Shelved) -> Manifest:
    if one.manifest is None:
        hint = "name another one: `topicctl backup list` shows all"
        raise CliError(f"{one.id} cannot be restored: {one.problem}", Exit.FAILED, hint)
    return one.manifest
