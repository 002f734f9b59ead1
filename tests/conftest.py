"""What all tests share: how hypothesis searches, and a check that a test leaves nothing running."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from grpc import aio
from hypothesis import HealthCheck, settings

import bookie.wire.grpc  # noqa: F401  (it has gRPC loaded in the way it chooses, before a test loads it)
from bookie.config import with_free_poller
from tests.servers.running import PIDS

# Without bytecode on disk, each of hundreds of processes would compile the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# NumPy's linear algebra starts a thread for each core, which spins for 0.1 s. Nothing uses it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = [
    # Fixtures of real servers; a server starts when the first test asks for it.
    "tests.servers.etcd",
    "tests.servers.zookeeper",
    # Who runs what, and what is printed at the end.
    "tests.sharing",
    "tests.costs",
    "tests.crashes",
    "tests.gate",
    "tests.conformance.summary",
    "tests.sim.summary",
]

# The default run is the same every time and fast; `soak` looks for what it has not seen yet.
settings.register_profile("default", max_examples=60, deadline=None, derandomize=True)
settings.register_profile(
    "soak", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")

# A shell that starts something in the background has it ignore Ctrl-C, and `nohup` the end of the
# terminal. So would every process that a test starts, and then interrupts or hangs up.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def is_soak(pytestconfig: pytest.Config) -> bool:
    """Whether tests take their long counts: ``--hypothesis-profile=soak``."""
    return bool(pytestconfig.getoption("hypothesis_profile", None) == "soak")


TESTS = Path(__file__).parent
QUICK = (TESTS / "unit", TESTS / "property")
"""Where each test takes a few seconds at most."""


CORE = (*QUICK, TESTS / "conformance")
"""What `make test-core` runs of, but for the long models and for what needs Java."""


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests come last, so that the workers end together. The order is random otherwise."""
    for item in items:
        if is_core(item):
            item.add_marker("core")
    items.sort(key=lambda item: any(part in QUICK for part in item.path.parents))


def is_core(item: pytest.Item) -> bool:
    """True for tests that need neither Java nor Spark, and take a few seconds at most."""
    if item.get_closest_marker("model") or not any(part in CORE for part in item.path.parents):
        return False
    return "zk" not in re.split(r"\W+", item.name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The collector stays off meanwhile: a quarter of the time when nothing is compiled yet."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """The collector no longer looks at what was imported, which lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _grpc_stays_open() -> None:
    """gRPC begins once and ends with the process, as in a bookie.

    Otherwise, gRPC would end after a test and begin again in the next, thousands of times in a run.
    It ends in threads of its own, and the garbage collector may begin this in any thread. Perhaps
    this caused crashes in native code, in about one run of thirty. The price: gRPC keeps the event
    loop of each test, with about 3 KB.
    """

    async def hold() -> None:
        with_free_poller(aio.init_grpc_aio)

    asyncio.run(hold())


THREAD_END_SECONDS_MAX = 5.0
"""A thread that was told to end has ended by then, even on a busy machine."""


@pytest.fixture(autouse=True)
def _leaves_nothing_running() -> Iterator[None]:
    """Fail a test that leaves a thread or a child process behind.

    Daemon threads are not counted: libraries keep some for the life of the process. Neither are
    servers that a fixture keeps for the whole run.
    """
    threads, children = set(threading.enumerate()), _children()
    yield
    for thread in set(threading.enumerate()) - threads:
        if not thread.daemon:
            thread.join(THREAD_END_SECONDS_MAX)
            assert not thread.is_alive(), f"the test left the thread {thread.name} running"
    left = [f"{pid} {_command(pid)}" for pid in _children() - children - PIDS]
    left = [line for line in left if "multiprocessing.resource_tracker" not in line]
    assert not left, f"the test left child processes: {left}"


def _children() -> set[int]:
    """The process ids of this process's children, zombies included."""
    found: set[int] = set()
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            found.update(map(int, path.read_text(encoding="ascii").split()))
        except OSError:
            continue  # the thread ended meanwhile
    return found


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "(ended)"
    return raw.replace(b"\0", b" ").decode(errors="replace").strip() or "(zombie)"
