"""Certificates and tokens that are not good, at a bookie that runs; all tests here share it.

Refused means: nothing was stored, and nothing was told.

=========================================  =====================================================
case                                       test in this folder
=========================================  =====================================================
client: expired, not yet valid             `test_a_certificate_that_is_not_good`
client: another CA, a CA of the same name  `test_a_certificate_that_is_not_good`
client: none where one is required         `test_a_certificate_that_is_not_good`
bookie: expired, another CA, another host  `test_tls`
bookie: not yet valid                      `test_tls`
HTTP: odd paths and methods                `test_odd_ways_to_a_page`
roles removed while a stream is open       `test_rights_matrix`
plaintext client at a port of TLS          `test_plaintext_at_the_ports_of_tls`
TLS 1.1 and 1.2                            `test_older_versions_of_tls`
bookie that would lead to plaintext        `test_no_way_back_to_plaintext`
token: expired, not yet valid              `test_a_token_that_is_not_good`
token: of another cluster                  `test_a_token_that_is_not_good`
token: unknown key, signed by a stranger   `test_a_token_that_is_not_good`
token: unsigned, public key as a secret    `test_a_token_that_is_not_good`
token: no expiry, no token, another scheme `test_a_token_that_is_not_good`
token shown with another role's call       `test_a_token_replayed_at_the_call_of_another_role`
token that expires in a stream             `test_roles`
key rotated in the middle of a stream      `test_a_key_that_is_replaced_in_the_middle_of_a_stream`
token that becomes useless in its file     `tests/unit/security/test_token_file.py`
=========================================  =====================================================
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.api import BookKeeper
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import SecuritySettings
from bookie.env import SystemClock
from bookie.errors import BookieError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.metadata.connect import open_store
from bookie.security import authority
from bookie.security.contexts import client_context
from bookie.security.grants import Grant
from bookie.security.rights import Role
from bookie.security.token_keys import create_key, forget_key
from tests.fault.guarded_bookie import GuardedBookie, guarded_bookie
from tests.fault.raw_calls import CALLS, RawBookie, add, effect, prepare, until_status
from tests.fault.test_rights_matrix import metadata_of
from tests.unit.security.odd_certificates import CLIENT, issue_odd

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

FOLLOWED_SECONDS_MAX = 60.0
"""A bookie takes a changed file within seconds, on an idle machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bookie(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GuardedBookie]:
    path = tmp_path_factory.mktemp("credentials")
    async with guarded_bookie(path, [Grant(role.value, role) for role in Role]) as started:
        yield started


# ---- certificates


def expired(home: Path) -> None:
    issue_odd(home, "expired", days=(-30, -1), purposes=[CLIENT])


def not_yet_valid(home: Path) -> None:
    issue_odd(home, "early", days=(1, 30), purposes=[CLIENT])


def of_another_ca(home: Path) -> None:
    authority.create_authority(home / "other")
    authority.issue(home / "other", "admin")


def of_a_ca_of_the_same_name(home: Path) -> None:
    """Whoever knows the name of a CA can make one that has it, with another key."""
    with pytest.MonkeyPatch.context() as patch:
        ours = authority._load(home, authority.CA_NAME).subject
        subject = authority._subject
        patch.setattr(
            authority,
            "_subject",
            lambda name: ours if name.startswith("bookie CA") else subject(name),
        )
        authority.create_authority(home / "namesake")
    authority.issue(home / "namesake", "admin")


CERTIFICATES: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "expired": (expired, "expired"),
    "not yet valid": (not_yet_valid, "early"),
    "of another CA": (of_another_ca, "other/admin"),
    "of a CA of the same name": (of_a_ca_of_the_same_name, "namesake/admin"),
    "none": (lambda _: None, ""),
}


@pytest.mark.parametrize("case", CERTIFICATES)
async def test_a_certificate_that_is_not_good(bookie: GuardedBookie, case: str) -> None:
    """gRPC ends the handshake; HTTP does so, too, or knows nobody without a certificate."""
    make, name = CERTIFICATES[case]
    home = bookie.cluster.authority
    make(home)
    section = bookie.files("")
    if name:
        section |= {"certificate_file": f"{home}/{name}.pem", "key_file": f"{home}/{name}-key.pem"}
    ledger_id = next(bookie.ids)
    await prepare(bookie.admin, [ledger_id])
    for call in ("AddStream", "Read", "Fence", "health"):
        with pytest.raises(grpc.RpcError) as caught:
            await CALLS[call](bookie.shown(section), ledger_id)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    if name:
        with pytest.raises(aiohttp.ClientError):
            await bookie.http("GET /healthz", "", section=section)
    else:
        assert (await bookie.http("GET /metrics", "", section=section))[0] == 403
    assert await effect(bookie.admin, ledger_id) == ""


ODD_REQUESTS = (
    "GET /healthz/../metrics",
    "GET /healthz/%2e%2e/metrics",
    "GET /healthz%2f..%2fmetrics",
    "GET //metrics",
    "GET /metrics/",
    "GET /%6detrics",
    "GET /METRICS",
    "GET /metrics?/healthz",
    "GET /metrics;/healthz",
    "GET /healthz#/../metrics",
    "GET https://b1/metrics",
    "HEAD /metrics",
    "POST /metrics",
    "OPTIONS *",
    "TRACE /metrics",
    "PUT /healthz",
    "PUT /healthz/../read-only",
    "POST /read-only",
    "PATCH /read-only",
)


@pytest.mark.parametrize("role", ["", "reader"])
async def test_odd_ways_to_a_page(bookie: GuardedBookie, role: str) -> None:
    """A path that is written in another way has the same right, or leads nowhere."""
    context = client_context(SecuritySettings(**bookie.files(role)))  # type: ignore[arg-type]
    body = b'{"read_only": true}'
    for line in ODD_REQUESTS:
        reader, writer = await asyncio.open_connection("127.0.0.1", bookie.http_port, ssl=context)
        writer.write(
            f"{line} HTTP/1.1\r\nHost: b1\r\nBookie-Id: b1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "X-HTTP-Method-Override: PUT\r\n\r\n".encode()
            + body
        )
        answer = await reader.read()
        writer.close()
        status = int(answer.split(b" ", 2)[1])
        is_page = role and status == 200 and line.partition(" ")[0] in ("GET", "HEAD")
        assert is_page or status in (400, 403, 404, 405) or b"healthy" in answer, (line, answer)
        assert role or b"bookie_" not in answer, line
    assert (await bookie.http("GET /bookie", "client"))[1]["read_only"] is False


# ---- downgrade


async def test_plaintext_at_the_ports_of_tls(bookie: GuardedBookie) -> None:
    ledger_id = next(bookie.ids)
    await prepare(bookie.admin, [ledger_id])
    async with aio.insecure_channel(f"127.0.0.1:{bookie.port}") as channel:
        caller = RawBookie(channel, bookie.instance_id, bookie.token("admin"))
        for call in ("AddStream", "Fence", "health"):
            with pytest.raises(grpc.RpcError):
                await CALLS[call](caller, ledger_id)
    for port in (bookie.port, bookie.http_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: b1\r\n\r\n")
        assert b"bookie_" not in await reader.read()
        writer.close()
    assert await effect(bookie.admin, ledger_id) == ""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_older_versions_of_tls(bookie: GuardedBookie, version: ssl.TLSVersion) -> None:
    """HTTP refuses both. gRPC's library takes 1.2, and asks for the certificate there as well."""
    for port, name in itertools.product((bookie.http_port, bookie.port), ("admin", "")):
        files = bookie.files(name)
        context = ssl.create_default_context(cafile=files["ca_file"])
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        context.set_alpn_protocols(["h2"])
        if name:
            context.load_cert_chain(files["certificate_file"], files["key_file"])
        context.minimum_version = context.maximum_version = version
        is_taken = name and port == bookie.port and version is ssl.TLSVersion.TLSv1_2
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            answer = await reader.read(1)
            writer.close()
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert bool(answer) is bool(is_taken), (port, name, version)


class Eavesdropper(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server without TLS that keeps all that it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def service(self, details: Any) -> Any:
        self.heard.append(f"{details.method} {details.invocation_metadata}")
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(())
        async for request in requests:
            self.heard.append(repr(request))


@asynccontextmanager
async def eavesdropper(protocol: str, uri: str) -> AsyncIterator[tuple[Eavesdropper, str]]:
    """One who writes a registration: a bookie without TLS that says it speaks `protocol`."""
    spy, server = Eavesdropper(), aio.server()
    server.add_generic_rpc_handlers((spy,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    name = f"spy-{protocol}"
    registration = Registration(name, (Endpoint("bookie", "127.0.0.1", port, protocol),))
    async with open_store(uri) as store, BookieRegistration(store, registration):
        yield spy, name
    await server.stop(None)


async def use(client: BookKeeper, uri: str, ledger_id: int, name: str) -> None:
    """Take a ledger over that lies on the bookie `name`."""
    async with open_store(uri) as store:
        await LedgerManager(store).create(metadata_of(ledger_id, "", name))
    await client.open_ledger(ledger_id, recover=True)


@pytest.mark.parametrize("protocol", ["grpc", "grpcs"])
async def test_no_way_back_to_plaintext(
    bookie: GuardedBookie, protocol: str, tmp_path: Path
) -> None:
    """Whoever writes registrations learns no token: neither in the open nor by a promised TLS."""
    token = bookie.token("admin")
    (tmp_path / "token").write_text(token)
    uri, section = bookie.cluster.uri, bookie.files("client")
    async with eavesdropper(protocol, uri) as (spy, name):
        options: Any = {"token_file": str(tmp_path / "token"), "read_timeout_seconds": 2.0}
        async with bookie.cluster.connect("", **section, **options) as client:
            with pytest.raises(BookieError) as caught:
                await use(client, uri, next(bookie.ids), name)
            assert "TLS" in str(caught.value), caught.value
        assert spy.heard == []
        # Who allows plaintext gets it, and even then it carries no token.
        options |= {"allow_plaintext": True, "speculative_read_seconds": 1.0}
        async with bookie.cluster.connect("", **section, **options) as client:
            with pytest.raises(BookieError):
                await use(client, uri, next(bookie.ids), name)
        assert bool(spy.heard) is (protocol == "grpc")
        assert not any(token in line or "authorization" in line for line in spy.heard)


# ---- tokens


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


class Issuer:
    """Makes tokens of all kinds with the key of the cluster's issuer."""

    def __init__(self, bookie: GuardedBookie) -> None:
        jwk = json.loads((bookie.tokens / "token-key.json").read_bytes())
        self.key_id = jwk["kid"]
        self._private = base64.urlsafe_b64decode(jwk["d"] + "==")
        self.public = base64.urlsafe_b64decode(jwk["x"] + "==")
        self.now = SystemClock().now_ms() // 1000
        self.good = {"sub": "admin", "aud": bookie.instance_id, "exp": self.now + 900}

    def token(self, key: bytes = b"", key_id: str = "", **claims: object) -> str:
        private = Ed25519PrivateKey.from_private_bytes(key or self._private)
        present = {name: value for name, value in (self.good | claims).items() if value is not None}
        return jwt.encode(present, private, "EdDSA", {"kid": key_id or self.key_id})

    def unsigned(self, algorithm: str) -> str:
        parts = ({"alg": algorithm, "kid": self.key_id}, self.good)
        return ".".join([*(encoded(json.dumps(one).encode()) for one in parts), ""])

    def by_secret(self, secret: bytes) -> str:
        """Signed by HS256, with something that everybody knows."""
        parts = ({"alg": "HS256", "kid": self.key_id}, self.good)
        signed = ".".join(encoded(json.dumps(one).encode()) for one in parts)
        return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256))}"

    @property
    def public_pem(self) -> bytes:
        key = Ed25519PublicKey.from_public_bytes(self.public)
        return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


TOKENS: Mapping[str, tuple[Callable[[Issuer], str], str]] = {
    "expired": (lambda i: i.token(exp=i.now - 60), "expired"),
    "not yet valid": (lambda i: i.token(nbf=i.now + 600), "not valid before"),
    "of another cluster": (lambda i: i.token(aud="another"), "for another cluster"),
    "without a cluster": (lambda i: i.token(aud=None), "no audience"),
    "without an end": (lambda i: i.token(exp=None), "no expiry"),
    "without a name": (lambda i: i.token(sub=None), "no subject"),
    "of an unknown key": (lambda i: i.token(b"x" * 32, "other"), "that the bookie does not have"),
    "signed by a stranger": (lambda i: i.token(b"x" * 32), "signature is not good"),
    "unsigned": (lambda i: i.unsigned("none"), "another algorithm"),
    "unsigned, in other letters": (lambda i: i.unsigned("nOnE"), "another algorithm"),
    "the public key as a secret": (lambda i: i.by_secret(i.public), "another algorithm"),
    "its text as a secret": (lambda i: i.by_secret(i.public_pem), "another algorithm"),
    "its JWK as a secret": (lambda i: i.by_secret(encoded(i.public).encode()), "another algorithm"),
    "no token": (lambda _: "nonsense", "cannot be parsed"),
}


@pytest.mark.parametrize("case", TOKENS)
async def test_a_token_that_is_not_good(bookie: GuardedBookie, case: str) -> None:
    """It replaces no certificate: that of an admin beside it does not count."""
    make, sentence = TOKENS[case]
    token = make(Issuer(bookie))
    ledger_id = next(bookie.ids)
    await prepare(bookie.admin, [ledger_id])
    caller = RawBookie(bookie.admin.channel, bookie.instance_id, token)
    for call, make_call in CALLS.items():
        status = await make_call(caller, ledger_id)
        assert status == (pb.STATUS_OK if call == "health" else pb.STATUS_NOT_PERMITTED), call
    answer = await caller.unary("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse)
    assert sentence in answer.message
    assert token not in answer.message
    for certificate in ("admin", ""):
        for call in ("GET /metrics", "PUT /read-only"):
            status, said = await bookie.http(call, certificate, token)
            assert (status, sentence in said["error"]) == (403, True), said
            assert token not in said["error"]
    assert (await bookie.http("GET /bookie", "client"))[1]["read_only"] is False
    assert await effect(bookie.admin, ledger_id) == ""


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "Bearer ", "Token x"])
async def test_another_scheme_than_a_token(bookie: GuardedBookie, header: str) -> None:
    call = bookie.admin.channel.unary_unary(
        "/bookie.v1.Bookie/GetInfo", None, pb.GetInfoResponse.FromString
    )
    metadata = (*bookie.admin.metadata, ("authorization", header))
    assert (await call(b"", metadata=metadata)).status == pb.STATUS_NOT_PERMITTED


async def test_a_token_replayed_at_the_call_of_another_role(bookie: GuardedBookie) -> None:
    """A reader's token, with a writer's and an admin's certificate, at all calls of others."""
    token = bookie.token("reader")
    for certificate in ("writer", "admin"):
        ledger_id = next(bookie.ids)
        await prepare(bookie.admin, [ledger_id])
        shown = bookie.certificate(certificate)
        caller = RawBookie(shown.channel, bookie.instance_id, token)
        assert await CALLS["Read"](caller, ledger_id) == pb.STATUS_OK
        for call in (
            "AddStream",
            "AddStream recovery",
            "Fence",
            "Force",
            "WriteLac",
            "ListLedgers",
        ):
            assert await CALLS[call](caller, ledger_id) == pb.STATUS_NOT_PERMITTED, call
        assert (await bookie.http("PUT /read-only", certificate, token))[0] == 403
        assert await effect(bookie.admin, ledger_id) == ""
        # Without the token the same connection has the rights of its certificate again.
        assert await CALLS["AddStream"](shown, ledger_id) == pb.STATUS_OK


async def test_a_key_that_is_replaced_in_the_middle_of_a_stream(bookie: GuardedBookie) -> None:
    """The stream goes on until its token ends; the next call with that token is refused."""
    ledger_id = next(bookie.ids)
    await prepare(bookie.admin, [ledger_id])
    former = RawBookie(bookie.admin.channel, bookie.instance_id, bookie.token("writer"))
    key_id = Issuer(bookie).key_id
    async with former.stream("AddStream", pb.AddRequest, pb.AddResponse) as stream:
        entry_ids = itertools.count(1)

        async def append() -> int:
            await stream.write(add(ledger_id, next(entry_ids)))
            return int((await stream.read()).status)

        assert await append() == pb.STATUS_OK
        create_key(bookie.tokens)
        newer = RawBookie(bookie.admin.channel, bookie.instance_id, bookie.token("writer"))

        def force(caller: RawBookie) -> Callable[[], Any]:
            return lambda: CALLS["Force"](caller, ledger_id)

        await until_status(force(newer), pb.STATUS_OK, FOLLOWED_SECONDS_MAX)
        assert await force(former)() == pb.STATUS_OK
        assert await append() == pb.STATUS_OK
        forget_key(bookie.tokens, key_id)
        await until_status(force(former), pb.STATUS_NOT_PERMITTED, FOLLOWED_SECONDS_MAX)
        assert await force(newer)() == pb.STATUS_OK
        assert await append() == pb.STATUS_OK
    assert await CALLS["AddStream"](former, ledger_id) == pb.STATUS_NOT_PERMITTED
