"""`topicctl`: topics from the command line. Exit codes: cli/exits.py, docs/cli.md."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

from topicd import __version__
from topicd.cli.app import App, shared_options
from topicd.cli.exits import CliError, Exit, as_cli_error
from topicd.cli.groups import Group, Lazy
from topicd.cli.show.render import PipeClosed
from topicd.errors import TopicdError

DEBUG_ENV = "TOPICCTL_DEBUG"

VERBS = {
    "publish": Lazy("topicd.cli.verbs.publish:publish", "Store records in a topic."),
    "read": Lazy("topicd.cli.verbs.read:read", "Print the records of a topic."),
    "tail": Lazy("topicd.cli.verbs.read:tail", "Print the last records of a topic and go on."),
    "watch": Lazy("topicd.cli.verbs.watch:watch", "Print records of topics as they are stored."),
    "topic": Lazy("topicd.cli.verbs.topic_moves:topic", "List, show, create, configure, copy and delete topics."),
    "consumer": Lazy("topicd.cli.verbs.consumer:consumer", "Read as, show, move and remove named consumers."),
    "queue": Lazy("topicd.cli.verbs.queue:queue", "Put, work on, look at and steer jobs of work queues."),
    "chat": Lazy("topicd.cli.verbs.chat:chat", "Send and read messages, see inboxes, keep members and the chat store."),
    "router": Lazy("topicd.cli.verbs.router:router", "Create, list, show, delete and draw routers."),
    "channel": Lazy("topicd.cli.verbs.channel:channel", "Join, publish to, watch and look after channels."),
    "tier": Lazy("topicd.cli.verbs.tier:tier", "Show and steer which segments lie on the fast disk."),
    "delete": Lazy("topicd.cli.verbs.delete:delete", "Delete records of a topic."),
    "status": Lazy("topicd.cli.verbs.status:status", "Show how the daemon and its processes are."),
    "shards": Lazy("topicd.cli.verbs.daemon:shards", "Show the counters of each shard."),
    "top": Lazy("topicd.cli.verbs.top:top", "Watch rates, rings and processes live."),
    "bench": Lazy("topicd.cli.verbs.bench:bench", "Measure the running daemon."),
    "metrics": Lazy("topicd.cli.verbs.daemon:metrics", "Print counters as Prometheus text."),
    "ping": Lazy("topicd.cli.verbs.daemon:ping", "Ask the daemon for a sign of life."),
    "debug": Lazy("topicd.cli.verbs.debug:debug", "Make a test daemon do what it seldom does."),
    "wal": Lazy("topicd.cli.offline.wal:wal", "Look into WAL files."),
    "segment": Lazy("topicd.cli.offline.segment:segment", "Look into segment files and verify them."),
    "snapshot": Lazy("topicd.cli.offline.snapshot:snapshot", "Look at metadata snapshots."),
    "fsck": Lazy("topicd.cli.offline.fsck:fsck", "Check and repair a data directory, daemon stopped."),
    "backup": Lazy("topicd.cli.backups.verbs:backup", "Make, list, verify, restore and try out backups."),
    "filechannel": Lazy(
        "topicd.cli.offline.filechannel:filechannel", "Look into embedded file channels, compact them."
    ),
    "import": Lazy("topicd.cli.verbs.import_channel:import_channel", "Publish the messages of a file channel."),
    "stages": Lazy("topicd.cli.verbs.stages:stages", "List, finish and drop what writers have staged."),
    "pipeline": Lazy("topicd.cli.verbs.pipeline:pipeline", "Run Spark jobs over topics: archive, restore, audit."),
    "token": Lazy("topicd.cli.offline.token:token", "Make, list and revoke tokens for other machines."),
    "context": Lazy("topicd.cli.verbs.context:context", "Name daemons, and choose the one that is meant."),
    "doctor": Lazy("topicd.cli.verbs.doctor:doctor", "Say what is wrong with installation, daemon and machine."),
    "settings": Lazy("topicd.cli.verbs.looking:settings", "Show the settings of the running daemon."),
    "connections": Lazy("topicd.cli.verbs.looking:connections", "Show who is connected, and what for."),
    "config": Lazy("topicd.cli.verbs.config:config", "Show and check the daemon's settings."),
    "completion": Lazy("topicd.cli.verbs.completion:completion", "Print a shell's completion script."),
    "version": Lazy("topicd.cli.verbs.daemon:version", "Print the version."),
}


def root_command() -> Group:
    return Group(
        "topicctl",
        lazy=VERBS,
        params=[*shared_options(online=True), _version_option()],
        callback=_root,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Durable, ordered, replayable topics from the command line.",
        epilog="`topicctl COMMAND --help` has examples. Exit codes: 0 ok, 1 failed or damage, 2 usage, "
        "3 no daemon, 4 not found, 5 refused, 6 try again.",
    )


def _version_option() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            click.echo(f"topicctl {__version__}")
            ctx.exit()

    text = "Print the version."
    return click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)


@click.pass_context
def _root(ctx: click.Context) -> None:
    ctx.ensure_object(App)


def main(args: list[str] | None = None) -> NoReturn:
    """Never a traceback, unless TOPICCTL_DEBUG is set."""
    app = App()
    try:
        code = _run(args, app)
    except (KeyboardInterrupt, click.Abort):
        code = Exit.INTERRUPTED
    except Exception as exc:
        if os.environ.get(DEBUG_ENV):
            raise
        code = _report(exc, app)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _pipe_closed()
    sys.exit(code)


def _run(args: list[str] | None, app: App) -> int:
    try:
        # click turns Ctrl-C into Abort and puts the cursor on a new line.
        found: Any = root_command().main(args, prog_name="topicctl", standalone_mode=False, obj=app)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    return int(found or 0)


def _report(exc: Exception, app: App) -> int:
    if isinstance(exc, PipeClosed):
        return _pipe_closed()
    if isinstance(exc, click.exceptions.NoArgsIsHelpError):
        click.echo(exc.format_message(), err=True)
        return Exit.USAGE
    if isinstance(exc, click.ClickException):
        error = _from_click(exc)
    elif isinstance(exc, TopicdError):
        error = as_cli_error(exc)
    elif isinstance(exc, CliError):
        error = exc
    elif isinstance(exc, OSError):
        where = f"{exc.filename}: " if exc.filename else ""
        missing = isinstance(exc, FileNotFoundError)
        error = CliError(f"{where}{exc.strerror or exc}", Exit.NOT_FOUND if missing else Exit.FAILED)
    else:
        hint = f"{DEBUG_ENV}=1 shows where; please report it"
        error = CliError(f"unexpected {type(exc).__name__}: {exc}", Exit.FAILED, hint)
    say_error(error, app.json)
    return error.exit_code


def _from_click(exc: click.ClickException) -> CliError:
    hint = ""
    if isinstance(exc, click.UsageError) and exc.ctx is not None:
        hint = f"`{exc.ctx.command_path} --help` shows how"
    return CliError(exc.format_message(), Exit.USAGE, hint)


def say_error(error: CliError, as_json: bool) -> None:
    if as_json:
        body = {
            "code": error.code,
            "message": error.message,
            "exit_code": int(error.exit_code),
            "hint": error.hint,
        }
        click.echo(json.dumps({"error": body}, ensure_ascii=False), err=True)
        return
    hint = f" ({error.hint})" if error.hint else ""
    click.echo(f"topicctl: {error.message}{hint}", err=True)


def _pipe_closed() -> int:
    # What is still buffered has no reader; without this the interpreter complains at exit.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.PIPE_CLOSED


if __name__ == "__main__":
    main()
