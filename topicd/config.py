"""Settings of the daemon, each declared once: a field of Settings makes the flag, the environment variable,
the TOML key and the line in docs/settings.md. Promise: flags win over the environment, the environment
over the file, the file over the defaults; what cannot be understood is refused with its name, value,
source and rule.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from topicd import values
from topicd.limits import KIB, MIB, SEGMENT_RECORDS_MAX, WAL_FILE_MAX
from topicd.values import NO_LIMIT

ENV_PREFIX = "TOPICD_"
CONFIG_ENV = "TOPICD_CONFIG"
SYSTEM_FILE = Path("/etc/topicd/topicd.toml")
MAX_WAL_SHARDS = 64
MAX_DELIVERY_SHARDS = 256
AUTO_WAL_SHARDS_MAX = 8
RING_BYTES_MIN = 1536 * KIB
_DAY_MS = 86_400_000


class ConfigError(Exception):
    """A setting that cannot be used; the message is for the operator."""


class Field(NamedTuple):
    """How a setting is declared."""

    default: Any
    metadata: Mapping[str, Any]  # kind, help, and its rule


def _setting(kind: str, default: Any, help: str, **rule: Any) -> Any:
    """rule: low and high (numbers), choices (text), reloadable, hidden, auto (what 0 stands for)."""
    return Field(default, {"kind": kind, "help": help, **rule})


def _live(kind: str, default: Any, help: str, **rule: Any) -> Any:
    """A setting that SIGHUP may change."""
    return _setting(kind, default, help, reloadable=True, **rule)


class Settings:
    """All of them. Never changed: replace() makes others. No dataclass, because making one takes 10 ms, libraries
    included, and every process of the daemon would pay for it at each start."""

    data_dir: Path = _setting("path", Path("./var/data"), "where topics, WAL and metadata lie")
    run_dir: Path = _setting("path", Path("./var/run"), "where the sockets lie")
    wal_shards: int = _setting(
        "count", 0, "processes that write the WAL", low=0, high=MAX_WAL_SHARDS, auto="min(cpus, 8)"
    )
    delivery_shards: int = _setting(
        "count", 0, "processes that own topics and serve them", low=0, high=MAX_DELIVERY_SHARDS, auto="cpus"
    )
    ring_bytes: int = _setting(
        "size",
        4 * MIB,
        "shared memory between a delivery shard and a WAL shard: what may be in flight between the two",
        low=RING_BYTES_MIN,
        high=64 * MIB,
    )
    wal_file_bytes: int = _setting(
        "size", 64 * MIB, "size of one WAL file; at least twice ring_bytes", low=MIB, high=WAL_FILE_MAX
    )
    disk_sync_ms: int = _setting("ms", 50, "longest time until a write of class disk is synced", low=1, high=60_000)
    linger_us: int = _setting(
        "us",
        300,
        "longest time a shard stays awake for what usually comes sooner than it could be woken; 0: none",
        low=0,
        high=1_000,
    )
    direct_writes: str = _live(
        "choice",
        "copies",
        "which large writes go to their segment without the log; synced: those of class fsync, too",
        choices=("none", "copies", "synced"),
    )
    direct_bytes: int = _live("size", 256 * KIB, "what is large in this sense", low=1, high=NO_LIMIT)
    checkpoint_bytes: int = _live(
        "size", 32 * MIB, "checkpoint after so much new data per delivery shard", low=64 * KIB, high=NO_LIMIT
    )
    checkpoint_ms: int = _live("ms", 1000, "checkpoint so often while there is new data", low=10, high=_DAY_MS)
    snapshot_ms: int = _live("ms", 60_000, "write a metadata snapshot so often", low=100, high=_DAY_MS)
    segment_max_records: int = _setting(
        "count", 10_000, "seal a segment at so many records", low=1, high=SEGMENT_RECORDS_MAX
    )
    segment_max_bytes: int = _setting("size", 64 * MIB, "seal a segment at this size", low=4 * KIB, high=1024 * MIB)
    segment_max_age_ms: int = _setting("ms", 3_600_000, "seal a segment at this age", low=100, high=NO_LIMIT)
    map_cache_bytes: int = _setting(
        "size", 16 * MIB, "indexes of sealed segments a delivery shard keeps for reading", low=0, high=NO_LIMIT
    )
    cold_dir: str = _setting(
        "file", "", "directory on a larger, slower disk for the data of old segments; empty: they stay in data_dir"
    )
    hot_retain_segments: int = _live(
        "count", 4, "so many sealed segments of a topic stay as they are; 0: any number", low=0, high=NO_LIMIT
    )
    hot_retain_bytes: int = _live(
        "size",
        0,
        "so many bytes of them; 0: any number; the stricter of the two counts, and older ones go to cold_dir, "
        "are compressed, or both",
        low=0,
        high=NO_LIMIT,
    )
    compress: str = _live("choice", "none", "how older segments are compressed", choices=("none", "zstd"))
    compress_level: int = _live("count", 3, "level of zstd", low=1, high=19)
    cold_rate_bytes: int = _live(
        "size",
        64 * MIB,
        "how much of a delivery shard's segments is moved in a second; less under pressure; 0: no limit",
        low=0,
        high=NO_LIMIT,
    )
    cold_cache_bytes: int = _setting(
        "size",
        32 * MIB,
        "data of compressed and cold segments a delivery shard keeps for reading",
        low=4 * MIB,
        high=NO_LIMIT,
    )
    allowed_uids: str = _live(
        "uids", "", "users that may connect, comma-separated; empty: the daemon's own user and root"
    )
    socket_mode: str = _setting("mode", "0660", "permission bits of the sockets, octal")
    listen_tcp: str = _setting(
        "address",
        "",
        "host:port for clients on other machines; delivery shard i listens on port + i; empty: none",
    )
    tls_cert: str = _setting("file", "", "certificate chain for listen_tcp and http_tls, PEM")
    tls_key: str = _setting("file", "", "its private key, PEM")
    tokens_file: str = _live("file", "", "tokens for listen_tcp and HTTP, made by `topicctl token create`")
    metrics_port: int = _setting(
        "count", 0, "port on 127.0.0.1 for Prometheus, beside the socket metrics.sock; 0: none", low=0, high=65_535
    )
    http: bool = _setting("flag", False, "serve HTTP, by a process of its own")
    http_listen: str = _setting(
        "listen",
        "127.0.0.1:4000",
        "host:port for HTTP, beside the socket http.sock; port 0: any, told in the file http.port; empty: none",
    )
    http_tls: bool = _setting("flag", False, "HTTP over TLS on the port, with tls_cert and tls_key")
    http_open: bool = _setting("flag", False, "serve HTTP beyond this machine also without tokens_file")
    http_health_needs_key: bool = _setting("flag", False, "health and readiness over HTTP need a token, too")
    dashboard_guests: str = _live(
        "choice",
        "figures",
        "what the dashboard shows to somebody without a token, where tokens exist: nothing, rates and processes, or "
        "topics and records, too",
        choices=("none", "figures", "read"),
    )
    http_origins: str = _setting("text", "", "origins whose web pages may use HTTP, comma-separated; empty: none")
    max_inflight_per_key: int = _live(
        "count", 1_000, "HTTP requests under way per token; 0: no limit", low=0, high=NO_LIMIT
    )
    max_watch_sessions: int = _live("count", 10_000, "watch sessions over HTTP; 0: no limit", low=0, high=NO_LIMIT)
    max_sse_connections: int = _live(
        "count", 10_000, "open streams over HTTP, WebSockets included; 0: no limit", low=0, high=NO_LIMIT
    )
    max_sse_connections_per_key: int = _live(
        "count", 1_000, "open streams over HTTP per token; 0: no limit", low=0, high=NO_LIMIT
    )
    chat: bool = _setting("flag", False, "keep a chat store, by a process of its own; needs the extra `chat`")
    chat_listen: str = _setting(
        "address", "", "host:port of the chat store for clients and stores on other machines; empty: none"
    )
    chat_durability: str = _setting(
        "choice", "fsync", "class of the chat store's log: what an answer means", choices=("disk", "fsync")
    )
    chat_cache_bytes: int = _setting(
        "size", 128 * MIB, "blocks of the chat store kept in memory", low=MIB, high=NO_LIMIT
    )
    chat_memtable_bytes: int = _setting(
        "size",
        64 * MIB,
        "what the chat store holds in memory before it is flushed; after a kill so much is applied again",
        low=MIB,
        high=NO_LIMIT,
    )
    chat_threads: int = _setting("count", 2, "threads of the chat store's engine", low=1, high=256)
    chat_log_bytes: int = _live(
        "size",
        0,
        "of the chat store's log; beyond that its beginning becomes a base; 0: all of it",
        low=0,
        high=NO_LIMIT,
    )
    chat_retention_ms: int = _live("ms", 0, "messages older than this go by themselves; 0: none", low=0, high=NO_LIMIT)
    chat_skew_ms: int = _setting("ms", 0, "let tests set the chat clock wrong", low=0, high=NO_LIMIT, hidden=True)
    max_topics: int = _live("count", 100_000, "topics in all; 0: no limit", low=0, high=NO_LIMIT)
    max_routers: int = _live("count", 10_000, "routers in all; 0: no limit", low=0, high=NO_LIMIT)
    max_connections: int = _live(
        "count",
        10_000,
        "connections per delivery shard, of this machine and over TCP so many each",
        low=1,
        high=1_000_000,
    )
    max_unauthenticated: int = _live(
        "count",
        256,
        "connections over TCP per delivery shard that have not shown a valid token; half of them from one address",
        low=1,
        high=1_000_000,
    )
    max_inflight_bytes: int = _live(
        "size",
        64 * MIB,
        "unacknowledged bytes per delivery shard before clients are throttled",
        low=MIB,
        high=NO_LIMIT,
    )
    flood_leave: int = _live(
        "count",
        3,
        "times as long as a piece of a flood takes, who writes much pauses while others ask for little; 0: not at all",
        low=0,
        high=100,
    )
    max_inflight_per_connection: int = _live("count", 1000, "unanswered requests per connection", low=1, high=1_000_000)
    max_total_bytes: int = _live("size", 0, "stored bytes in all; 0: as much as the disk holds", low=0, high=NO_LIMIT)
    outbox_bytes: int = _setting(
        "size", 4 * MIB, "bytes waiting for a slow reader before it is lagged", low=64 * KIB, high=NO_LIMIT
    )
    channel_auth: bool = _setting(
        "flag",
        True,
        "users of channels are known by their uid or their token; false: whoever says a name is that user, "
        "and no channel outlives the daemon",
    )
    max_channels_per_user: int = _live(
        "count", 1_000, "channels that one user may be a member of; 0: no limit", low=0, high=NO_LIMIT
    )
    pin_shards: bool = _setting(
        "flag",
        False,
        "each shard stays on one of the cores that topicd may use, in turn; no gain on two cores",
    )
    stop_timeout_s: float = _setting(
        "seconds", 10.0, "time for a clean stop before processes are killed", low=0.5, high=3600
    )
    heartbeat_timeout_s: float = _setting(
        "seconds", 5.0, "a process silent for so long is killed and started anew", low=0.5, high=3600
    )
    log_level: str = _live(
        "choice", "info", "least severe message that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting("choice", "text", "how log lines look", choices=("text", "json"))
    test_clock: bool = _setting("flag", False, "let tests set the clock", hidden=True)

    def __init__(self, **given: Any) -> None:
        if unknown := given.keys() - FIELDS.keys():
            raise TypeError(f"no such settings: {', '.join(sorted(unknown))}")
        vars(self).update({name: f.default for name, f in FIELDS.items()} | given)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"settings do not change, {name} neither")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def replace(self, **changes: Any) -> Settings:
        return Settings(**{**vars(self), **changes})

    def resolved(self) -> Settings:
        """Automatic values filled in, directories absolute, fields checked against each other."""
        cpus = len(os.sched_getaffinity(0))
        done = self.replace(
            data_dir=self.data_dir.absolute(),
            run_dir=self.run_dir.absolute(),
            cold_dir=str(Path(self.cold_dir).absolute()) if self.cold_dir else "",
            wal_shards=self.wal_shards or min(cpus, AUTO_WAL_SHARDS_MAX),
            delivery_shards=self.delivery_shards or min(cpus, MAX_DELIVERY_SHARDS),
        )
        done._check_together()
        return done

    def _check_together(self) -> None:
        if self.wal_file_bytes < 2 * self.ring_bytes:
            raise ConfigError(
                f"wal_file_bytes ({values.format_size(self.wal_file_bytes)}) must be at least twice "
                f"ring_bytes ({values.format_size(self.ring_bytes)})"
            )
        if self.listen_tcp and not self.tokens_file:
            raise ConfigError("listen_tcp needs tokens_file: nobody is let in without a token")
        if self.listen_tcp and not (self.tls_cert and self.tls_key) and not self._is_loopback():
            raise ConfigError(
                f"listen_tcp {self.listen_tcp} is not a loopback address: tls_cert and tls_key are needed"
            )
        if self.http and self.http_listen:
            self.check_http_place(self.http_host_port[0], f"http_listen {self.http_listen}")
        if self.chat_listen and not self.chat:
            raise ConfigError("chat_listen needs chat = true: there is no chat store to reach")
        if self.chat_listen and not self.tokens_file:
            raise ConfigError("chat_listen needs tokens_file: nobody is let in without a token")
        if self.chat_listen and not self.tls_cert and not loops_back(self.chat_host_port[0]):
            raise ConfigError(
                f"chat_listen {self.chat_listen} is not a loopback address: tls_cert and tls_key are needed"
            )
        if self.chat and not _chat_can_run():
            raise ConfigError("chat needs the packages of the extra `chat`: pip install 'topicd[chat]'")
        if self.http and self.http_tls and not (self.tls_cert and self.tls_key):
            raise ConfigError("http_tls needs tls_cert and tls_key")
        if self.dashboard_guests != "figures" and not (self.http and self.tokens_file):
            raise ConfigError("dashboard_guests needs http and tokens_file: without tokens everybody may do everything")
        if self.cold_dir and Path(self.cold_dir).is_relative_to(self.data_dir):
            raise ConfigError(f"cold_dir {self.cold_dir} must be another directory than data_dir, and not inside it")
        if self.data_dir == self.run_dir:
            raise ConfigError(f"data_dir and run_dir must differ, both are {self.data_dir}")

    @property
    def tcp_host_port(self) -> tuple[str, int]:
        host, _, port = self.listen_tcp.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def chat_host_port(self) -> tuple[str, int]:
        host, _, port = self.chat_listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def http_host_port(self) -> tuple[str, int]:
        host, _, port = self.http_listen.rpartition(":")
        return host.strip("[]"), int(port)

    def check_http_place(self, host: str, what: str) -> None:
        """ConfigError where HTTP would be open to everybody on the network."""
        if not (self.tokens_file or self.http_open or loops_back(host)):
            raise ConfigError(f"{what} is not a loopback address: tokens_file is needed, or http_open")

    def _is_loopback(self) -> bool:
        return loops_back(self.tcp_host_port[0])

    @property
    def uids(self) -> frozenset[int]:
        """Users that may connect."""
        given = frozenset(int(uid) for uid in self.allowed_uids.split(",") if uid)
        return given or frozenset({os.geteuid(), 0})

    @property
    def mode(self) -> int:
        return int(self.socket_mode, 8)

    def to_wire(self) -> dict[str, Any]:
        """Plain values, for messages and JSON."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}

    @classmethod
    def from_wire(cls, given: Mapping[str, Any]) -> Settings:
        return cls(**parse_all(given, "message"))


def loops_back(host: str) -> bool:
    """Is it reached from this machine only?"""
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _chat_can_run() -> bool:
    from importlib.util import find_spec

    return find_spec("rocksdict") is not None and find_spec("blake3") is not None


FIELDS: dict[str, Field] = {name: f for name, f in vars(Settings).items() if isinstance(f, Field)}
RELOADABLE = frozenset(name for name, f in FIELDS.items() if f.metadata.get("reloadable"))


class Loaded(NamedTuple):
    settings: Settings  # resolved
    sources: dict[str, str]  # setting -> "flag", "environment", path of the file, or "default"
    file: Path | None


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    system_file: Path = SYSTEM_FILE,
) -> Loaded:
    """Settings from every source. A file that was named must exist; the system's file need not."""
    environ = os.environ if environ is None else environ
    path = file or (Path(environ[CONFIG_ENV]) if environ.get(CONFIG_ENV) else None)
    if path is None and system_file.is_file():
        path = system_file
    merged: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, "default")
    for source, given in (
        (str(path), read_file(path) if path else {}),
        ("environment", _from_environment(environ)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ):
        parsed = parse_all(given, source)
        merged |= parsed
        sources |= dict.fromkeys(parsed, source)
    return Loaded(Settings(**merged).resolved(), sources, path)


def read_file(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not valid TOML: {exc}") from None


def parse_all(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    parsed = {}
    for name, value in given.items():
        if name not in FIELDS:
            near = _nearest(str(name), 0.6)
            hint = f"did you mean {near}?" if near else "`topicd config show` lists all"
            raise ConfigError(f"unknown setting {name!r:.100} ({source}); {hint}")
        try:
            parsed[name] = values.parse(value, FIELDS[name].metadata)
        except ValueError as exc:
            raise ConfigError(f"{name} ({source}): {exc}, not {value!r:.100}") from None
    return parsed


def env_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key, value in environ.items():
        if not key.startswith(ENV_PREFIX):
            continue
        name = key.removeprefix(ENV_PREFIX).lower()
        if name in FIELDS:
            found[name] = value
        elif near := _nearest(name, 0.85):
            # Other programs may have TOPICD_ variables; only a likely slip of the pen is an error.
            raise ConfigError(f"unknown environment variable {key}; did you mean {env_name(near)}?")
    return found


def _nearest(name: str, likeness: float) -> str | None:
    # Every process loads this module; hardly any makes a mistake.
    import difflib

    return next(iter(difflib.get_close_matches(name, FIELDS, n=1, cutoff=likeness)), None)


def format_value(name: str, value: Any) -> str:
    return values.format(value, FIELDS[name].metadata)


def render_settings_markdown() -> str:
    """docs/settings.md."""
    lines = [
        _DOCS_HEAD,
        "| setting | default | unit | allowed | reload | what it is |",
        "|---|---|---|---|---|---|",
    ]
    for name, f in FIELDS.items():
        rule = f.metadata
        if rule.get("hidden"):
            continue
        default = f"0: {rule['auto']}" if "auto" in rule else format_value(name, f.default) or "empty"
        unit, allowed = values.UNIT_TEXT.get(rule["kind"], ""), values.range_text(rule)
        reload = "yes" if name in RELOADABLE else ""
        lines.append(f"| `{name}` | {default} | {unit} | {allowed} | {reload} | {rule['help']} |")
    return "\n".join(lines) + "\n"


_DOCS_HEAD = f"""# Settings

Generated from `topicd/config.py` by `make docs`.

Each setting `some_name` can be given as flag `--some-name`, as environment variable
`{ENV_PREFIX}SOME_NAME` and as key `some_name` in a TOML file. Flags win over the environment, the
environment over the file, the file over the default. The file is the one named by `--config`, else by
`{CONFIG_ENV}`, else `{SYSTEM_FILE}` if it exists.

Sizes are bytes or text like `64MiB`, `512K`, `1.5GiB` (powers of 1024). `topicd config show` prints
every value and where it came from; `topicd config check` only says whether they can be used. Settings
marked *reload* change on SIGHUP (`systemctl reload topicd`); the others need a restart.
"""
