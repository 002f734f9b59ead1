"""Bookies that speak TLS, as processes, with certificates of a CA made for the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bookie.api import BookKeeper, connect
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.role_grants import RoleGrants
from bookie.config import SecuritySettings
from bookie.metadata.connect import open_store
from bookie.security import authority
from bookie.security.authority import settings_for
from bookie.security.contexts import client_context
from bookie.security.grants import Grant
from bookie.security.rights import Role
from tests.fault.daemon_cluster import home_of
from tests.fault.daemon_process import Daemon, Home, serving

HOSTS = ("127.0.0.1", "localhost")
LEASE_SECONDS = 4.0


def new_authority(directory: Path) -> Path:
    """A CA with the certificates ``bookie`` and ``client``."""
    authority.create_authority(directory)
    authority.issue(directory, "bookie", HOSTS)
    authority.issue(directory, "client")
    return directory


@dataclass
class SecureCluster:
    """A cluster whose bookies are started one by one, each with its own settings."""

    path: Path
    uri: str
    authority: Path
    stack: AsyncExitStack
    homes: dict[str, Home] = field(default_factory=dict)
    daemons: dict[str, Daemon] = field(default_factory=dict)
    sections: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """More settings of each bookie, below their sections."""
    repair: Mapping[str, object] = field(default_factory=lambda: {"enabled": False})

    async def start(self, name: str, security: Mapping[str, object] | None = None) -> Daemon:
        """Start a bookie with this section ``[security]``; by default with TLS."""
        home = self.homes.get(name)
        if home is None:
            home = self.homes[name] = home_of(
                *(self.uri, self.path, name),
                timeout_seconds=LEASE_SECONDS,
            )
        home.sections["repair"] = dict(self.repair)
        for section, values in self.sections.items():
            home.sections[section] = home.sections.get(section, {}) | dict(values)
        own = settings_for(self.authority, "bookie")
        home.sections["security"] = dict(own if security is None else security)
        daemon = await self.stack.enter_async_context(serving(home.write()))
        await daemon.until("registered")
        self.daemons[name] = daemon
        return daemon

    async def restart(self, name: str, security: Mapping[str, object] | None = None) -> None:
        """Stop a bookie in order, and start it with another section ``[security]``."""
        daemon = self.daemons[name]
        daemon.process.terminate()
        assert await daemon.end() == 0
        await self.start(name, security)

    def connect(self, name: str = "client", **options: Any) -> BookKeeper:
        """A client with the certificate `name`; empty: with none, as `options` say."""
        files: dict[str, Any] = settings_for(self.authority, name) if name else {}
        return connect(self.uri, session_timeout_seconds=LEASE_SECONDS, **files, **options)

    async def metric(self, name: str, sample: str) -> float:
        """The value of one of a bookie's metrics, by its name and labels."""
        home, context = self.homes[name], None
        if home.sections["security"].get("certificate_file"):
            files = settings_for(self.authority, "client")
            context = client_context(SecuritySettings(**files))  # type: ignore[arg-type]
        url = f"http{'s' if context else ''}://127.0.0.1:{home.sections['http']['port']}/metrics"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, ssl=context or True) as answer,
        ):
            lines = (await answer.text()).splitlines()
        (line,) = (line for line in lines if line.startswith(f"{sample} "))
        return float(line.split()[-1])


@asynccontextmanager
async def secure_cluster(path: Path) -> AsyncIterator[SecureCluster]:
    """A cluster without bookies; what runs at the end is killed."""
    uri = f"local://{path}/metadata"
    async with open_store(uri) as store:
        await initialize_cluster(store)
        await RoleGrants(store).grant(Grant("client", Role.ADMIN))
        await RoleGrants(store).grant(Grant("bookie", Role.REPAIRER))
    async with AsyncExitStack() as stack:
        yield SecureCluster(path, uri, new_authority(path / "security"), stack)
