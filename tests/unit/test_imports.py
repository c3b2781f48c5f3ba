"""Who may import whom. Processes meet only through ipc; the client knows nothing of rings and shards."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
# topicd/{ipc,shards,cli} are links to these.
FOLDERS = {"topicd": "topicd", "ipc": "topicd.ipc", "shards": "topicd.shards", "cli": "topicd.cli"}
LINKS = ("topicd/ipc/", "topicd/shards/", "topicd/cli/")

VOCABULARY = (
    "topicd._native",
    "topicd.channel",
    "topicd.clock",
    "topicd.compiled",
    "topicd.config",
    "topicd.errors",
    "topicd.frames",
    "topicd.identity",
    "topicd.limits",
    "topicd.lists",
    "topicd.metrics",
    "topicd.model",
    "topicd.paths",
    "topicd.patterns",
    "topicd.placement",
    "topicd.rights",
    "topicd.telemetry",
    "topicd.tokens",
    "topicd.topic_fields",
    "topicd.values",
    "topicd.words",
)
DISK = ("topicd.disk",)
IPC = ("topicd.ipc",)
WIRE = ("topicd.ipc.protocol",)
STORAGE = ("topicd.shards.storage",)
# Longest prefix wins. A module may always import its own package, and the version from topicd itself.
RULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(VOCABULARY, VOCABULARY),
    "topicd._native": ("topicd.limits",),
    "topicd.ipc": VOCABULARY,
    "topicd.ipc.protocol": VOCABULARY,
    "topicd.disk": VOCABULARY,
    "topicd.shards.storage": (*DISK, *VOCABULARY),
    "topicd.child": (*IPC, *VOCABULARY),
    "topicd.shards.process": ("topicd.child", *IPC, *DISK, *VOCABULARY),
    "topicd.shards.wal": ("topicd.child", "topicd.shards.process", *STORAGE, *DISK, *IPC, *VOCABULARY),
    "topicd.shards.delivery": ("topicd.child", "topicd.shards.process", *STORAGE, *DISK, *IPC, *VOCABULARY),
    # Loads the shards by name, and becomes one of them.
    "topicd.shards.template": IPC,
    # A view of a topic that it writes and reads as any asyncio client; it comes to other stores as one, too.
    "topicd.shards.chat": (
        "topicd.child",
        "topicd.client.aio",
        "topicd.client.core",
        *DISK,
        *IPC,
        *VOCABULARY,
    ),
    "topicd.filechannel": (*DISK, *VOCABULARY),
    # Files of a data directory, whoever uses it meanwhile.
    "topicd.backup": (*STORAGE, *DISK, *VOCABULARY),
    "topicd.supervisor": (*IPC, *DISK, *VOCABULARY),
    # A client of the shards, and a child of the supervisor.
    "topicd.gateway": ("topicd.child", "topicd.client", *IPC, *VOCABULARY),
    "topicd.client": (*WIRE, *VOCABULARY),
    # Both faces stand on the core; the asyncio one lets threads do what blocks.
    "topicd.client.core": (*WIRE, *VOCABULARY),
    "topicd.client.blocking": (
        "topicd.client.core",
        "topicd.client.staging",
        "topicd.client.spool",
        *WIRE,
        *VOCABULARY,
    ),
    "topicd.client.staging": ("topicd.client.core", "topicd.client.blocking", *WIRE, *VOCABULARY),
    # A spool is a file channel.
    "topicd.client.spool": ("topicd.client.core", "topicd.client.blocking", "topicd.filechannel", *WIRE, *VOCABULARY),
    "topicd.client.aio": ("topicd.client", *WIRE, *VOCABULARY),
    # Functions as jobs, on the blocking face.
    "topicd.client.worker": ("topicd.client.core", "topicd.client.blocking", *VOCABULARY),
    "topicd.aio": ("topicd.client", *VOCABULARY),
    # Other libraries' brokers and the like, each a client.
    "topicd.integrations": ("topicd.aio", "topicd.client", *VOCABULARY),
    "topicd.bench": ("topicd.client", "topicd.aio", *VOCABULARY),
    "topicd.spark": ("topicd.client", *VOCABULARY),
    # Jobs over topics as a client; their archives are made durable by disk, fsck is the offline check on executors, and
    # what spark-submit starts is the command line. A chat log is applied by the code of the store itself.
    "topicd.spark.pipelines": (
        *("topicd.client", "topicd.spark", "topicd.cli", "topicd.shards.chat"),
        *(*STORAGE, *DISK, *VOCABULARY),
    ),
    "topicd.cli": ("topicd.client", *VOCABULARY),
    "topicd.cli.show": ("topicd.client", *VOCABULARY),
    # Questions to a daemon, or jobs for it.
    "topicd.cli.verbs": (
        "topicd.cli",
        "topicd.client",
        "topicd.bench",
        "topicd.spark",
        "topicd.filechannel",
        *VOCABULARY,
    ),
    # Work on files: a data directory that no daemon uses, the file of tokens, file channels.
    "topicd.cli.offline": ("topicd.cli", "topicd.filechannel", *STORAGE, *DISK, *VOCABULARY),
    # Files of a data directory, held by its daemon meanwhile.
    "topicd.cli.backups": (
        *("topicd.cli", "topicd.client", "topicd.backup", "topicd.ipc.protocol"),
        *(*STORAGE, *DISK, *VOCABULARY),
    ),
    "topicd.__main__": ("topicd.supervisor.main",),
    "topicd": ("topicd.client", "topicd.aio", *VOCABULARY),
}
# The front doors: what is inside the package is not theirs to import.
ALONE = {"topicd.__main__", "topicd"}


class Import(NamedTuple):
    line: int
    module: str


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if folder == "topicd" and place.startswith(LINKS):
                continue
            dotted = ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts])
            found[dotted.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(source: str, known: dict[str, Path]) -> list[Import]:
    """Every module of ours that is imported anywhere in the source, also for type checking and inside functions."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.append(Import(node.lineno, whole if whole in known else base))
    return [entry for entry in found if entry.module.split(".")[0] == "topicd"]


def rule_for(module: str) -> str:
    return max((rule for rule in RULES if _inside(module, rule)), key=len)


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def violations(module: str, source: str) -> list[str]:
    rule = rule_for(module)
    allowed = RULES[rule] if rule in ALONE else (*RULES[rule], rule)
    return [
        f"{module}:{entry.line} imports {entry.module}"
        for entry in imports(source, MODULES)
        if entry.module != "topicd" and not any(_inside(entry.module, package) for package in allowed)
    ]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_place_allows(module: str) -> None:
    assert violations(module, MODULES[module].read_text()) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also for types only: modules in a circle cannot be read, compiled or tested one by one."""
    edges = {
        module: {entry.module for entry in imports(path.read_text(), MODULES) if entry.module in MODULES} - {module}
        for module, path in MODULES.items()
    }
    while leaves := {module for module, wanted in edges.items() if not wanted & edges.keys()}:
        for module in leaves:
            del edges[module]
    circle = {module: sorted(wanted & edges.keys()) for module, wanted in edges.items()}
    assert circle == {}


def test_every_module_is_found() -> None:
    for name in (
        "topicd",
        "topicd.ipc.ring",
        "topicd.shards.delivery.turn",
        "topicd.cli.main",
        "topicd.client.blocking.client",
    ):
        assert name in MODULES
    assert not any(".ipc." in name and not name.startswith("topicd.ipc.") for name in MODULES)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("topicd.client.blocking.client", "from topicd.ipc.ring import RingProducer"),
        ("topicd.client.blocking.client", "from topicd.disk import fs"),
        ("topicd.client.core.requests", "from topicd.client.blocking.caller import Caller"),
        ("topicd.client.blocking.watch", "from topicd.client.aio.watch import AsyncWatch"),
        ("topicd.ipc.protocol.outbox", "from topicd.client.core.records import Record"),
        ("topicd.shards.delivery.turn", "from topicd.shards.wal.log import WalLog"),
        ("topicd.shards.delivery.turn", "import topicd.supervisor.loop"),
        ("topicd.shards.wal.shard", "def f():\n    from topicd.shards.delivery import turn"),
        ("topicd.disk.fs", "from topicd.ipc import shm"),
        ("topicd.filechannel.writer", "from topicd.client.client import Client"),
        ("topicd.filechannel.writer", "from topicd.shards.storage.walfile import GROUP"),
        ("topicd.supervisor.loop", "from topicd.shards.storage.walfile import GROUP"),
        ("topicd.supervisor.loop", "from topicd.shards.process.runtime import Shard"),
        ("topicd.child", "from topicd.disk.fs import RealFs"),
        ("topicd.child", "from topicd.shards.process.runtime import Shard"),
        ("topicd.cli.verbs.read", "from topicd.disk.fs import RealFs"),
        ("topicd.cli.verbs.read", "from topicd.ipc.ring import Ring"),
        ("topicd.cli.verbs.read", "from topicd.shards.storage.segment.reader import SegmentReader"),
        ("topicd.cli.show.rates", "from topicd.cli.verbs.status import status"),
        ("topicd.cli.offline.fsck", "from topicd.supervisor.loop import Supervisor"),
        ("topicd.cli.app", "from topicd.disk.fs import RealFs"),
        ("topicd.ipc.protocol.wire", "from topicd.ipc import ring"),
        ("topicd.errors", "from topicd.ipc.protocol.wire import Op"),
        ("topicd.spark.source", "from topicd.shards.storage.segment.reader import SegmentReader"),
    ],
)
def test_a_forbidden_import_is_found(module: str, line: str) -> None:
    assert len(violations(module, line)) == 1


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("topicd.shards.delivery.shard", ["topicd.shards.wal", "topicd.supervisor", "topicd.client", "topicd.cli"]),
        (
            "topicd.shards.wal.shard",
            ["topicd.shards.delivery", "topicd.supervisor", "topicd.client", "uvloop", "asyncio"],
        ),
        ("topicd.child", ["topicd.shards", "topicd.disk", "topicd.supervisor", "asyncio"]),
        ("topicd.supervisor.main", ["topicd.shards.wal", "topicd.shards.delivery", "topicd.client", "uvloop"]),
        ("topicd.supervisor.loop", ["topicd.shards.wal", "topicd.shards.delivery", "topicd.client", "uvloop"]),
        (
            "topicd.client.blocking.client",
            ["topicd.ipc.ring", "topicd.ipc.shm", "topicd.shards", "posix_ipc", "uvloop"],
        ),
        ("topicd", ["topicd.client", "topicd.ipc", "topicd.shards", "msgpack", "asyncio"]),
    ],
)
def test_a_process_loads_nothing_of_another(module: str, never: list[str]) -> None:
    loaded = loaded_by(module)
    assert [name for name in loaded if any(_inside(name, package) for package in never)] == []


# What a start does not need, by what it cost; the standard library's asyncio has more of them, and delivery shards pay.
COSTLY = ["click", "ctypes", "difflib", "hashlib", "psutil", "random", "secrets", "tomllib", "topicd.metrics"]


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("topicd.shards.delivery.shard", [*COSTLY, "json"]),
        ("topicd.shards.wal.shard", [*COSTLY, "dataclasses", "inspect", "json", "subprocess", "ssl"]),
        ("topicd.supervisor.main, topicd.supervisor.loop", [*COSTLY, "dataclasses", "inspect", "ssl"]),
    ],
)
def test_a_start_loads_nothing_that_can_wait(module: str, unneeded: list[str]) -> None:
    loaded = loaded_by(module)
    assert [name for name in loaded if any(_inside(name, package) for package in unneeded)] == []
