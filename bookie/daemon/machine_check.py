"""Check if this machine is fit to run a bookie; each fact has a verdict and advice.

Every check is a function that returns `Fact` values and changes nothing. The disk check writes an
unnamed file, which the kernel deletes when the check ends. The verdict ``warn`` means that a bookie
on this machine is slower or less safe. The verdict ``fail`` means that a bookie must not start.
"""

from __future__ import annotations

import ctypes
import enum
import os
import platform
import re
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from bookie.daemon.descriptors import DESCRIPTORS_MIN, limits

FDATASYNC_P99_SECONDS_GOOD = 0.010
"""The longest sync that counts as good. Group commit hides shorter syncs under load; a longer sync
delays each append."""

FREE_BYTES_MIN = 10 * 1024**3
"""The least free space that counts as good: enough for a few journal files, the index and a
compaction."""

FILES_MIN = 65536
"""The recommended limit of open files, for connections and files. Linux distributions often allow
only 1024 open files."""

PYTHON_MIN = (3, 11)

_ADJTIMEX_BYTES = 256
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")
_TIME_ERROR = 5
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "afs"}
)
_VOLATILE_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_LIBRARIES = (
    "grpcio",
    "protobuf",
    "lmdb",
    "numpy",
    "fastcrc",
    "uvloop",
    "pydantic",
    "aiohttp",
    "cryptography",
    "pyjwt",
    "prometheus-client",
)


class Severity(enum.StrEnum):
    """The verdict on a fact; only FAIL is a reason not to start a bookie."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Fact:
    """The result of one check: its name, verdict and finding; advice unless the verdict is OK."""

    name: str
    verdict: Severity
    found: str
    advice: str = ""
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


def check_machine(
    journal_dir: Path | None, ledgers_dir: Path | None, *, syncs: int = 200
) -> list[Fact]:
    """Run all checks, and return the facts in the order in which they are shown.

    Args:
        journal_dir: the directory of the journal; None skips its checks. If the directory does not
            exist, its nearest existing parent is checked.
        ledgers_dir: the directory of the index and the entry logs; None and a missing directory
            mean the same as for `journal_dir`.
        syncs: the number of writes of 4 KiB with a sync, for each directory.
    """
    checks = [check_python(sys.version_info[:3], optimized=not __debug__), check_libraries()]
    directories = [
        (name, nearest_existing(path))
        for name, path in (("journal", journal_dir), ("ledgers", ledgers_dir))
        if path is not None
    ]
    for name, path in directories:
        checks += check_directory(name, path, syncs=syncs)
    if len(directories) == 2:
        checks.append(check_devices(directories[0][1], directories[1][1]))
    # Check the hard limit, because a bookie raises its soft limit to the hard limit.
    checks.append(check_files_limit(limits()[1]))
    checks += [check_monotonic_clock(), check_clock_synchronised()]
    return checks


def check_python(version: tuple[int, ...], *, optimized: bool) -> Fact:
    """Check that Python is new enough, and runs without ``-O``, which removes assertions."""
    found = f"{platform.python_implementation()} {'.'.join(map(str, version))}"
    if version < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return Fact("python", Severity.FAIL, found, f"use Python {wanted} or newer")
    if optimized:
        return Fact("python", Severity.FAIL, f"{found} with -O", "start without -O")
    return Fact("python", Severity.OK, found)


def check_libraries(names: Sequence[str] = _LIBRARIES) -> Fact:
    """Check that the libraries `names` are installed, and report their versions."""
    versions: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = f"pip install {' '.join(missing)}"
        return Fact("libraries", Severity.FAIL, f"missing: {', '.join(missing)}", advice, versions)
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Fact("libraries", Severity.OK, found, numbers=versions)


def check_directory(name: str, path: Path, *, syncs: int) -> list[Fact]:
    """Check one directory: permission, file system, free space and the latency of a sync."""
    if not os.access(path, os.W_OK | os.X_OK):
        advice = f"give this user write permission on {path}"
        return [Fact(f"{name} directory", Severity.FAIL, f"{path} is not writable", advice)]
    checks = [_check_file_system(name, path), _check_free_space(name, path)]
    try:
        latencies = measure_syncs(path, syncs)
    except OSError as error:
        found = f"cannot write and sync in {path}: {error.strerror}"
        checks.append(Fact(f"{name} sync", Severity.FAIL, found, "use another file system"))
        return checks
    checks.append(evaluate_syncs(name, latencies))
    return checks


def _check_file_system(name: str, path: Path) -> Fact:
    kind, mount = file_system_of(path)
    found = f"{kind} at {mount}"
    numbers = {"type": kind, "mount": mount}
    label = f"{name} file system"
    if kind in _VOLATILE_FILE_SYSTEMS:
        return Fact(label, Severity.WARN, found, "its content is lost at a restart", numbers)
    if kind in _NETWORK_FILE_SYSTEMS:
        return Fact(label, Severity.WARN, found, "use a local disk: locks, syncs may fail", numbers)
    return Fact(label, Severity.OK, found, numbers=numbers)


def _check_free_space(name: str, path: Path) -> Fact:
    stat = os.statvfs(path)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    found = f"{free / 1024**3:.1f} GiB of {total / 1024**3:.1f} GiB"
    numbers = {"free_bytes": free, "total_bytes": total}
    if free < FREE_BYTES_MIN:
        advice = f"keep {FREE_BYTES_MIN / 1024**3:.0f} GiB free"
        return Fact(f"{name} free space", Severity.WARN, found, advice, numbers)
    return Fact(f"{name} free space", Severity.OK, found, numbers=numbers)


def measure_syncs(path: Path, count: int) -> list[float]:
    """Write 4 KiB to a preallocated temporary file and sync the file; repeat this `count` times.

    Returns:
        the duration of each fdatasync in seconds, in order.

    Raises:
        OSError: the file cannot be created, allocated, written or synced.
    """
    block = os.urandom(4096)
    latencies = []
    with tempfile.TemporaryFile(dir=path) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, len(block) * count)
        os.fsync(descriptor)
        for index in range(count):
            os.pwrite(descriptor, block, index * len(block))
            started = time.perf_counter()
            os.fdatasync(descriptor)
            latencies.append(time.perf_counter() - started)
    return latencies


def evaluate_syncs(name: str, latencies: Sequence[float]) -> Fact:
    """Judge the measured latency of syncs: warn if the 99th percentile is too slow."""
    ordered = sorted(latencies)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    found = f"fdatasync p50 {p50 * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs"
    numbers = {"p50_seconds": p50, "p99_seconds": p99, "count": len(ordered)}
    if p99 > FDATASYNC_P99_SECONDS_GOOD:
        advice = "put it on a faster device: appends wait for this"
        return Fact(f"{name} sync", Severity.WARN, found, advice, numbers)
    return Fact(f"{name} sync", Severity.OK, found, numbers=numbers)


def check_devices(journal_dir: Path, ledgers_dir: Path) -> Fact:
    """Warn if the journal and the ledgers share one device."""
    if journal_dir.stat().st_dev == ledgers_dir.stat().st_dev:
        advice = "for lower latency under load give the journal a device of its own"
        return Fact("devices", Severity.WARN, "journal and ledgers share one device", advice)
    return Fact("devices", Severity.OK, "journal and ledgers have a device each")


def check_files_limit(limit: int) -> Fact:
    """Check the limit of open files (RLIMIT_NOFILE)."""
    found = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    numbers = {"files_max": limit}
    if limit != resource.RLIM_INFINITY and limit < DESCRIPTORS_MIN:
        advice = f"a bookie needs {DESCRIPTORS_MIN} at least (LimitNOFILE= in systemd, ulimit -n)"
        return Fact("open files", Severity.FAIL, found, advice, numbers)
    if limit != resource.RLIM_INFINITY and limit < FILES_MIN:
        advice = f"raise it to {FILES_MIN} (LimitNOFILE= in systemd, ulimit -n in a shell)"
        return Fact("open files", Severity.WARN, found, advice, numbers)
    return Fact("open files", Severity.OK, found, numbers=numbers)


def check_monotonic_clock(samples: int = 10_000) -> Fact:
    """Read the monotonic clock, used for leases, `samples` times; fail if the time goes back."""
    previous = time.monotonic()
    for _ in range(samples):
        now = time.monotonic()
        if now < previous:
            found = f"went back by {(previous - now) * 1e6:.0f} µs"
            return Fact("monotonic clock", Severity.FAIL, found, "fix the machine's clock source")
        previous = now
    return Fact("monotonic clock", Severity.OK, "never went back")


def check_clock_synchronised() -> Fact:
    """Warn if the kernel's wall clock is not synchronised, or if its state is unknown."""
    library = ctypes.CDLL(None, use_errno=True)
    # struct timex begins with `modes`. If `modes` is zero, adjtimex only reads, which needs no
    # privilege.
    state = int(library.adjtimex(ctypes.create_string_buffer(_ADJTIMEX_BYTES)))
    if state == _TIME_ERROR:
        advice = "run chrony or systemd-timesyncd: log times will drift apart between machines"
        return Fact("clock", Severity.WARN, "not synchronised", advice)
    if state < 0:
        advice = "the kernel did not say whether its clock is synchronised"
        return Fact("clock", Severity.WARN, "unknown", advice)
    return Fact("clock", Severity.OK, "synchronised")


def nearest_existing(path: Path) -> Path:
    """Return `path` if it exists, otherwise its nearest existing parent."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def file_system_of(path: Path, mounts: bytes | None = None) -> tuple[str, str]:
    """Return the type and the mount point of the file system that holds `path`.

    Args:
        path: an existing path.
        mounts: the content of ``/proc/self/mountinfo``; None reads this file. The kernel escapes
            white space in paths, because white space separates fields and lines.
    """
    if mounts is None:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    resolved = path.resolve()
    best = ("unknown", "/")
    best_parts = 0
    for line in filter(None, mounts.split(b"\n")):
        left, _, right = line.partition(b" - ")
        kind = os.fsdecode(right.split(b" ", 1)[0])
        name = _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), left.split(b" ")[4])
        mount = os.fsdecode(name)
        parts = len(Path(mount).parts)
        # A later mount on the same directory hides the earlier mount.
        if resolved.is_relative_to(mount) and parts >= best_parts:
            best, best_parts = (kind, mount), parts
    return best
