"""Settings: sources, precedence, parsing, refusals, generated reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from topicd import config
from topicd.config import ConfigError, Settings
from topicd.limits import KIB, MIB

NOWHERE = Path("/nonexistent/topicd.toml")


def load(
    flags: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
    system_file: Path = NOWHERE,
) -> config.Loaded:
    return config.load(flags or {}, environ or {}, file, system_file)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "topicd.toml"
    path.write_text('checkpoint_ms = 111\nsnapshot_ms = 222\nmax_topics = 333\nring_bytes = "8MiB"\n')
    return path


def test_flags_win_over_environment_over_file_over_default(toml: Path) -> None:
    environ = {"TOPICD_CHECKPOINT_MS": "1000", "TOPICD_SNAPSHOT_MS": "2000"}
    loaded = load({"checkpoint_ms": "10000", "max_topics": None}, environ, toml)
    s = loaded.settings
    assert (s.checkpoint_ms, s.snapshot_ms, s.max_topics, s.disk_sync_ms) == (10_000, 2000, 333, 50)
    assert [loaded.sources[n] for n in ("checkpoint_ms", "snapshot_ms", "max_topics", "disk_sync_ms")] == [
        "flag",
        "environment",
        str(toml),
        "default",
    ]


def test_file_is_named_by_flag_or_environment_or_is_the_systems(toml: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("max_topics = 5\n")
    assert load(environ={"TOPICD_CONFIG": str(toml)}).settings.max_topics == 333
    assert load(environ={"TOPICD_CONFIG": str(toml)}, file=other).settings.max_topics == 5
    assert load(system_file=other).settings.max_topics == 5
    assert load(file=toml, system_file=other).settings.max_topics == 333
    assert load().file is None


def test_a_named_file_must_exist_and_be_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(file=NOWHERE)
    (tmp_path / "bad.toml").write_text("this is = = not")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(file=tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(file=tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4194304", 4 * MIB),
        ("4MiB", 4 * MIB),
        ("4M", 4 * MIB),
        ("4096K", 4 * MIB),
        ("1.5MiB", 1536 * KIB),
        ("2 MiB", 2 * MIB),
    ],
)
def test_sizes_have_units(text: str, value: int) -> None:
    assert load({"ring_bytes": text}).settings.ring_bytes == value


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ring_bytes", "4MB", "must be bytes or a size like 64MiB"),
        ("ring_bytes", "1MiB", "must be 1536KiB to 64MiB"),
        ("ring_bytes", True, "must be bytes"),
        ("wal_shards", "many", "must be a whole number"),
        ("wal_shards", "65", "must be 0 to 64"),
        ("wal_shards", -1, "must be 0 to 64"),
        ("disk_sync_ms", 2.5, "must be a whole number"),
        ("stop_timeout_s", "soon", "must be a number of seconds"),
        ("stop_timeout_s", "nan", "must be 0.5 to 3600"),
        ("stop_timeout_s", [1], "must be a number of seconds"),
        ("log_level", "loud", "must be one of debug, info, warning, error"),
        ("log_level", ["info"], "must be one of"),
        ("socket_mode", "rw-rw----", "must be three octal digits"),
        ("socket_mode", 660, "must be three octal digits"),
        ("allowed_uids", "root", "must be numeric user ids"),
        ("allowed_uids", "1,,2", "must be numeric user ids"),
        ("allowed_uids", "4294967296", "must be numeric user ids"),
        ("test_clock", "perhaps", "must be true or false"),
        ("data_dir", "", "must be a path"),
        ("data_dir", 7, "must be a path"),
        ("direct_bytes", 0, "must be at least 1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_name_source_rule_and_value(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({name: value})
    text = str(caught.value)
    assert text.startswith(f"{name} (flag): {said}")
    assert repr(value) in text


def test_unknown_key_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("ring_byte = 1\n")
    with pytest.raises(ConfigError, match=r"unknown setting 'ring_byte' .* did you mean ring_bytes\?"):
        load(file=tmp_path / "t.toml")
    with pytest.raises(ConfigError, match="lists all"):
        load({"zzzzzz": 1})


def test_likely_slip_in_the_environment_is_refused_and_strangers_are_left_alone() -> None:
    with pytest.raises(ConfigError, match="did you mean TOPICD_WAL_SHARDS"):
        load(environ={"TOPICD_WAL_SHARD": "3"})
    load(environ={"TOPICD_SOCKET": "/x", "TOPICD_CONTROL_FD": "3", "PATH": "/bin"})


def test_automatic_values_are_filled_in_and_paths_absolute() -> None:
    cpus = len(os.sched_getaffinity(0))
    s = load({"data_dir": "some/where"}).settings
    assert (s.wal_shards, s.delivery_shards) == (min(cpus, 8), min(cpus, 256))
    assert s.data_dir == Path.cwd() / "some/where"
    assert load({"wal_shards": 3, "delivery_shards": 5}).settings.wal_shards == 3


def test_fields_are_checked_against_each_other() -> None:
    with pytest.raises(ConfigError, match=r"wal_file_bytes \(4MiB\) must be at least twice ring_bytes \(4MiB\)"):
        load({"wal_file_bytes": "4MiB"})
    with pytest.raises(ConfigError, match="must differ"):
        load({"data_dir": "/x", "run_dir": "/x"})


def test_settings_survive_the_wire() -> None:
    s = load({"allowed_uids": "0, 1000", "socket_mode": "0600", "stop_timeout_s": 2.5}).settings
    assert Settings.from_wire(s.to_wire()) == s
    assert all(isinstance(value, str | int | float | bool) for value in s.to_wire().values())


def test_allowed_uids_default_to_own_and_root() -> None:
    assert load().settings.uids == {os.geteuid(), 0}
    assert load({"allowed_uids": "7, 8"}).settings.uids == {7, 8}
    assert load({"allowed_uids": 7}).settings.uids == {7}


def test_mode_is_octal() -> None:
    assert load().settings.mode == 0o660
    assert load({"socket_mode": "600"}).settings.mode == 0o600


def test_every_default_is_valid_by_its_own_rule() -> None:
    defaults = {name: f.default for name, f in config.FIELDS.items()}
    assert config.parse_all(defaults, "default") == defaults


def test_reference_lists_every_setting_but_the_hidden_and_is_up_to_date() -> None:
    text = config.render_settings_markdown()
    for name, f in config.FIELDS.items():
        assert (f"| `{name}` |" in text) == (not f.metadata.get("hidden"))
        assert f.metadata["help"]
    kept = Path(__file__).parents[3] / "docs" / "settings.md"
    assert kept.read_text() == text, "run `make docs`"


def test_reloadable_are_those_that_need_no_restart() -> None:
    assert {"log_level", "allowed_uids", "checkpoint_bytes", "checkpoint_ms", "snapshot_ms"} <= config.RELOADABLE
    assert {n for n in config.FIELDS if n.startswith("max_")} <= config.RELOADABLE
    assert not {"data_dir", "wal_shards", "ring_bytes", "socket_mode"} & config.RELOADABLE


def test_settings_do_not_change_and_know_what_they_are() -> None:
    made = Settings(wal_shards=3)
    with pytest.raises(AttributeError, match="wal_shards"):
        made.wal_shards = 4
    assert made.replace(wal_shards=4) == Settings(wal_shards=4) != made
    with pytest.raises(TypeError, match=r"wal_shard$"):
        Settings(wal_shard=1)
