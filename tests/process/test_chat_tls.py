"""Two chat stores that meet over TLS: whom the one trusts, and what is said when it does not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process.cli_kit import TOPICCTL, environment
from tests.support.certs import Authority
from tests.support.chatpair import Pair
from topicd.errors import InvalidRequest, Unauthorized


class Site(NamedTuple):
    pair: Pair
    ca_file: Path
    target: str

    def ctl(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TOPICCTL, "chat", "sync", self.target, *args],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env={**environment(self.pair.daemons[0]), **env},
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("tls")
    authority = Authority(root)
    server = authority.issue("server")
    tls = {"TOPICD_TLS_CERT": str(server.cert), "TOPICD_TLS_KEY": str(server.key)}
    with Pair(root / "pair", 0, 0, **tls) as pair:
        yield Site(pair, authority.own.cert, f"tls://localhost:{pair.ports[1]}")


def test_two_stores_become_equal_with_the_certificates_that_are_given(site: Site) -> None:
    here, there = site.pair.chats()
    here.send("room", "from here", user="ann")
    there.send("room", "from there", user="bob")
    found = here.sync(site.target, token=site.pair.secret, ca_file=site.ca_file)
    assert found["equal"]
    assert here.digest() == there.digest()
    with pytest.raises(Unauthorized, match="is not trusted"):
        here.sync(site.target, token=site.pair.secret)
    with pytest.raises(InvalidRequest, match="ca_file belongs to a target tls://"):
        here.sync(f"tcp://localhost:{site.pair.ports[1]}", token=site.pair.secret, ca_file=site.ca_file)


def test_topicctl_takes_certificates_and_token_from_the_environment(site: Site, tmp_path: Path) -> None:
    done = site.ctl(TOPICD_SYNC_TOKEN=site.pair.secret, TOPICD_CA_FILE=str(site.ca_file))
    assert (done.returncode, done.stdout.startswith("equal now")) == (0, True), done.stderr
    assert site.ctl("--ca-file", str(site.ca_file), TOPICD_SYNC_TOKEN=site.pair.secret).returncode == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_refusal_of_the_other_store_says_which_token_and_which_certificates_are_meant(
    site: Site, known: bool
) -> None:
    trust = {"TOPICD_CA_FILE": str(site.ca_file)} if known else {}
    done = site.ctl(TOPICD_SYNC_TOKEN="guessed", **trust)
    assert done.returncode == 5
    assert ("the token is not known" if known else "is not trusted") in done.stderr
    assert "TOPICD_SYNC_TOKEN or --token holds its token, TOPICD_CA_FILE or --ca-file" in done.stderr
