"""Is this machine fit to run a bookie? Measured facts, each with a verdict and an advice.

Every check is a function that returns `Check` values and changes nothing that outlives it (the disk
check writes one unnamed file and is rid of it when it ends). ``warn`` means that a bookie runs, but
not as well or as safely as it could; ``fail`` means that it will not start, or must not.
"""

from __future__ import annotations

import ctypes
import enum
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

FDATASYNC_P99_SECONDS_GOOD = 0.010
"""Group commit hides a few milliseconds; above that every lone append is felt."""

FREE_BYTES_MIN = 10 * 1024**3
"""A few journal files, the index and room to compact."""

FILES_MIN = 65536
"""One descriptor a connection, a journal file and an entry log; distributions start at 1024."""

PYTHON_MIN = (3, 11)

_ADJTIMEX_BYTES = 256
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
    "prometheus-client",
)


class Verdict(enum.StrEnum):
    """What a fact means for a bookie."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One fact: what was looked at, what was found, and what to do when it is not `Verdict.OK`."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


def check_machine(
    journal_dir: Path | None, ledgers_dir: Path | None, *, syncs: int = 200
) -> list[Check]:
    """All checks, in the order in which they are shown.

    Args:
        journal_dir: where the journal is or will be; the nearest existing parent is measured.
        ledgers_dir: the same for index and entry logs.
        syncs: how many times to write 4 KiB and sync it, per directory.
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
    checks.append(check_files_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    checks += [check_monotonic_clock(), check_clock_synchronised()]
    return checks


def check_python(version: tuple[int, ...], *, optimized: bool) -> Check:
    """The interpreter: new enough, and not under ``-O`` (which strips the assertions)."""
    found = f"{platform.python_implementation()} {'.'.join(map(str, version))}"
    if version < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return Check("python", Verdict.FAIL, found, f"use Python {wanted} or newer")
    if optimized:
        return Check("python", Verdict.FAIL, f"{found} with -O", "start without -O")
    return Check("python", Verdict.OK, found)


def check_libraries(names: Sequence[str] = _LIBRARIES) -> Check:
    """The versions of the libraries that decide speed and safety."""
    versions: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = f"pip install {' '.join(missing)}"
        return Check("libraries", Verdict.FAIL, f"missing: {', '.join(missing)}", advice, versions)
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check("libraries", Verdict.OK, found, numbers=versions)


def check_directory(name: str, path: Path, *, syncs: int) -> list[Check]:
    """One directory: may we write, on which file system, with how much room, how fast to sync."""
    if not os.access(path, os.W_OK | os.X_OK):
        advice = f"give this user write permission on {path}"
        return [Check(f"{name} directory", Verdict.FAIL, f"{path} is not writable", advice)]
    checks = [_check_file_system(name, path), _check_free_space(name, path)]
    try:
        latencies = measure_syncs(path, syncs)
    except OSError as error:
        found = f"cannot write and sync in {path}: {error.strerror}"
        checks.append(Check(f"{name} sync", Verdict.FAIL, found, "use another file system"))
        return checks
    checks.append(judge_syncs(name, latencies))
    return checks


def _check_file_system(name: str, path: Path) -> Check:
    kind, mount = file_system_of(path)
    found = f"{kind} at {mount}"
    numbers = {"type": kind, "mount": mount}
    label = f"{name} file system"
    if kind in _VOLATILE_FILE_SYSTEMS:
        return Check(label, Verdict.WARN, found, "its content is lost at a restart", numbers)
    if kind in _NETWORK_FILE_SYSTEMS:
        return Check(label, Verdict.WARN, found, "use a local disk: locks and syncs lie", numbers)
    return Check(label, Verdict.OK, found, numbers=numbers)


def _check_free_space(name: str, path: Path) -> Check:
    stat = os.statvfs(path)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    found = f"{free / 1024**3:.1f} GiB of {total / 1024**3:.1f} GiB"
    numbers = {"free_bytes": free, "total_bytes": total}
    if free < FREE_BYTES_MIN:
        advice = f"keep {FREE_BYTES_MIN / 1024**3:.0f} GiB free"
        return Check(f"{name} free space", Verdict.WARN, found, advice, numbers)
    return Check(f"{name} free space", Verdict.OK, found, numbers=numbers)


def measure_syncs(path: Path, count: int) -> list[float]:
    """Write 4 KiB to an allocated file and sync it, `count` times.

    Returns:
        the seconds that each fdatasync took, in order.

    Raises:
        OSError: the file cannot be made, allocated, written or synced.
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


def judge_syncs(name: str, latencies: Sequence[float]) -> Check:
    """What measured syncs mean: slow ones, and ones too fast for any disk, are worth a warning."""
    ordered = sorted(latencies)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    found = f"fdatasync p50 {p50 * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs"
    numbers = {"p50_seconds": p50, "p99_seconds": p99, "count": len(ordered)}
    if p99 > FDATASYNC_P99_SECONDS_GOOD:
        advice = "put it on a faster device: appends wait for this"
        return Check(f"{name} sync", Verdict.WARN, found, advice, numbers)
    return Check(f"{name} sync", Verdict.OK, found, numbers=numbers)


def check_devices(journal_dir: Path, ledgers_dir: Path) -> Check:
    """Whether journal and ledgers compete for one device."""
    if journal_dir.stat().st_dev == ledgers_dir.stat().st_dev:
        advice = "for lower latency under load give the journal a device of its own"
        return Check("devices", Verdict.WARN, "journal and ledgers share one device", advice)
    return Check("devices", Verdict.OK, "journal and ledgers have a device each")


def check_files_limit(limit: int) -> Check:
    """The limit of open files (RLIMIT_NOFILE)."""
    found = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    numbers = {"files_max": limit}
    if limit != resource.RLIM_INFINITY and limit < FILES_MIN:
        advice = f"raise it to {FILES_MIN} (LimitNOFILE= in systemd, ulimit -n in a shell)"
        return Check("open files", Verdict.WARN, found, advice, numbers)
    return Check("open files", Verdict.OK, found, numbers=numbers)


def check_monotonic_clock(samples: int = 10_000) -> Check:
    """Leases and timeouts stand on a clock that never goes back."""
    previous = time.monotonic()
    for _ in range(samples):
        now = time.monotonic()
        if now < previous:
            found = f"went back by {(previous - now) * 1e6:.0f} µs"
            return Check("monotonic clock", Verdict.FAIL, found, "fix the machine's clock source")
        previous = now
    return Check("monotonic clock", Verdict.OK, "never went back")


def check_clock_synchronised() -> Check:
    """Whether the kernel believes that its wall clock is synchronised (NTP, chrony)."""
    library = ctypes.CDLL(None, use_errno=True)
    # struct timex begins with `modes`; all zero means "only read", which needs no privilege.
    state = int(library.adjtimex(ctypes.create_string_buffer(_ADJTIMEX_BYTES)))
    if state == _TIME_ERROR:
        advice = "run chrony or systemd-timesyncd: log times will drift apart between machines"
        return Check("clock", Verdict.WARN, "not synchronised", advice)
    if state < 0:
        advice = "the kernel did not say whether its clock is synchronised"
        return Check("clock", Verdict.WARN, "unknown", advice)
    return Check("clock", Verdict.OK, "synchronised")


def nearest_existing(path: Path) -> Path:
    """`path`, or its nearest parent that exists: where the directory would be made."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def file_system_of(path: Path, mounts: str | None = None) -> tuple[str, str]:
    """Type and mount point of the file system that holds `path`.

    Args:
        path: an existing path.
        mounts: the text of ``/proc/self/mountinfo``; read when None.
    """
    if mounts is None:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    resolved = path.resolve()
    best = ("unknown", "/")
    best_parts = 0
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ", 1)[0]
        mount = fields[4].encode().decode("unicode_escape")
        parts = len(Path(mount).parts)
        # Later lines hide earlier ones mounted on the same place.
        if resolved.is_relative_to(mount) and parts >= best_parts:
            best, best_parts = (kind, mount), parts
    return best
