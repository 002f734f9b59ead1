"""Fixtures of the conformance suite, and what it says at the end: tests and cases per backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bookie.metadata.store import MetadataStore
from tests.conformance.backends import BACKENDS, Backend
from tests.conformance.cases import cases_of, spans
from tests.conformance.clients import Client, NewClient, client_maker

_PROPERTY = "backend"


def _new(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    backend = BACKENDS[request.param](request, tmp_path)
    request.node.user_properties.append((_PROPERTY, backend.name))
    request.node.user_properties.append(("cases", sorted(cases_of(request.function.__doc__))))
    return backend


@pytest.fixture(params=sorted(BACKENDS))
def new_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Each backend in turn, not entered yet."""
    return _new(request, tmp_path)


@pytest.fixture
async def backend(new_backend: Backend) -> AsyncIterator[Backend]:
    """Each backend in turn; its sessions end with the test."""
    async with new_backend:
        yield new_backend


@pytest.fixture(params=sorted(name for name, kind in BACKENDS.items() if kind.can_disconnect))
def new_cut_off_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Each backend whose sessions can be cut off, not entered yet."""
    return _new(request, tmp_path)


@pytest.fixture
async def cut_off_backend(new_cut_off_backend: Backend) -> AsyncIterator[Backend]:
    """Each backend whose sessions can be cut off; its sessions end with the test."""
    async with new_cut_off_backend:
        yield new_cut_off_backend


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    """One session."""
    return await backend.open()


@pytest.fixture
async def new_client(backend: Backend) -> AsyncIterator[NewClient]:
    """Makes clients of the recipes, which end with the test."""
    async with AsyncExitStack() as stack:
        yield client_maker(backend, stack)


@pytest.fixture
async def client(new_client: NewClient) -> Client:
    """One client of the recipes."""
    return await new_client()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what ran on which backend."""
    outcomes: dict[str, Counter[str]] = {}
    cases: dict[str, set[int]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(getattr(report, "user_properties", ()))
            if _PROPERTY not in properties or (outcome == "passed" and report.when != "call"):
                continue
            backend = str(properties[_PROPERTY])
            outcomes.setdefault(backend, Counter())[outcome] += 1
            if outcome == "passed":
                cases.setdefault(backend, set()).update(properties.get("cases", ()))
    if not outcomes:
        return
    terminalreporter.section("conformance of the metadata backends")
    for backend, counts in sorted(outcomes.items()):
        numbers = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        found = cases.get(backend, set())
        terminalreporter.line(f"{backend}: {numbers}; {len(found)} cases: {spans(found)}")
        for difference, reason in BACKENDS[backend].differences.items():
            terminalreporter.line(f"  documented difference: {difference.value} ({reason})")
