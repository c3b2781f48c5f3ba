"""`topicctl channel`: rooms with members, lists of who may, messages, history; and those that are queues."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from topicd import values
from topicd.channel import LISTS, TYPES, ChannelConfig
from topicd.cli.app import FIELD_VALUES, App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.groups import Group
from topicd.cli.show.human import count, local_time
from topicd.cli.show.render import Column
from topicd.limits import CHANNEL_HISTORY_MAX

if TYPE_CHECKING:
    from topicd.client.core.channels import ChannelInfo, ChannelItem, ChannelMessage

channel = Group("channel", help="Join, publish to, watch and look after channels.", no_args_is_help=True)

_CHANNEL = click.argument("channel")
_AS = click.option("--as", "user", metavar="USER", help="On whose behalf [default: you; what owners do: the operator].")


@channel.verb("join", examples="topicctl channel join lobby --as ann")
@_CHANNEL
@_AS
@pass_app
def join(app: App, channel: str, user: str | None) -> None:
    """Become a member of CHANNEL; the first one makes it and owns it."""
    with app.connect() as client:
        joined = client.channels.join(channel, user=user)
    if app.json:
        app.out.document({**_document(joined.info), "created": joined.created, "joined": joined.joined})
        return
    done = "created" if joined.created else "joined" if joined.joined else "was a member before of"
    app.out.text(f"{done} {channel}; owner {joined.info.owner}, members {joined.info.members}")


@channel.verb("leave", examples="topicctl channel leave lobby --as ann")
@_CHANNEL
@_AS
@pass_app
def leave(app: App, channel: str, user: str | None) -> None:
    """Be a member of CHANNEL no more. Without members it goes, unless it is persistent; a queue goes with its owner."""
    with app.connect() as client:
        gone = client.channels.leave(channel, user=user)
    app.out.either({"channel": channel, "gone": gone}, f"left {channel}" + (", which is gone" if gone else ""))


@channel.verb("list", examples="topicctl channel list\ntopicctl channel list --as ann --json")
@click.argument("prefix", default="")
@click.option("--as", "user", metavar="USER", help="Only those that USER is a member of.")
@pass_app
def list_channels(app: App, prefix: str, user: str | None) -> None:
    """List channels, those that begin with PREFIX if one is given."""
    with app.connect() as client:
        found = list(client.channels.list(prefix, member=user))
    if app.json:
        app.out.document([asdict(row) for row in found])
        return
    if not found:
        app.out.text("no channels")
        return
    columns = [Column("channel", shrink=True), Column("owner"), Column("type"), Column("kept", rank=1)]
    columns += [Column("members", right=True), Column("connected", right=True)]
    rows = [
        (
            row.channel,
            row.owner or "-",
            row.type,
            "yes" if row.persist else "no",
            count(row.members),
            count(row.connected),
        )
        for row in found
    ]
    app.out.table(columns, rows)


@channel.verb("show", examples="topicctl channel show lobby")
@_CHANNEL
@_AS
@pass_app
def show(app: App, channel: str, user: str | None) -> None:
    """Show owner, type, configuration and lists of CHANNEL."""
    with app.connect() as client:
        _say(app, client.channels.get(channel, user=user))


@channel.verb("members", examples="topicctl channel members lobby")
@_CHANNEL
@_AS
@pass_app
def members(app: App, channel: str, user: str | None) -> None:
    """List the members of CHANNEL, and who of them is connected."""
    with app.connect() as client:
        found = client.channels.members(channel, user=user)
    connected = set(found.connected)
    if app.json:
        app.out.document(asdict(found))
        return
    rows = [
        (one, "owner" if one == found.owner else "member", "yes" if one in connected else "no") for one in found.users
    ]
    app.out.table([Column("user"), Column("is"), Column("connected")], rows, empty="no members")


@channel.verb(
    "config",
    examples="""
    topicctl channel config lobby
    topicctl channel config lobby persist=true max_clients=100 max_payload_size=64KiB
    topicctl channel config lobby max_persist_messages=10000 message_flush_interval=0
    """,
)
@_CHANNEL
@click.argument("fields", nargs=-1, metavar=FIELD_VALUES)
@_AS
@pass_app
def config(app: App, channel: str, fields: tuple[str, ...], user: str | None) -> None:
    """Show or change the configuration of CHANNEL."""
    changes = dict(_field(given) for given in fields)
    with app.connect() as client:
        if changes:
            _say(app, client.channels.set_config(channel, user=user, **changes))
        else:
            _say(app, client.channels.get(channel, user=user))


def _field(given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    known = ChannelConfig().to_fields()
    if not equals or name not in known:
        raise click.UsageError(f"{given!r} is no FIELD=VALUE; fields are {', '.join(known)}")
    if isinstance(known[name], bool):
        if value not in ("true", "false"):
            raise click.UsageError(f"{name} is true or false, not {value!r}")
        return name, value == "true"
    try:
        return name, int(values.parse(value, {"kind": "size"})) if name == "max_payload_size" else int(
            value.replace("_", "")
        )
    except ValueError:
        raise click.UsageError(f"{name} is a number, not {value!r}") from None


@channel.verb(
    "acl",
    examples="""
    topicctl channel acl lobby publish allow bob
    topicctl channel acl lobby read set ann bob
    topicctl channel acl lobby join remove eve
    topicctl channel acl lobby publish set          # an empty list: everybody
    """,
)
@_CHANNEL
@click.argument("access", type=click.Choice(LISTS))
@click.argument("mode", type=click.Choice(("allow", "remove", "set")))
@click.argument("users", nargs=-1)
@_AS
@pass_app
def acl(app: App, channel: str, access: Any, mode: Any, users: tuple[str, ...], user: str | None) -> None:
    """Change who may join, publish to or read CHANNEL. An empty list: everybody. The owner may in any case."""
    if mode != "set" and not users:
        raise click.UsageError(f"{mode} whom?")
    with app.connect() as client:
        _say(app, client.channels.set_acl(channel, access, users, mode=mode, user=user))


@channel.verb("type", examples="topicctl channel type jobs fifo")
@_CHANNEL
@click.argument("kind", metavar="TYPE", type=click.Choice(TYPES))
@_AS
@pass_app
def set_type(app: App, channel: str, kind: str, user: str | None) -> None:
    """Make a queue of CHANNEL, which has to be persistent; there is no way back."""
    with app.connect() as client:
        _say(app, client.channels.set_type(channel, kind, user=user))


@channel.verb("delete", examples="topicctl channel delete lobby --yes")
@_CHANNEL
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_AS
@pass_app
def delete(app: App, channel: str, yes: bool, user: str | None) -> None:
    """Delete CHANNEL with its members and its history."""
    confirm(f"Delete channel {channel} with everything in it?", yes)
    with app.connect() as client:
        client.channels.delete(channel, user=user)
    app.out.either({"channel": channel, "deleted": True}, f"deleted {channel}")


# ---- messages ----


@channel.verb("publish", examples="topicctl channel publish lobby 'hello' --as ann")
@_CHANNEL
@click.argument("data")
@_AS
@pass_app
def publish(app: App, channel: str, data: str, user: str | None) -> None:
    """Send DATA to the members of CHANNEL that are connected."""
    with app.connect() as client:
        seq = client.channels.publish(channel, data.encode(), user=user)
    _say_seq(app, channel, seq)


@channel.verb(
    "watch",
    examples="""
    topicctl channel watch lobby --as bob
    topicctl channel watch lobby --as bob --events --from earliest --limit 10 --json
    """,
)
@_CHANNEL
@click.option(
    "--from", "start", default="latest", metavar="PLACE", help="latest, earliest or the seq behind which to begin."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N lines.")
@click.option("--events", is_flag=True, help="Also who joins and leaves, comes and goes.")
@_AS
@pass_app
def watch(app: App, channel: str, start: str, limit: int | None, events: bool, user: str | None) -> None:
    """Print messages of CHANNEL as they come. As long as it runs, the user is connected."""
    with (
        app.connect() as client,
        client.channels.watch(channel, int(start) if start.isdigit() else start, user=user, events=events) as items,
    ):
        for number, item in enumerate(items, 1):
            _print(app, item)
            if number == limit:
                return


@channel.verb("history", examples="topicctl channel history lobby --from 1 --limit 50")
@_CHANNEL
@click.option("--from", "from_seq", type=click.IntRange(min=1), default=1, metavar="SEQ", help="The first to print.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=CHANNEL_HISTORY_MAX,
    metavar="N",
    help=f"At most; never more than {CHANNEL_HISTORY_MAX}.",
)
@_AS
@pass_app
def history(app: App, channel: str, from_seq: int, limit: int, user: str | None) -> None:
    """Print messages of CHANNEL that are kept."""
    with app.connect() as client:
        found = client.channels.history(channel, from_seq, limit=limit, user=user)
    if app.json:
        app.out.document([_message(one) for one in found])
        return
    for one in found:
        _print(app, one)


@channel.verb("seq", examples="topicctl channel seq lobby")
@_CHANNEL
@_AS
@pass_app
def seq(app: App, channel: str, user: str | None) -> None:
    """Print the seqs of the first and the last message of CHANNEL that is kept; 0 0: there is none."""
    with app.connect() as client:
        first, last = client.channels.seq(channel, user=user)
    app.out.either({"channel": channel, "first_seq": first, "last_seq": last}, f"{first} {last}")


# ---- queues ----


@channel.verb("push", examples="topicctl channel push jobs x")
@_CHANNEL
@click.argument("data")
@_AS
@pass_app
def push(app: App, channel: str, data: str, user: str | None) -> None:
    """Put DATA at the end of the queue CHANNEL."""
    with app.connect() as client:
        seq = client.channels.push(channel, data.encode(), user=user)
    _say_seq(app, channel, seq)


@channel.verb("pop", examples="topicctl channel pop jobs\ntopicctl channel pop jobs --as bob --json")
@_CHANNEL
@_AS
@pass_app
def pop(app: App, channel: str, user: str | None) -> None:
    """Take the first element of the queue CHANNEL, at most once, and print it."""
    with app.connect() as client:
        found = client.channels.pop(channel, user=user)
    app.out.either(_message(found), _shown(found.data))


@channel.verb("clear", examples="topicctl channel clear jobs --yes")
@_CHANNEL
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_AS
@pass_app
def clear(app: App, channel: str, yes: bool, user: str | None) -> None:
    """Give up everything in the queue CHANNEL; one that needs recovery works again."""
    confirm(f"Give up everything in {channel}?", yes)
    with app.connect() as client:
        cleared = client.channels.clear(channel, user=user)
    app.out.either({"channel": channel, "cleared": cleared}, f"cleared {channel}: {count(cleared)} elements")


# ---- printed ----


def _document(info: ChannelInfo) -> dict[str, Any]:
    return {**asdict(info), "acl": info.acl.to_fields()}


def _say(app: App, info: ChannelInfo) -> None:
    if app.json:
        app.out.document(_document(info))
        return
    rows = [
        ("channel", info.channel),
        ("owner", info.owner or "-"),
        ("type", info.type),
        ("members", count(info.members)),
    ]
    rows += [(name, str(value).lower()) for name, value in info.config.to_fields().items()]
    rows += [(f"{name} list", ", ".join(users) or "everybody") for name, users in info.acl.to_fields().items()]
    app.out.fields(rows)


def _say_seq(app: App, channel: str, seq: int) -> None:
    app.out.either({"channel": channel, "seq": seq}, str(seq))


def _message(item: ChannelMessage) -> dict[str, Any]:
    row: dict[str, Any] = {"seq": item.seq, "ts": item.ts, "from": item.user}
    try:
        return {**row, "data": item.data.decode()}
    except UnicodeDecodeError:
        return {**row, "base64": base64.b64encode(item.data).decode()}


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _print(app: App, item: ChannelItem) -> None:
    from topicd.client.core.channels import ChannelEvent, ChannelMessage

    if isinstance(item, ChannelMessage):
        if app.json:
            app.out.lines([_message(item)])
        else:
            app.out.text(f"{item.seq}  {local_time(item.ts)}  {item.user}: {_shown(item.data)}")
    elif isinstance(item, ChannelEvent):
        if app.json:
            app.out.lines([{"event": item.kind, "user": item.user, **item.detail}])
        else:
            app.out.text(f"*  {item.kind}" + (f" {item.user}" if item.user else ""))
    elif app.json:
        app.out.lines([{"gap": [item.first_seq, item.last_seq], "reason": item.reason}])
    else:
        app.out.text(f"!  messages {item.first_seq} to {item.last_seq} are gone ({item.reason})")
