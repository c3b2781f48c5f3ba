"""Tokens: what a file may hold, what a secret opens, and what the command line does to the file."""

from __future__ import annotations

import json
import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from topicd.cli.exits import CliError
from topicd.cli.main import root_command
from topicd.cli.offline import token_file
from topicd.errors import Conflict, Forbidden, FormatError, InvalidRequest, Unauthorized
from topicd.ipc.protocol.messages import REQUESTS, Op
from topicd.limits import STAGE_KEY_DIGITS
from topicd.tokens import EVERYTHING, SCOPES, Rights, TokenFile, digest_of, new_token

NOW = 1_800_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


# ---- rights ----


def test_a_scope_that_is_missing_is_named() -> None:
    with pytest.raises(Forbidden, match="token 'a' has no write right"):
        Rights("a", frozenset({"read"})).require("write", "orders")


def test_a_name_outside_the_prefixes_is_refused_whatever_the_scope() -> None:
    rights = Rights("a", frozenset({"admin"}), ("orders.", "events."))
    rights.require("write", "orders.eu")
    with pytest.raises(Forbidden, match="may not touch topic 'order'"):
        rights.require("read", "order")


def test_admin_may_do_everything() -> None:
    for scope in SCOPES:
        Rights("a", frozenset({"admin"})).require(scope, "x")
        EVERYTHING.require(scope, "x")


def test_who_may_write_may_do_everything_with_topicds_own_journals() -> None:
    for scope in SCOPES:
        Rights("a", frozenset({"write"})).require(scope, "topicd.restores")
    with pytest.raises(Forbidden):
        Rights("a", frozenset({"read"})).require("delete", "topicd.restores")
    with pytest.raises(Forbidden):
        Rights("a", frozenset({"write"}), ("orders.",)).require("read", "topicd.restores")


@pytest.mark.parametrize("name", ["topicd.stage.", "topicd.commits."])
def test_stages_are_for_who_may_stage_whatever_his_prefixes(name: str) -> None:
    job = Rights("job", frozenset({"write", "stage"}), ("orders.",))
    for scope in ("read", "write", "delete", "admin"):
        job.require(scope, f"{name}x")
        for others in ({"read", "write", "delete"}, {"write"}):
            with pytest.raises(Forbidden, match="no stage right"):
                Rights("a", frozenset(others)).require(scope, f"{name}x")
    with pytest.raises(Forbidden, match="no read right"):
        job.require("read", "orders.x")
    with pytest.raises(Forbidden, match="may not touch"):
        Rights("a", frozenset({"admin"}), ("orders.",)).require("read", f"{name}x")


@pytest.mark.parametrize("name", ["topicd.chat.00", f"topicd.channel.{'0' * 64}.1"])
def test_logs_of_chats_and_channels_are_for_nobody_but_who_may_do_everything(name: str) -> None:
    """Their members are asked for by whoever keeps them."""
    most = Rights("a", frozenset(SCOPES) - {"admin"})
    for scope in SCOPES:
        with pytest.raises(Forbidden, match="may not touch the logs"):
            most.require(scope, name)
    assert not most.allows(name)
    assert not most.lists(name, "topicd.")
    assert Rights("a", frozenset({"admin"})).allows(name)
    assert not Rights("a", frozenset({"admin"}), ("orders.",)).allows(name)


def test_stages_are_shown_to_who_knows_whose_they_are() -> None:
    key, job = "a" * STAGE_KEY_DIGITS, Rights("job", frozenset({"write", "stage"}), ("orders.",))
    mine = f"topicd.stage.{key}.0.0.1-2"
    assert job.lists(mine, f"topicd.stage.{key}.") and not job.allows(mine)
    for prefix in ("", "topicd.", "topicd.stage.", f"topicd.stage.{key[:-1]}"):
        assert not job.lists(mine, prefix) and EVERYTHING.lists(mine, prefix)
    assert not Rights("a", frozenset({"read", "write"})).lists(mine, f"topicd.stage.{key}.")


def test_consumers_need_a_right_of_their_own_which_reading_is_not() -> None:
    with pytest.raises(Forbidden, match="token 'a' has no consume right"):
        Rights("a", frozenset({"read", "write"})).require("consume", "orders")
    Rights("a", frozenset({"consume"})).require("consume", "orders")
    consuming = {
        REQUESTS[op].RIGHT for op in (Op.CONSUMER_OPEN, Op.CONSUMER_ACK, Op.CONSUMER_RESET, Op.CONSUMER_REMOVE)
    }
    assert consuming == {("consume",)}
    assert {REQUESTS[op].RIGHT for op in (Op.CONSUMER_STATE, Op.CONSUMER_LIST)} == {("read",)}


def test_either_of_two_scopes_is_enough() -> None:
    for scope in ("read", "write", "admin"):
        Rights("a", frozenset({scope})).require_any(("read", "write"), "x")
    with pytest.raises(Forbidden):
        Rights("a", frozenset({"delete"})).require_any(("read", "write"), "x")
    with pytest.raises(Forbidden):
        Rights("a", frozenset({"write"}), ("y",)).require_any(("read", "write"), "x")


# ---- the file ----


def test_a_secret_opens_what_its_token_allows(path: Path) -> None:
    secret = token_file.create(path, "shop", ["read", "write"], ["orders."])
    token_file.create(path, "other", ["admin"])
    assert TokenFile.load(path).authorize(secret, NOW) == Rights("shop", frozenset({"read", "write"}), ("orders.",))


@pytest.mark.parametrize("secret", [None, "", 7, b"x"])
def test_no_secret_is_refused(path: Path, secret: object) -> None:
    token_file.create(path, "a", ["read"])
    with pytest.raises(Unauthorized, match="a token is needed"):
        TokenFile.load(path).authorize(secret, NOW)


def test_a_wrong_secret_is_refused_without_repeating_it(path: Path) -> None:
    secret = token_file.create(path, "a", ["read"])
    with pytest.raises(Unauthorized) as caught:
        TokenFile.load(path).authorize(secret + "x", NOW)
    assert secret not in str(caught.value)
    with pytest.raises(Unauthorized):
        TokenFile.load(path).authorize(digest_of(secret).hex(), NOW)


def test_a_token_ends_at_its_moment(path: Path) -> None:
    ends = datetime.fromtimestamp(NOW / 1000, UTC)
    secret = token_file.create(path, "a", ["read"], expires=ends)
    found = TokenFile.load(path)
    assert found.authorize(secret, NOW - 1).name == "a"
    with pytest.raises(Unauthorized, match="'a' has expired"):
        found.authorize(secret, NOW)


def test_scopes_may_be_written_short(path: Path) -> None:
    secret, digest = new_token()
    path.write_text(f'[[token]]\nname = "a"\nsha256 = "{digest}"\nscopes = ["rw", "d", "write"]\n')
    assert TokenFile.load(path).authorize(secret, NOW).scopes == {"read", "write", "delete"}


GOOD = f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = ["read"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold"),
        ("token = 1", "must hold"),
        (GOOD + "[other]\n", "must hold"),
        ("[[token", "not TOML"),
        (GOOD + "more = 1\n", "nothing else"),
        (GOOD.replace("read", "root"), "scopes must be"),
        (GOOD.replace('["read"]', "[]"), "scopes must be"),
        (GOOD.replace("0" * 64, "0" * 63), "64 lower-case hex"),
        (GOOD + 'prefixes = [""]\n', "prefixes must be"),
        (GOOD + 'prefixes = "orders"\n', "prefixes must be"),
        (GOOD + 'expires = "2027"\n', "expires must be"),
    ],
)
def test_a_file_that_is_not_understood_lets_nobody_in(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        TokenFile.load(path)
    with pytest.raises(FormatError):
        token_file.create(path, "b", ["read"])
    assert path.read_text() == text


# ---- changes ----


def test_only_the_owner_may_read_it_and_only_digests_are_in_it(path: Path) -> None:
    before = os.umask(0)
    try:
        secret = token_file.create(path, "a", ["read"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    assert digest_of(secret).hex() in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["tokens.toml"]


def test_other_tokens_stay_as_they_are(path: Path) -> None:
    ends = datetime(2027, 1, 1, tzinfo=UTC)
    first = token_file.create(path, 'quo"te\\', ["read", "delete"], ["a.", 'b"'], ends)
    before = token_file.rows(path)
    token_file.create(path, "b", ["write", "write"])
    assert token_file.rows(path)[:1] == before
    assert token_file.rows(path)[1]["scopes"] == ["write"]
    assert token_file.revoke(path, "b")
    assert token_file.rows(path) == before
    assert TokenFile.load(path).authorize(first, 0).prefixes == ("a.", 'b"')


def test_a_name_is_used_once(path: Path) -> None:
    token_file.create(path, "a", ["read"])
    with pytest.raises(Conflict, match="already"):
        token_file.create(path, "a", ["write"])
    for name in ("", "x\n", "x" * 65):
        with pytest.raises(InvalidRequest):
            token_file.create(path, name, ["read"])


def test_the_last_token_stays(path: Path) -> None:
    token_file.create(path, "a", ["read"])
    with pytest.raises(Conflict, match="last token"):
        token_file.revoke(path, "a")
    assert len(TokenFile.load(path)) == 1


def test_changes_at_the_same_time_are_all_kept(path: Path) -> None:
    makers = [threading.Thread(target=token_file.create, args=(path, f"t{i}", ["read"])) for i in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(TokenFile.load(path)) == 8


# ---- the command line ----


def run(*args: object) -> Result:
    return CliRunner().invoke(root_command(), ["token", *map(str, args)])


def test_create_list_and_revoke(path: Path) -> None:
    made = run("create", "shop", "--scope", "read", "--scope", "write", "--prefix", "orders.", "--file", path)
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert TokenFile.load(path).authorize(secret, NOW).prefixes == ("orders.",)
    assert "not shown again" in made.stderr
    assert secret not in made.stderr
    run("create", "spark", "--scope", "read", "--expires", "2027-01-31", "-f", path)
    listed = run("list", "-f", path).stdout
    assert "shop" in listed
    assert "read, write" in listed
    assert "2027-01-31T00:00:00+00:00" in listed
    assert run("revoke", "shop", "--yes", "-f", path).exit_code == 0
    with pytest.raises(Unauthorized):
        TokenFile.load(path).authorize(secret, NOW)


def test_json(path: Path) -> None:
    made = json.loads(run("create", "shop", "--scope", "read", "-f", path, "--json").stdout)
    assert made["name"] == "shop"
    assert TokenFile.load(path).authorize(made["token"], NOW).name == "shop"
    run("create", "b", "--scope", "read", "-f", path)
    (row, _) = json.loads(run("list", "-f", path, "--json").stdout)
    assert (row["name"], row["scopes"], row["prefixes"], row["expires"]) == ("shop", ["read"], [], None)
    assert json.loads(run("revoke", "b", "-y", "-f", path, "--json").stdout)["revoked"] is True


def test_mistakes_are_told(path: Path) -> None:
    assert "Missing option '--scope'" in run("create", "a", "-f", path).stderr
    assert "is not one of" in run("create", "a", "--scope", "root", "-f", path).stderr
    assert "no date or time" in run("create", "a", "--scope", "read", "--expires", "soon", "-f", path).stderr
    run("create", "a", "--scope", "read", "-f", path)
    assert isinstance(run("revoke", "b", "--yes", "-f", path).exception, CliError)
    assert isinstance(run("revoke", "a", "-f", path).exception, CliError)
