"""Plans a local cluster, keeps the plan in `cluster.json`, and writes each bookie's settings."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import random
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bookie.daemon.local.certificates import prepare_certificates, security_directory
from bookie.errors import ConfigurationError, DirectoryLockedError

BOOKIES_DEFAULT = 3
_LAYOUT_VERSION = 1
_PORTS = range(10_000, 20_000)
"""The range from which `free_ports` chooses."""


@dataclass(frozen=True, slots=True)
class LocalBookie:
    """One bookie of the cluster, as stored in `cluster.json`."""

    id: str
    port: int
    http_port: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The content of `cluster.json`: the facts about a cluster that are kept between its runs."""

    metadata_uri: str
    members: tuple[LocalBookie, ...]

    def without(self, bookie_ids: Collection[str]) -> Layout:
        """Return the same layout without some bookies."""
        rest = tuple(member for member in self.members if member.id not in bookie_ids)
        return Layout(self.metadata_uri, rest)


def make_directory(directory: Path) -> None:
    """Create the cluster's directory with mode 0700, if it is missing.

    Raises:
        ConfigurationError: the path is not absolute.
    """
    if not directory.is_absolute():
        raise ConfigurationError(f"{directory} must be an absolute path")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def prepare(
    directory: Path,
    *,
    bookies: int | None,
    metadata_uri: str | None,
    base_port: int | None,
    settings: Mapping[str, Mapping[str, object]],
    secure: bool = False,
) -> Layout:
    """Plan the cluster, save the plan, and write the configuration of every bookie.

    If a cluster has used TLS once, it always uses TLS, even if `secure` is False.

    Raises:
        ConfigurationError: as in `load_layout` and `plan_layout`.
    """
    layout = plan_layout(
        directory,
        load_layout(directory),
        bookies=bookies,
        metadata_uri=metadata_uri,
        base_port=base_port,
    )
    save_layout(directory, layout)
    security: Mapping[str, Mapping[str, object]] = {}
    if secure or security_directory(directory).exists():
        names = [member.id for member in layout.members]
        security = prepare_certificates(directory, names)
    for member in layout.members:
        own = {"security": security[member.id]} if security else {}
        write_configuration(directory, layout, member, {**own, **settings})
    return layout


def load_layout(directory: Path) -> Layout | None:
    """Return the layout of the cluster in `directory`; None if `directory` has no `cluster.json`.

    Raises:
        ConfigurationError: `cluster.json` does not describe a cluster, or a newer version wrote it.
    """
    path = directory / "cluster.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != _LAYOUT_VERSION:
            raise ConfigurationError(f"{path} was written by a newer version of bookie")
        members = tuple(LocalBookie(**member) for member in document["members"])
        return Layout(str(document["metadata_uri"]), members)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} does not describe a cluster") from error


def save_layout(directory: Path, layout: Layout) -> None:
    """Save the layout; if the process ends during the call, the old layout stays intact."""
    document = {
        "version": _LAYOUT_VERSION,
        "metadata_uri": layout.metadata_uri,
        "members": [asdict(member) for member in layout.members],
    }
    temporary = directory / "cluster.json.tmp"
    temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    temporary.replace(directory / "cluster.json")


def plan_layout(
    directory: Path,
    known: Layout | None,
    *,
    bookies: int | None,
    metadata_uri: str | None,
    base_port: int | None,
) -> Layout:
    """Plan a new cluster, or change the `known` cluster: more bookies, or new ports.

    With `base_port`, all bookies get new ports from `base_port` on.

    Raises:
        ConfigurationError: `known` has more bookies than `bookies`, or another metadata store.
    """
    uri = metadata_uri or (known.metadata_uri if known else f"local://{directory}/metadata")
    members = list(known.members) if known else []
    count = bookies if bookies is not None else len(members) or BOOKIES_DEFAULT
    if known is not None and count < len(members):
        raise ConfigurationError(
            f"{directory} holds a cluster of {len(members)} bookies; start it with at least so many"
        )
    if known is not None and uri != known.metadata_uri:
        raise ConfigurationError(f"{directory} holds a cluster on {known.metadata_uri}, not {uri}")
    names = [member.id for member in members]
    # A directory that belongs to no member holds the data of a bookie that left the cluster.
    unused = (name for name in _names() if name not in names and not (directory / name).exists())
    names += list(itertools.islice(unused, count - len(names)))
    if base_port is not None:
        ports = list(range(base_port, base_port + 2 * count))
        members = []
    else:
        ports = free_ports(2 * (count - len(members)))
    for name in names[len(members) :]:
        members.append(LocalBookie(name, ports.pop(0), ports.pop(0)))
    return Layout(uri, tuple(members))


def _names() -> Iterator[str]:
    return (f"bookie-{number}" for number in itertools.count(1))


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 that no process uses now.

    The ports are below the range from which Linux gives ports to outgoing connections. So no
    outgoing connection can take one of the ports before a bookie listens there, or between two runs
    of the cluster.

    Raises:
        ConfigurationError: fewer than `count` ports are free.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        ports = f"{_PORTS.start} to {_PORTS.stop - 1}"
        raise ConfigurationError(f"no {count} of the ports {ports} are free: give a base port")
    return found


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against a second supervisor, for the duration of the block.

    Raises:
        DirectoryLockedError: another supervisor holds the lock.
    """
    descriptor = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise DirectoryLockedError(f"another cluster runs in {directory}; stop it first") from error
    finally:
        os.close(descriptor)


def write_configuration(
    directory: Path,
    layout: Layout,
    member: LocalBookie,
    settings: Mapping[str, Mapping[str, object]],
) -> None:
    """Write the `bookie.toml` of one bookie; the keys in `settings` override the default keys."""
    home = directory / member.id
    home.mkdir(exist_ok=True, mode=0o700)
    sections: dict[str, dict[str, object]] = {
        "bookie": {"id": member.id},
        "listen": {"host": "127.0.0.1", "port": member.port},
        "metadata": {"uri": layout.metadata_uri},
        "storage": {"journal_dir": str(home / "journal"), "ledgers_dir": str(home / "ledgers")},
        "http": {"host": "127.0.0.1", "port": member.http_port},
        "log": {"format": "console"},
    }
    for name, values in settings.items():
        sections.setdefault(name, {}).update(values)
    lines = ["# Written by `bookie local` at each start."]
    for name, values in sections.items():
        lines.append(f"\n[{name}]")
        # TOML spells booleans, numbers and strings like JSON, but refuses escaped surrogates.
        lines += [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in values.items()]
    (home / "bookie.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
