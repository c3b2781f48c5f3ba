"""What a system under test offers to the drivers: a server, addresses that cross processes, sessions."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeVar

from topicd.bench.load import Figures, Load
from topicd.bench.work import batches, payloads

T = TypeVar("T")

START_TIMEOUT = 60.0
LOAD_BATCH = 1000

# Position behind a record in the peer's own terms (a seq, a stream id); None is the start.
Cursor = Any
# Called with each payload; False ends the subscription.
Handler = Callable[[bytes], bool]


class Session(Protocol):
    """One blocking connection, used as the peer's documentation advises."""

    def append(self, topic: str, data: bytes) -> object: ...

    def append_many(self, topic: str, batch: list[bytes]) -> Cursor:
        """Append a list in the peer's fastest way; the cursor behind its last record."""

    def fetch(self, topic: str, after: Cursor, limit: int) -> tuple[Sequence[bytes], Cursor]: ...

    def count(self, topic: str) -> int:
        """Records stored in the topic."""

    def tail(self, topic: str, ready: Callable[[], None], handler: Handler) -> None:
        """Hand every record that comes after `ready` to the handler until it says False."""

    def close(self) -> None: ...


class Address(Protocol):
    """Where a server is; picklable, so that a worker process can connect by itself."""

    def session(self) -> Session: ...

    async def fan(self, topic: str, subscribers: int, ready: Callable[[], None], handler: Handler) -> None:
        """`subscribers` independent tails in one process; each ends when its handler call says False."""


class Driver(Protocol):
    """The same signature for every peer and test, so that rounds can be interleaved."""

    def __call__(self, peer: Any, load: Load, /) -> Figures: ...


class Peer(ABC):
    """A system under test. Construct, open, measure, close; `root` is wiped at close."""

    name: ClassVar[str]
    # It is one server process or more, not a library inside the client: it can be killed, weighed and traced.
    is_server: ClassVar[bool] = True
    # It takes single records; otherwise it is there for comparison in cases of its own.
    has_sessions: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._siblings: dict[str, Peer] = {}
        self._datasets: dict[tuple[int, int], str] = {}
        self._kept: dict[str, Any] = {}
        self._topics = 0

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Why it cannot run on this machine, or None."""

    @abstractmethod
    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        """Variants of a test by name; empty when the test does not apply."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Version and settings, for the report."""

    @abstractmethod
    def address(self, durable: bool) -> Address: ...

    def start(self) -> None:  # noqa: B027 nothing to do for a library
        """Start the server on whatever lies in `root`; serving on return."""

    def stop(self) -> None:  # noqa: B027 nothing to do for a library
        """Stop it in an orderly way; may be called twice."""

    def kill9(self) -> None:  # noqa: B027 nothing to do for a library
        """SIGKILL every process of the server."""

    def pids(self) -> list[int]:
        return []

    def sync_pids(self) -> list[int]:
        """The processes that sync durable appends."""
        return self.pids()

    def make_topics(self, names: Sequence[str], durable: bool) -> None:  # noqa: B027 nothing to do for a library
        """Create topics, where the peer wants that done before the first append."""

    def drop_topics(self, names: Sequence[str]) -> None:  # noqa: B027 nothing to do for a library
        """Remove topics with their records."""

    def open(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.start()

    def close(self) -> None:
        for name in list(self._siblings):
            self.close_sibling(name)
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def end_case(self) -> None:
        """A test is over: servers started for it alone go."""
        for name in list(self._siblings):
            self.close_sibling(name)

    def __enter__(self) -> Peer:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def connect(self, durable: bool) -> Iterator[Session]:
        session = self.address(durable).session()
        try:
            yield session
        finally:
            session.close()

    @contextlib.contextmanager
    def topics(self, count: int, durable: bool) -> Iterator[list[str]]:
        """New topics for one call of a driver, gone afterwards; before the dot their names are the same."""
        self._topics += 1
        names = [f"b{self._topics}.{i}" for i in range(count)]
        self.make_topics(names, durable)
        try:
            yield names
        finally:
            self.drop_topics(names)

    def dataset(self, size: int, count: int) -> str:
        """A topic with `count` records, loaded on first use and kept until close."""
        name = f"data-{size}-{count}.0"
        if (size, count) not in self._datasets:
            self.make_topics([name], False)
            with self.connect(False) as session:
                for batch in batches(payloads(size), LOAD_BATCH, count):
                    session.append_many(name, batch)
                stored = session.count(name)
            if stored != count:
                raise RuntimeError(f"{self.name} stored {stored} of {count} records")
            self._datasets[size, count] = name
        return name

    def has_dataset(self, size: int, count: int) -> bool:
        return (size, count) in self._datasets

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Whatever a driver prepared in its first round."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found

    def sibling(self, name: str, kind: type[Peer] | None = None) -> Peer:
        """A second server, of the same kind or another, started on first use, closed with this one."""
        if name not in self._siblings:
            fresh = (kind or type(self))(self.root.with_name(f"{self.root.name}-{name}"))
            fresh.open()
            self._siblings[name] = fresh
        return self._siblings[name]

    def close_sibling(self, name: str) -> None:
        if sibling := self._siblings.pop(name, None):
            sibling.close()


def until_up(probe: Callable[[], object], what: str, alive: Callable[[], bool], pause: float = 0.005) -> None:
    """Call a probe until it raises no more."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            probe()
        except Exception as error:
            if not alive():
                raise RuntimeError(f"{what} ended while it started; see its log") from error
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} does not serve after {START_TIMEOUT:.0f} s") from error
            time.sleep(pause)
        else:
            return


def socket_dir() -> Path:
    """A short path: a Unix socket address holds 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="tb-", dir="/tmp"))
