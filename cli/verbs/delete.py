"""`topicctl delete`: records, for good."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.ask import confirm
from topicd.cli.options import FILTERS_APART, match_of
from topicd.cli.show.human import count, records_word, size
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client

EXAMPLES = """
topicctl delete orders --before 1000 --dry-run
topicctl delete orders --before 1000 --yes           # records 1 to 999
topicctl delete orders --tag customer/17             # all that have this tag
topicctl delete orders --tag-prefix tmp/ --before 500
topicctl topic delete orders                         # the topic itself
"""


class Matching(NamedTuple):
    count: int  # type: ignore[assignment]
    first_seq: int
    last_seq: int


@verb("delete", examples=EXAMPLES, apart=(FILTERS_APART,))
@click.argument("topic", shell_complete=complete_topics)
@click.option("--before", type=click.IntRange(min=1), metavar="SEQ", help="Only records below this seq.")
@click.option("--tag", metavar="TAG", help="Only records with that tag.")
@click.option("--tag-prefix", metavar="TEXT", help="Only records whose tag begins so.")
@click.option("--dry-run", is_flag=True, help="Count them and delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def delete(
    app: App, topic: str, before: int | None, tag: str | None, tag_prefix: str | None, dry_run: bool, yes: bool
) -> None:
    """Delete records of TOPIC: permanent, at once, and silent for readers.

    What is stored after the command began is never deleted by it.
    """
    match = match_of(tag, tag_prefix)
    if before is None and match is None:
        raise click.UsageError("say which: --before, --tag or --tag-prefix; `topicctl topic delete` removes all")
    what = described(topic, before, tag, tag_prefix)
    with app.connect() as client, known_topic(client, topic):
        if dry_run:
            _say_matching(app, topic, what, matching(client, topic, before, match))
            return
        client.state(topic, touch=False)
        confirm(f"delete {what} for good?", yes)
        done = client.delete(topic, before, match)
    app.out.either(
        {"topic": topic, "dry_run": False, **asdict(done)},
        f"deleted {records_word(done.deleted)} ({size(done.deleted_bytes)}); {count(done.count)} are left",
    )


def described(topic: str, before: int | None, tag: str | None, tag_prefix: str | None) -> str:
    parts = [f"records of {topic!r}"]
    if before is not None:
        parts.append(f"below seq {before}")
    if tag is not None:
        parts.append(f"tagged {tag!r}")
    if tag_prefix is not None:
        parts.append(f"whose tag begins with {tag_prefix!r}")
    return " ".join(parts)


def matching(client: Client, topic: str, before: int | None, match: Any) -> Matching:
    """What a delete would remove, found by reading without the data."""
    from topicd.cli.show.progress import Bar

    head = client.state(topic, touch=False).head_seq
    end = head if before is None else min(head, before - 1)
    found, first, last = 0, 0, 0
    at = 0
    with Bar(f"looking through {topic}", end, "seqs") as bar:
        while at < end:
            wanted = min(FETCH_RECORDS_MAX, end - at)
            batch = client.fetch(topic, at, limit=wanted, max_bytes=FETCH_BYTES_MAX, match=match, metadata_only=True)
            seqs = [record.seq for record in batch.records if record.seq <= end]
            if seqs:
                found, first, last = found + len(seqs), first or seqs[0], seqs[-1]
            bar.advance(batch.next_from_seq - at)
            at = batch.next_from_seq
            if batch.caught_up:
                break
    return Matching(found, first, last)


def _say_matching(app: App, topic: str, what: str, found: Matching) -> None:
    if app.json:
        body = {"topic": topic, "dry_run": True, "deleted": found.count}
        app.out.document({**body, "first_seq": found.first_seq or None, "last_seq": found.last_seq or None})
    elif not found.count:
        app.out.text(f"no {what}; nothing would be deleted")
    else:
        app.out.text(f"would delete {count(found.count)} {what}, seqs {found.first_seq} to {found.last_seq}")
