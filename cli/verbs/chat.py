"""`topicctl chat`: messages, inboxes, members and identities; and what keeps their store (cli/verbs/chat_store.py)."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.show.human import count, local_time, printable_text
from topicd.cli.show.render import Column
from topicd.cli.verbs import chat_store
from topicd.words import counted

if TYPE_CHECKING:
    from topicd.client.core.chat import ChatMessage, ChatRow

chat = Group(
    "chat", help="Send and read messages, see inboxes, keep members; look after the store.", no_args_is_help=True
)

_CHAT = click.argument("room")
_AS = click.option("--as", "user", metavar="USER", required=True, help="As which user.")
_MAYBE_AS = click.option("--as", "user", metavar="USER", help="As which user; without it as the operator.")
_KIND = click.option(
    "--kind", type=click.Choice(["group", "channel"]), default="group", help="Of a chat that is made: who may send."
)
INBOX = [
    Column("chat", shrink=True),
    Column("unread", right=True),
    Column("last", right=True),
    Column("time", rank=1),
    Column("from", rank=1),
    Column("preview", shrink=True),
]
MEMBERS = [Column("user", shrink=True), Column("role"), Column("since", rank=1), Column("id", rank=2)]


# ---- messages ----


@chat.verb(
    "send",
    examples="""
    topicctl chat send kitchen 'dinner is ready' --as ann
    topicctl chat send @bob 'are you there?' --as ann       # between the two of them
    topicctl chat send news 'version 2 is out' --as ann --kind channel
    """,
)
@_CHAT
@click.argument("text")
@_AS
@_KIND
@click.option("--id", "msg_id", metavar="HEX", help="Of the message; the same id is stored once.")
@pass_app
def send(app: App, room: str, text: str, user: str, kind: str, msg_id: str | None) -> None:
    """Send TEXT to the chat ROOM, or to a user as @NAME. A room that does not exist is made."""
    with app.connect() as client:
        sent = client.chat.send(room, text, user=user, id=msg_id, kind=kind)
    app.out.either(asdict(sent), f"{room}#{sent.seq}" if sent.seq else f"{room}: it was there already")


@chat.verb(
    "read",
    examples="""
    topicctl chat read kitchen --as bob
    topicctl chat read kitchen --as bob --after CURSOR --json
    topicctl chat read kitchen --last 20
    """,
    apart=("--after --last", "--last --limit"),
)
@_CHAT
@_MAYBE_AS
@click.option("--after", metavar="CURSOR", default="", help="Behind this message.")
@click.option("--last", type=click.IntRange(1, 1000), metavar="N", help="Only the newest N.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N", help="At most N.")
@pass_app
def read(app: App, room: str, user: str | None, after: str, last: int | None, limit: int) -> None:
    """Print messages of the chat ROOM in the order of their time."""
    with app.connect() as client:
        page = client.chat.read(room, user=user, after=after, newest=last is not None, limit=last or limit)
    if app.json:
        app.out.document({"messages": [_plain(one) for one in page.messages], "next": page.next})
        return
    for one in page.messages:
        app.out.text(_line(one))
    if not page.messages:
        app.out.text("no messages")
    if page.next and last is None:
        app.out.text(f"more: --after {page.next}")


@chat.verb("watch", examples="topicctl chat watch kitchen --as bob\ntopicctl chat watch kitchen --after-seq 0 --json")
@_CHAT
@_MAYBE_AS
@click.option("--after-seq", type=click.IntRange(min=0), metavar="SEQ", help="Begin behind this one, not now.")
@pass_app
def watch(app: App, room: str, user: str | None, after_seq: int | None) -> None:
    """Print messages of the chat ROOM as they come, and signals."""
    from topicd.client.core.chat import ChatMessage

    with app.connect() as client:
        for event in client.chat.watch(room, user=user, after_seq=after_seq):
            if app.json:
                app.out.lines([_plain(event)])
            elif isinstance(event, ChatMessage):
                app.out.text(_line(event))
            else:
                app.out.text(f"  {printable_text(event.name or event.user)}: {printable_text(event.kind)}")


@chat.verb("inbox", examples="topicctl chat inbox --as bob\ntopicctl chat inbox --as bob --json | jq '.chats[].unread'")
@_AS
@click.option("--after", metavar="CURSOR", default="", help="The page behind this one.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N", help="At most N.")
@pass_app
def inbox(app: App, user: str, after: str, limit: int) -> None:
    """List the chats of a user, the one with the newest message first."""
    with app.connect() as client:
        page = client.chat.inbox(user, after=after, limit=limit)
    if app.json:
        app.out.document(asdict(page))
    elif not page.chats:
        app.out.text("no chats")
    else:
        app.out.table(INBOX, [_row(one) for one in page.chats])
        if page.next:
            app.out.text(f"more: --after {page.next}")


@chat.verb("mark", examples="topicctl chat mark kitchen 17 --as bob")
@_CHAT
@click.argument("seq", type=click.IntRange(min=0))
@_AS
@pass_app
def mark(app: App, room: str, seq: int, user: str) -> None:
    """Say that a user has read the chat ROOM up to SEQ. It never goes back."""
    with app.connect() as client:
        read_seq = client.chat.mark(room, seq, user=user)
    app.out.either({"read_seq": read_seq}, f"{user} has read {room} up to {read_seq}")


# ---- members and identities ----


@chat.verb("members", examples="topicctl chat members kitchen")
@_CHAT
@_MAYBE_AS
@pass_app
def members(app: App, room: str, user: str | None) -> None:
    """List who belongs to the chat ROOM."""
    with app.connect() as client:
        found = client.chat.members(room, user=user)
    if app.json:
        app.out.document([asdict(one) for one in found])
    elif not found:
        app.out.text("no members")
    else:
        rows = [(printable_text(one.name) or one.user, one.role, local_time(one.since_ms), one.user) for one in found]
        app.out.table(MEMBERS, rows)


@chat.verb("add", examples="topicctl chat add kitchen cid --role admin\ntopicctl chat add kitchen dora --as ann")
@_CHAT
@click.argument("member")
@click.option("--role", type=click.Choice(["participant", "admin"]), default="participant", show_default=True)
@_KIND
@_MAYBE_AS
@pass_app
def add(app: App, room: str, member: str, role: str, kind: str, user: str | None) -> None:
    """Add MEMBER to the chat ROOM, which is made if there is none."""
    with app.connect() as client:
        client.chat.add(room, member, role=role, user=user, kind=kind)
    app.out.either({"chat": room, "member": member, "role": role}, f"{member} belongs to {room} as {role}")


@chat.verb(
    "remove", examples="topicctl chat remove kitchen bob\ntopicctl chat remove kitchen bob --as bob   # he leaves"
)
@_CHAT
@click.argument("member")
@_MAYBE_AS
@pass_app
def remove(app: App, room: str, member: str, user: str | None) -> None:
    """Remove MEMBER from the chat ROOM."""
    with app.connect() as client:
        was_member = client.chat.remove(room, member, user=user)
    said = f"{member} does not belong to {room} any more" if was_member else f"{member} did not belong to {room}"
    app.out.either({"chat": room, "removed": member, "was_member": was_member}, said)


identity = Group("identity", help="What a user wants others to know, for example a public key.", no_args_is_help=True)
chat.add_command(identity)


@identity.verb("put", examples="topicctl chat identity put --as ann key.pub")
@_AS
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@pass_app
def identity_put(app: App, user: str, file: Path) -> None:
    """Put the bytes of FILE, at most 1,024, in the place of what was there."""
    blob = sys.stdin.buffer.read(1_025) if str(file) == "-" else file.read_bytes()
    with app.connect() as client:
        stored = client.chat.put_identity(user, blob)
    app.out.either(
        {"stored": stored}, f"stored, {counted(len(blob), 'byte')}" if stored else "not stored: a later one is there"
    )


@identity.verb("get", examples="topicctl chat identity get ann > key.pub")
@click.argument("user")
@pass_app
def identity_get(app: App, user: str) -> None:
    """Print the bytes that USER has put."""
    with app.connect() as client:
        blob = client.chat.identity(user)
    if blob is None:
        raise CliError(f"{user} has put nothing", Exit.NOT_FOUND)
    if app.json:
        app.out.document({"user": user, "hex": blob.hex()})
    else:
        app.out.raw(blob)


# ---- how things are shown ----


def _plain(event: Any) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(event).items()}


def _line(one: ChatMessage) -> str:
    sender = printable_text(one.sender_name) or one.sender[:12]
    return f"{local_time(one.ms)}  #{one.seq}  {sender}: {printable_text(one.text)}"


def _row(one: ChatRow) -> tuple[str, ...]:
    name = printable_text(one.chat_name)
    if one.kind == "dm":
        name = "@" + (printable_text(one.peer_name) or one.peer)
    sender = printable_text(one.last_sender_name) or one.last_sender[:12]
    preview = printable_text(one.preview)
    return name or one.chat, count(one.unread), str(one.last_seq), local_time(one.ms), sender or "-", preview


for _made in chat_store.VERBS:
    chat.add_command(_made)
