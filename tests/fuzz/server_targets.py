"""Requests to the HTTP server of a bookie, and certificates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

from bookie.config.security_section import SecuritySettings
from bookie.daemon.http import Administration, serve_http
from bookie.daemon.readiness import Readiness
from bookie.errors import ConfigurationError
from bookie.node.read_only_switch import ReadOnlySwitch
from bookie.security import authority
from bookie.security.certificates import first_expiry_seconds, read_certificates
from bookie.security.identity import identity_of_call, identity_of_certificate
from bookie.security.pem_files import PemFiles
from bookie.telemetry import Metrics
from bookie.wire.call_metadata import named
from tests.fuzz.target import Target

ANSWER_SECONDS_MAX = 60.0
"""The server answers, or closes, long before that."""

SENT_BYTES_MAX = 8192
"""One connection sends no more: thousands of requests at once would be a test of load."""


class _Switch:
    persists = False

    async def set(self, *, read_only: bool, persist: bool = False) -> None:
        assert type(read_only) is type(persist) is bool


class _Upkeep:
    def start(self) -> None:
        """Nothing is to be done."""

    def status(self) -> dict[str, object]:
        return {"running": False}


class _Server:
    """The server in this process; an input is what one connection sends before it ends."""

    def __init__(self) -> None:
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._problems: list[str] = []

    @contextmanager
    def around(self) -> Iterator[None]:
        self._loop = loop = asyncio.new_event_loop()
        administration = Administration("b1")
        administration.upkeep = {"check": _Upkeep(), "scrub": _Upkeep()}
        administration.switch = cast("ReadOnlySwitch", _Switch())
        server = serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0)
        self._port = loop.run_until_complete(server.__aenter__())
        loop.set_exception_handler(lambda _loop, context: self._problems.append(str(context)))
        handler = _Collector(self._problems)
        logging.getLogger("aiohttp").addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger("aiohttp").removeHandler(handler)
            loop.run_until_complete(server.__aexit__(None, None, None))
            loop.close()

    def ask(self, data: bytes) -> bytes:
        """Send the bytes, and return all that comes; the server must not have failed."""
        self._problems.clear()
        answer = self._loop.run_until_complete(self._ask(data[:SENT_BYTES_MAX]))
        assert not self._problems, "; ".join(self._problems)
        status = answer.split(b" ", 2)[1:2]
        assert status != [b"500"], answer[:300]
        return answer

    async def _ask(self, data: bytes) -> bytes:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            answer = b""
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                writer.write_eof()
                answer = await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            return answer


class _Collector(logging.Handler):
    """Keeps what aiohttp logs as an error: a handler that raised."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._problems.append(f"{record.getMessage()}: {error!r}")


SERVER = _Server()


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: b1", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def body_of_change(path: str) -> Any:
    """Send the input as the body of a change, with the right headers."""
    return lambda data: SERVER.ask(request("PUT", path, data[:4000] or b" ", "Bookie-Id: b1"))


# ---- certificates


@cache
def certificates() -> tuple[bytes, bytes, bytes]:
    """A CA, and the certificate and the key of a bookie."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        authority.create_authority(root)
        authority.issue(root, "b1", ["b1.example.org", "10.0.0.1", "::1"])
        return (
            authority.certificate_path(root, authority.CA_NAME).read_bytes(),
            authority.certificate_path(root, "b1").read_bytes(),
            authority.key_path(root, "b1").read_bytes(),
        )


def der(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(pem.split(b"-----")[2].split()))


def pem(data: bytes, kind: str = "CERTIFICATE") -> bytes:
    text = base64.encodebytes(data).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n".encode()


def read_der(data: bytes) -> Any:
    first_expiry_seconds(pem(data)) if data else None
    return read_certificates(pem(data))


class _Files:
    def __init__(self) -> None:
        self._root = Path()

    @contextmanager
    def around(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as directory:
            self._root = Path(directory)
            yield

    def load(self, name: str, data: bytes) -> Any:
        paths = dict(zip(("ca", "certificate", "key"), certificates(), strict=True)) | {name: data}
        given: dict[str, Any] = {}
        for part, content in paths.items():
            (self._root / part).write_bytes(content)
            given[f"{part}_file"] = str(self._root / part)
        return PemFiles(SecuritySettings(**given))


FILES = _Files()


def identities(data: bytes) -> Any:
    """Names in certificates, as gRPC hands them over."""
    properties = {
        "x509_pem_cert": [data],
        "x509_common_name": [data],
        "x509_subject_alternative_name": data.split(b","),
    }
    text = data.decode("utf-8", "replace")
    of_http = identity_of_certificate(
        {"subject": ((("commonName", text),),), "subjectAltName": (("DNS", text),)}
    )
    named((("life", data), ("other", text)), "life")
    return str(identity_of_call(properties)), str(of_http)


CA, CERTIFICATE, PRIVATE_KEY = certificates()
GARBAGE = b'{"action": "undelete", "ledgers": [1, 2]}'

TARGETS: Sequence[Target] = (
    Target(
        "http.request",
        SERVER.ask,
        [
            request("GET", "/metrics"),
            request("GET", "/readyz", b"", "Bookie-Id: b1"),
            request("GET", "/check?x=1", b"", "Connection: close"),
            request("PUT", "/read-only", b'{"read_only": true, "persist": true}', "Bookie-Id: b1"),
            request("PUT", "/garbage", GARBAGE, "Bookie-Id: b1"),
            request("PUT", "/compaction", b'{"action": "run"}', "Bookie-Id: b1"),
            request("PUT", "/scrub", b" ", "Bookie-Id: b1"),
        ],
        (),
        examples=300,
        around=SERVER.around,
    ),
    Target(
        "http.body_of_read_only",
        body_of_change("/read-only"),
        [b'{"read_only": true, "persist": true}', b'{"read_only": false}'],
        (),
        examples=150,
        around=SERVER.around,
    ),
    Target(
        "http.body_of_garbage",
        body_of_change("/garbage"),
        [GARBAGE, b'{"action": "force"}'],
        (),
        examples=150,
        around=SERVER.around,
    ),
    Target("security.pem", read_certificates, [CA, CERTIFICATE + CA], (ValueError,)),
    Target("security.der", read_der, [der(CA), der(CERTIFICATE)], (ValueError,)),
    Target("security.names", identities, [b"b1.example.org,10.0.0.1"], ()),
    *(
        Target(
            f"security.{name}_file",
            lambda data, name=name: FILES.load(name, data),  # type: ignore[misc]
            [content],
            (ConfigurationError,),
            examples=200,
            around=FILES.around,
        )
        for name, content in (("ca", CA), ("certificate", CERTIFICATE), ("key", PRIVATE_KEY))
    ),
)
