"""Tokens: made, listed, given a new secret, taken away; the secret is printed once and kept nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.kit import run
from topicd.errors import Unauthorized
from topicd.tokens import TokenFile

NOW = 1_800_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def made(file: Path, name: str, *more: str) -> str:
    done = run("token", "create", name, "--scope", "read", *more, "--file", str(file))
    assert done.exit_code == 0 and "the secret is not shown again" in done.stderr
    return done.stdout.strip()


def test_the_file_never_holds_a_secret(file: Path) -> None:
    secret = made(file, "shop", "--scope", "write", "--prefix", "orders.")
    assert secret.startswith("tpd_") and secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    rights = TokenFile.load(file).authorize(secret, NOW)
    assert (rights.name, rights.scopes, rights.prefixes) == ("shop", {"read", "write"}, ("orders.",))
    listed = json.loads(run("token", "list", "--file", str(file), "--json").stdout)
    assert [row["name"] for row in listed] == ["shop"] and secret not in json.dumps(listed)


def test_a_rotated_token_keeps_what_it_may_do_and_loses_its_secret(file: Path) -> None:
    other, old = made(file, "other"), made(file, "shop", "--scope", "write", "--prefix", "orders.")
    before = TokenFile.load(file).authorize(old, NOW)
    new = run("token", "rotate", "shop", "--file", str(file)).stdout.strip()
    assert new.startswith("tpd_") and new != old
    tokens = TokenFile.load(file)
    assert tokens.authorize(new, NOW) == before
    assert tokens.authorize(other, NOW).name == "other"
    with pytest.raises(Unauthorized):
        tokens.authorize(old, NOW)
    assert json.loads(run("token", "rotate", "shop", "--file", str(file), "--json").stdout)["name"] == "shop"


def test_a_revoked_token_is_gone_and_nobody_else(file: Path) -> None:
    other, secret = made(file, "other"), made(file, "shop")
    assert run("token", "revoke", "shop", "--file", str(file)).exit_code == 2, "nobody was there to confirm it"
    assert run("token", "revoke", "shop", "--yes", "--file", str(file)).exit_code == 0
    tokens = TokenFile.load(file)
    assert tokens.authorize(other, NOW).name == "other"
    with pytest.raises(Unauthorized):
        tokens.authorize(secret, NOW)


@pytest.mark.parametrize("verb", ["rotate", "revoke"])
def test_a_token_that_is_not_there_is_named(file: Path, verb: str) -> None:
    made(file, "shop")
    done = run("token", verb, "shopp", "--file", str(file))
    assert done.exit_code == 4 and "there is no token 'shopp'" in done.stderr


def test_the_last_token_stays_so_that_the_daemon_can_start(file: Path) -> None:
    made(file, "shop")
    done = run("token", "revoke", "shop", "--yes", "--file", str(file))
    assert done.exit_code == 5 and "the last token" in done.stderr
    assert "shop" in run("token", "list", "--file", str(file)).stdout
