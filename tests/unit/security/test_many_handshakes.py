"""Many connections at once, from anybody who reaches the port, do not end a bookie's process."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from bookie.daemon.local.process import child_environment
from bookie.security import authority

THREADS = 8
PATIENCE_SECONDS = 60.0
"""A process that is only slow has ended, or a peer has answered, by then."""

KINDS = ("known", "unknown", "silent")


@contextlib.contextmanager
def bookie(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A bookie in a process of its own; it must end by itself, without an error."""
    process = subprocess.Popen(
        (sys.executable, "-m", "tests.unit.security.flooded_bookie", str(directory)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(os.environ),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def connect(port: int, context: ssl.SSLContext, kind: str) -> None:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as plain,
    ):
        if kind == "silent":
            return
        with context.wrap_socket(plain) as connection:
            connection.recv(1)


def context_of(kind: str, directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if kind == "known":
        files = authority.settings_for(directory, "client")
        context.load_cert_chain(files["certificate_file"], files["key_file"])
    return context


@pytest.mark.parametrize("attempts", [100, 3000])
@pytest.mark.parametrize("kind", KINDS)
def test_parallel_handshakes(certificates: Path, kind: str, attempts: int) -> None:
    """Before gRPC was told what is unchanged, a process died after 100 to 10 000 connections."""
    context = context_of(kind, certificates)
    with bookie(certificates) as (_, port), ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: connect(port, context, kind), range(attempts)))


@pytest.mark.parametrize("renewals", [3, 60])
def test_renewals_during_handshakes(renewable: Path, renewals: int) -> None:
    """A changed certificate replaces the configuration while handshakes begin."""
    context, over = context_of("unknown", renewable), Event()

    def flood(_: int) -> None:
        while not over.is_set():
            connect(port, context, "unknown")

    with bookie(renewable) as (process, port), ThreadPoolExecutor(THREADS) as threads:
        assert process.stdin is not None
        assert process.stdout is not None
        flooding = threads.map(flood, range(THREADS))
        try:
            for _ in range(renewals):
                authority.renew(renewable, "bookie")
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "True\n"
        finally:
            over.set()
        list(flooding)
