"""No secret comes out: not in a log line, an answer, the output of a command or an error.

One bookie runs with secrets of every kind, and logs everything. All that can go wrong with them
goes wrong: with passwords, tokens, keys and settings. Then all that was said is searched for them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bookie._pb import bookie_pb2 as pb
from bookie.api import BookKeeper, connect
from bookie.cluster.instance import read_instance_id
from bookie.config import MetadataSettings, SecuritySettings
from bookie.daemon.local.process import child_environment
from bookie.env import SystemClock
from bookie.errors import BookieError
from bookie.metadata.connect import open_store
from bookie.metadata.rights import Kind
from bookie.metadata.security import security_of
from bookie.security.authority import settings_for, variables_for
from bookie.security.contexts import client_context
from bookie.security.token_keys import create_key, make_token
from tests.fault.daemon_cluster import home_of
from tests.fault.daemon_process import Daemon, serving
from tests.fault.raw_calls import RawBookie, channel_to
from tests.fault.secure_cluster import SecureCluster, secure_cluster
from tests.servers.guarded import PASSWORD as PASSWORD_OF_STORE
from tests.servers.guarded import GuardedStore, guarded

__all__ = ["guarded"]

PASSWORD = b"password-of-a-ledger-5b1f"
WRONG_PASSWORD = b"another-password-of-a-ledger-77c0"
METADATA_PASSWORD = "password-of-the-store-3e9a"

TAKEN_SECONDS_MAX = 60.0
"""A bookie takes a changed file within seconds, on an idle machine."""


class Secrets:
    """What must not be said, in the forms in which a program would say it."""

    def __init__(self) -> None:
        self.forms: dict[str, set[str]] = {}

    def add(self, name: str, *values: str | bytes) -> None:
        for value in values:
            raw = value.encode() if isinstance(value, str) else value
            forms = self.forms.setdefault(name, set())
            forms |= {raw.hex(), base64.b64encode(raw).decode().rstrip("=")}
            forms.add(raw.decode() if raw.isascii() else repr(raw)[2:-1])

    def add_key(self, path: Path) -> None:
        """The lines of a key's PEM."""
        lines = path.read_text().splitlines()
        assert "PRIVATE KEY" in lines[0]
        for line in lines[1:-1]:
            self.forms.setdefault(path.name, set()).add(line)

    def found_in(self, text: str) -> list[str]:
        return [name for name, forms in self.forms.items() if any(one in text for one in forms)]


class Said:
    """All that was said: by whom, and what."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def add(self, by: str, *texts: object) -> None:
        self.texts += [(by, str(text)) for text in texts]

    @contextmanager
    def error(self, by: str, sentence: str) -> Iterator[None]:
        """Expect an error; keep all forms of it, with its traceback."""
        with pytest.raises(BookieError, match=sentence) as caught:
            yield
        error = caught.value
        self.add(by, error, repr(error), "".join(traceback.format_exception(error)))

    def has(self, sentence: str) -> bool:
        return any(sentence in text for _, text in self.texts)


class Stage:
    """A bookie with secrets, and what is done with it."""

    def __init__(self, cluster: SecureCluster, path: Path) -> None:
        self.cluster, self.path = cluster, path
        self.said, self.secrets = Said(), Secrets()
        self.files: dict[str, Any] = settings_for(cluster.authority, "client")
        self.tokens = path / "tokens"
        create_key(self.tokens)
        self.signing = json.loads((self.tokens / "token-key.json").read_bytes())
        create_key(path / "shared", "HS256")
        shared = json.loads((path / "shared" / "token-key.json").read_bytes())
        self.secrets.add("password of a ledger", PASSWORD)
        self.secrets.add("wrong password", WRONG_PASSWORD)
        self.secrets.add("password of the store", METADATA_PASSWORD)
        self.secrets.add("key that signs tokens", self.signing["d"])
        self.secrets.add("secret that signs tokens", shared["k"])
        for name in ("ca", "bookie", "client"):
            self.secrets.add_key(cluster.authority / f"{name}-key.pem")
        self.daemon: Daemon

    async def start(self) -> None:
        self.cluster.sections = {
            "metadata": {"user": "bookie", "password": METADATA_PASSWORD},
            "log": {"level": "debug"},
        }
        own = settings_for(self.cluster.authority, "bookie")
        keys = {"token_keys_file": str(self.tokens / "token-keys.json")}
        self.daemon = await self.cluster.start("b1", own | keys)
        async with open_store(self.cluster.uri) as store:
            self.instance_id = await read_instance_id(store)
        line = content_of(f"/proc/{self.daemon.process.pid}/cmdline")
        self.said.add("arguments of the process", line.decode())

    def token(self, name: str, seconds: int = 900) -> str:
        now = SystemClock().now_ms() / 1000
        token = make_token(self.tokens, name, self.instance_id, seconds=seconds, now_seconds=now)
        self.secrets.add(f"token of {name}", token, token.rpartition(".")[2])
        return token

    async def command(self, *words: str, **variables: str) -> int:
        """Run a command, with tracebacks of its errors; its status."""
        environment = child_environment(os.environ) | variables_for(
            self.cluster.authority, "client"
        )
        environment |= {
            "BOOKIE_DEBUG": "1",
            "BOOKIE_METADATA": self.cluster.uri,
            "BOOKIE_METADATA__USER": "client",
            "BOOKIE_METADATA__PASSWORD": METADATA_PASSWORD,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bookie", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment | variables,
        )
        outputs = await process.communicate()
        self.said.add(f"bookie {' '.join(words[:2])}", *(one.decode() for one in outputs))
        assert process.returncode is not None
        return process.returncode

    async def until_logged(self, sentence: str, of: int = 1) -> None:
        async with asyncio.timeout(TAKEN_SECONDS_MAX):
            while sum(sentence in line for line in self.daemon.lines) < of:  # noqa: ASYNC110  (a log tells nobody)
                await asyncio.sleep(0.05)


def content_of(path: str) -> bytes:
    return Path(path).read_bytes()


# ---- what goes wrong


async def passwords(stage: Stage) -> None:
    """The right one, wrong ones, one that is no bytes; by the client and by commands."""
    said, home = stage.said, stage.path
    (home / "right").write_bytes(PASSWORD)
    (home / "wrong").write_bytes(WRONG_PASSWORD)
    async with stage.cluster.connect(digest_least="crc32c") as client:
        said.add("repr", repr(client), repr(vars(client)))
        async with await new_ledger(client, "hmac") as writer:
            await writer.append(b"x")
            metadata = await client.ledger_metadata(writer.ledger_id)
            said.add("repr", repr(writer), repr(metadata), str(metadata))
            stage.secrets.add("key of a ledger", metadata.password_key)
        ledger_id = writer.ledger_id
        reader = await client.open_ledger(ledger_id, password=PASSWORD, recover=True)
        said.add("repr", repr(reader), repr([one async for one in reader.read()]))
        for wrong in (WRONG_PASSWORD, b""):
            with said.error("open", "the password of ledger"):
                await client.open_ledger(ledger_id, password=wrong)
        with said.error("open", "password must be bytes, not str"):
            await client.open_ledger(ledger_id, password=PASSWORD.decode())  # type: ignore[arg-type]
        with said.error("create", "digest_least"):
            await new_ledger(client, "dummy")
        said.add("explain", repr(await client.explain_ledger(ledger_id)))
    for file, status in (("right", 0), ("wrong", 1)):
        words = ("read", str(ledger_id), "--password-file", str(home / file))
        assert await stage.command("ledger", *words) == status
    for verb, *options in (("show",), ("show", "-o", "json"), ("explain",)):
        assert await stage.command("ledger", verb, str(ledger_id), *options) == 0
    await stage.command("ledger", "list", "-o", "json")


async def new_ledger(client: BookKeeper, digest: Any) -> Any:
    return await client.create_ledger(
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        password=PASSWORD,
        digest_type=digest,
    )


async def tokens(stage: Stage) -> None:
    """Refused by gRPC and by HTTP; in files that hold no token; in requests that are no HTTP."""
    good, late = stage.token("client"), stage.token("late", -600)
    mangled = good[:-8] + "AAAAAAAA"
    stage.secrets.add("mangled token", mangled)
    contents = [content_of(stage.files[f"{one}_file"]) for one in ("ca", "key", "certificate")]
    sections = stage.cluster.homes["b1"].sections
    channel = channel_to(int(str(sections["listen"]["port"])), *contents)
    for token in (good, late, mangled, "Bearer"):
        caller = RawBookie(channel, stage.instance_id, token)
        answer = await caller.unary("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse)
        stage.said.add("gRPC", answer)
        for path in ("/metrics", "/bookie", "/readyz", "/nowhere"):
            await ask(stage, path, token)
    await channel.close()
    (stage.path / "token").write_text(late)
    options: Any = {"token_file": str(stage.path / "token")}
    async with stage.cluster.connect(**options) as client:
        with stage.said.error("client", "the token expired"):
            await (await new_ledger(client, "crc32c")).append(b"x")
    variables = {"BOOKIE_SECURITY__TOKEN_FILE": str(stage.path / "token")}
    assert await stage.command("node", "info", "b1", **variables) == 1
    for content in (f"{good} {late}", content_of(stage.files["key_file"]).decode()):
        (stage.path / "no-token").write_text(content)
        with stage.said.error("client", "holds no token"):
            async with stage.cluster.connect(token_file=str(stage.path / "no-token")):
                pass
    for line in ("Authorization Bearer {}", "GET /{} HTTP/1.1", "Authorization: Bearer {}\x00"):
        await talk(stage, line.format(good))


async def ask(stage: Stage, path: str, token: str) -> None:
    context = client_context(SecuritySettings(**stage.files))
    url = f"https://127.0.0.1:{stage.cluster.homes['b1'].sections['http']['port']}{path}"
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=context, headers=headers) as answer,
    ):
        stage.said.add(f"GET {path}", await answer.text(), dict(answer.headers))


async def talk(stage: Stage, line: str) -> None:
    """Send a request that is no HTTP."""
    context: ssl.SSLContext = client_context(SecuritySettings(**stage.files))
    port = int(str(stage.cluster.homes["b1"].sections["http"]["port"]))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: b1\r\n{line}\r\n\r\n".encode())
    async with asyncio.timeout(TAKEN_SECONDS_MAX):
        stage.said.add("HTTP", (await reader.read(2**16)).decode())
    writer.close()


async def files(stage: Stage) -> None:
    """Files with secrets in the places of others, at the start and in a running bookie."""
    home = stage.cluster.authority
    own = settings_for(home, "bookie")
    private = stage.path / "private.json"
    private.write_text(json.dumps({"keys": [stage.signing]}))
    shorter = stage.path / "half.pem"
    shorter.write_text((home / "bookie-key.pem").read_text()[:150])
    bad = [
        {"key_file": str(home / "client-key.pem")},
        {"key_file": str(stage.tokens / "token-key.json")},
        {"key_file": str(shorter)},
        {"certificate_file": own["key_file"]},
        {"ca_file": own["key_file"]},
        {"token_keys_file": str(private)},
        {"token_keys_file": own["key_file"]},
    ]
    other = home_of(stage.cluster.uri, stage.path, "b2")
    for section, values in stage.cluster.sections.items():
        other.sections[section] = other.sections.get(section, {}) | dict(values)
    for wrong in bad:
        other.sections["security"] = {**own, **wrong}
        await refused_start(stage, other.write(), "security.")
    for path, content in (
        (home / "bookie-key.pem", stage.tokens / "token-key.json"),
        (stage.tokens / "token-keys.json", private),
    ):
        before = path.read_bytes()
        path.write_bytes(content.read_bytes())
        await stage.until_logged(path.name)
        path.write_bytes(before)


async def refused_start(stage: Stage, config: Path, sentence: str) -> None:
    async with serving(config) as daemon:
        status, said = await daemon.refusal()
    assert status
    assert re.search(sentence, said), said
    stage.said.add(f"start with {config.name}", *daemon.lines)


async def settings(stage: Stage) -> None:
    """Settings in effect, wrong ones, and addresses with passwords in them."""
    for words in ((), ("-o", "json"), ("--origins",), ("--origins", "-o", "json")):
        await stage.command("config", "show", *words)
    file = stage.cluster.homes["b1"].write()
    for command in ("show", "check"):
        assert await stage.command("config", command, "--config", str(file)) == 0
    secret = METADATA_PASSWORD
    for number, text in enumerate(
        [
            f'[metadata]\npasword = "{secret}"\n',
            f'[metadata]\npassword = ["{secret}"]\n',
            f'[metadata]\npassword = "{secret}\n',
            f'[metadata]\npassword = {{a = "{secret}"}}\n',
            f'password = "{secret}"\n',
            f'metadata = "{secret}"\n',
        ]
    ):
        file = stage.path / f"{number}.toml"
        file.write_text(text)
        assert await stage.command("config", "check", "--config", str(file)) != 0
        await refused_start(stage, file, "metadata|TOML|section")
    for uri in addresses(secret):
        assert await stage.command("cluster", "status", "-m", uri) != 0
        file = stage.path / "address.toml"
        file.write_text(f'[metadata]\nuri = "{uri}"\n')
        assert await stage.command("config", "check", "--config", str(file)) != 0
        with stage.said.error("connect", "metadata"):
            async with connect(uri):
                pass


def addresses(secret: str) -> list[str]:
    """Addresses that somebody may write who does not know that credentials do not belong there."""
    return [
        f"etcd://ann:{secret}@127.0.0.1:2379/x",
        f"zk://ann:{secret}@127.0.0.1/x",
        f"zk://127.0.0.1,ann:{secret}@127.0.0.1/x",
        f"ectd://ann:{secret}@127.0.0.1/x",
        f"https://ann:{secret}@127.0.0.1/x",
        f"etcd:ann:{secret}@127.0.0.1/x",
        f"local://ann:{secret}@/x",
        f"memory://ann:{secret}@x/y",
        f"ann:{secret}@127.0.0.1:2379",
        f"etcd://127.0.0.1:2379/x?user=ann&password={secret}",
        f"etcd://127.0.0.1:2379/x#{secret}",
    ]


async def tracebacks(stage: Stage) -> None:
    """An error that nobody expects is logged with its traceback, without the variables there."""
    program = (
        "import sys, threading\n"
        "from bookie.telemetry import configure_logging, log_uncaught\n"
        "from bookie.config import load_settings\n"
        "configure_logging('debug', sys.argv[1])\n"
        "log_uncaught()\n"
        "def fail(settings, password):\n"
        "    raise ValueError(f'nobody expects this: {settings.metadata!r}')\n"
        "settings = load_settings(None)\n"
        "password = settings.metadata.password.get_secret_value()\n"
        "thread = threading.Thread(target=fail, args=(settings, password))\n"
        "thread.start()\n"
        "thread.join()\n"
        "fail(settings, password)\n"
    )
    environment = child_environment(os.environ) | {"BOOKIE_METADATA__PASSWORD": METADATA_PASSWORD}
    for style in ("json", "console"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, style),
            stderr=asyncio.subprocess.PIPE,
            env=environment | {"BOOKIE_METADATA__USER": "u"},
        )
        _, text = await process.communicate()
        assert text.count(b"nobody expects this") >= 2
        stage.said.add("traceback", text.decode())


WRONG: Mapping[str, Callable[[Stage], Awaitable[None]]] = {
    "passwords": passwords,
    "tokens": tokens,
    "files": files,
    "settings": settings,
    "tracebacks": tracebacks,
}


@pytest.mark.timeout(600)
async def test_nothing_tells_a_secret(tmp_path: Path) -> None:
    async with secure_cluster(tmp_path) as cluster:
        stage = Stage(cluster, tmp_path)
        await stage.start()
        async with stage.daemon.followed():
            for name, go in WRONG.items():
                await go(stage)
                assert stage.said.texts, name
        stage.daemon.process.terminate()
        assert await stage.daemon.end() == 0
        stage.said.add("log", *stage.daemon.lines)
        # Each failure was noticed, and named.
        for sentence in (
            "the password of ledger",
            "the token expired",
            "signature is not good",
            "audit_refused",
            "holds no JSON",
            "with its private part",
            "must not contain credentials",
            "uncaught_exception",
        ):
            assert stage.said.has(sentence), sentence
        told = {
            f"{name}: by {by}: {text[:600]}"
            for by, text in stage.said.texts
            for name in stage.secrets.found_in(text)
        }
        assert not told, "\n".join(sorted(told))


@pytest.mark.timeout(300)
async def test_the_password_of_a_real_store(guarded: GuardedStore, tmp_path: Path) -> None:
    """It is sent to the server; the libraries for that have logs of their own."""
    await guarded.make_cluster()
    said, secrets = Said(), Secrets()
    secrets.add("password of the store", PASSWORD_OF_STORE)
    secrets.add("wrong password", METADATA_PASSWORD)
    good = guarded.settings(Kind.BOOKIE)
    for password in (good["password"], METADATA_PASSWORD):
        home = home_of(guarded.uri, tmp_path, f"b-{len(password)}")
        home.sections["metadata"] = {**good, "password": password, "session_timeout_seconds": 4.0}
        home.sections["log"] = {"level": "debug"}
        async with serving(home.write()) as daemon:
            if password == METADATA_PASSWORD:
                status, _ = await daemon.refusal()
                assert status
            else:
                await daemon.until("registered")
                daemon.process.terminate()
                assert await daemon.end() == 0
        said.add("bookie", *daemon.lines)
        settings = {**guarded.settings(Kind.ADMIN), "password": password}
        security = security_of(MetadataSettings.model_validate(settings))
        said.add("repr", repr(security), repr(MetadataSettings.model_validate(settings)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bookie", "cluster", "status", "-m", guarded.uri),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(os.environ)
            | {"BOOKIE_DEBUG": "1"}
            | {f"BOOKIE_METADATA__{name.upper()}": value for name, value in settings.items()},
        )
        said.add("command", *(one.decode() for one in await process.communicate()))
        assert bool(process.returncode) is (password == METADATA_PASSWORD)
    assert said.has("refuses the user") or said.has("password"), said.texts
    told = [(by, text) for by, text in said.texts if secrets.found_in(text)]
    assert not told


def test_the_search_finds_secrets(tmp_path: Path) -> None:
    secrets = Secrets()
    secrets.add("text", PASSWORD)
    secrets.add("bytes", b"\x00\xffkey")
    for text in (
        PASSWORD.decode(),
        repr(PASSWORD),
        PASSWORD.hex(),
        base64.b64encode(PASSWORD).decode(),
    ):
        assert secrets.found_in(f"so it is {text}") == ["text"]
    assert secrets.found_in(repr({"key": b"\x00\xffkey"})) == ["bytes"]
    assert secrets.found_in("nothing") == []
