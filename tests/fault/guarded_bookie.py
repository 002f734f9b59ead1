"""One bookie that speaks TLS and asks for roles, and callers with certificates and tokens."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

from bookie.cluster.instance import read_instance_id
from bookie.cluster.role_grants import RoleGrants
from bookie.config import SecuritySettings
from bookie.env import SystemClock
from bookie.metadata.connect import open_store
from bookie.security import authority
from bookie.security.authority import settings_for
from bookie.security.contexts import client_context
from bookie.security.grants import Grant
from bookie.security.token_keys import create_key, make_token
from tests.fault.daemon_process import Daemon
from tests.fault.raw_calls import RawBookie, channel_to
from tests.fault.raw_frames import FramesChannel
from tests.fault.secure_cluster import SecureCluster, secure_cluster

BODIES: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "PUT /read-only": ({"read_only": True}, {"read_only": False}),
    "PUT /garbage": ({"action": "suspend"}, {"action": "resume"}),
    "PUT /compaction": ({"action": "run"}, {}),
    "PUT /check": ({}, {}),
    "PUT /scrub": ({}, {}),
}
"""The body of a change, and of one that takes it back; empty where nothing is to be taken back."""

RULES = "cn:([a-z]+)"
"""The certificate of `NOBODY` fits no rule, so who shows it is anonymous to gRPC."""
NOBODY = "Nobody.1"


@cache
def _context(section: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    """To make one costs more than a request."""
    return client_context(SecuritySettings(**dict(section)))  # type: ignore[arg-type]


@dataclass
class GuardedBookie:
    """One bookie, and callers with certificates and with tokens."""

    cluster: SecureCluster
    daemon: Daemon
    instance_id: str
    tokens: Path
    stack: AsyncExitStack
    tasks: asyncio.TaskGroup
    ids: Iterator[int]

    @property
    def port(self) -> int:
        """Of gRPC."""
        return int(str(self.cluster.homes["b1"].sections["listen"]["port"]))

    @property
    def frames_port(self) -> int:
        """Of frames."""
        return int(str(self.cluster.homes["b1"].sections["listen"]["frames_port"]))

    @property
    def http_port(self) -> int:
        return int(str(self.cluster.homes["b1"].sections["http"]["port"]))

    def files(self, name: str) -> dict[str, str]:
        """The section ``[security]`` of a client; without a certificate if `name` is empty."""
        home = self.cluster.authority
        if name and not authority.certificate_path(home, name).exists():
            authority.issue(home, name)
        found = settings_for(home, name or "client")
        return found if name else {"ca_file": found["ca_file"]}

    def certificate(self, name: str, carrier: str = "grpc") -> RawBookie:
        """Return a caller that shows this certificate, and no token."""
        if carrier == "grpc":
            return self.shown(self.files(name))
        context = _context(tuple(self.files(name).items()))
        channel = FramesChannel(self.frames_port, context, self.tasks)
        self.stack.push_async_callback(channel.close)
        return RawBookie(channel, self.instance_id)

    def shown(self, section: Mapping[str, str]) -> RawBookie:
        """Who has the files of this section ``[security]``."""
        ca, key, certificate = (
            Path(section[name]).read_bytes() if name in section else None
            for name in ("ca_file", "key_file", "certificate_file")
        )
        channel = channel_to(self.port, ca or b"", key, certificate)
        self.stack.push_async_callback(channel.close)
        return RawBookie(channel, self.instance_id)

    def token(self, name: str) -> str:
        """A token of this principal; of the anonymous one it is a token of another cluster."""
        audience = "another" if name == "anonymous" else self.instance_id
        now = SystemClock().now_ms() / 1000
        return make_token(self.tokens, name, audience, seconds=900, now_seconds=now)

    async def http(
        self,
        call: str,
        certificate: str,
        token: str = "",
        *,
        undo: bool = False,
        section: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Make a request; its status and its answer."""
        method, _, path = call.partition(" ")
        context = _context(tuple((section or self.files(certificate)).items()))
        headers = {"Bookie-Id": "b1"} | ({"Authorization": f"Bearer {token}"} if token else {})
        url = f"https://127.0.0.1:{self.http_port}{path}"
        body = None if method == "GET" else BODIES[call][undo]
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, ssl=context, headers=headers, json=body) as answer,
        ):
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text) if is_json else text

    @property
    def admin(self) -> RawBookie:
        return self._admin

    def __post_init__(self) -> None:
        self._admin = self.certificate("client")


@asynccontextmanager
async def guarded_bookie(path: Path, grants: Iterable[Grant]) -> AsyncIterator[GuardedBookie]:
    """Start it with these grants, beside those of the bookie and of the admin ``client``."""
    async with (
        secure_cluster(path) as cluster,
        asyncio.TaskGroup() as tasks,
        AsyncExitStack() as stack,
    ):
        create_key(path / "tokens")
        async with open_store(cluster.uri) as store:
            instance_id = await read_instance_id(store)
            for one in grants:
                await RoleGrants(store).grant(one)
        daemon = await cluster.start(
            "b1",
            settings_for(cluster.authority, "bookie")
            | {
                "token_keys_file": str(path / "tokens" / "token-keys.json"),
                "principal_rules": RULES,
            },
        )
        async with daemon.followed():
            ids = itertools.count(1000)
            tokens = path / "tokens"
            yield GuardedBookie(cluster, daemon, instance_id, tokens, stack, tasks, ids)
