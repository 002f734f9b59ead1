"""Fixtures of the conformance suite, and what `summary.py` needs to know of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bookie.metadata.store import MetadataStore
from tests.conformance.backends import BACKENDS, Backend
from tests.conformance.cases import cases_of
from tests.conformance.clients import Client, NewClient, client_maker
from tests.conformance.summary import BACKEND, SHOWN


def _new(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    backend = BACKENDS[request.param](request, tmp_path)
    request.node.user_properties.append((BACKEND, backend.name))
    request.node.user_properties.append((SHOWN, sorted(cases_of(request.function.__doc__))))
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
