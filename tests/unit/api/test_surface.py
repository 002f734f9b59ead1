"""The looks of public objects: names, reprs, and the two ways to get and to end them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import get_args

import pytest

import bookie
from bookie.api import UNCLAIMED, BookKeeper, ClientOptions, DigestName, connect
from bookie.config import ClientSettings, SecuritySettings
from bookie.entry.digest import DigestType
from bookie.errors import BadRequestError, ClientClosedError, ConfigurationError
from tests.unit.ledger.real_cluster import RealCluster


def test_dir_shows_the_public_names() -> None:
    """Before they are loaded, and without loading them."""
    script = (
        "import bookie, sys\n"
        "assert set(bookie.__all__) <= set(dir(bookie)), dir(bookie)\n"
        "assert 'bookie.api' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_is_there() -> None:
    """Those of the metadata store included; others are no names."""
    wanted = {"connect", "coordinate", "open_store", "MetadataStore", "Record", "Resync", "Stat"}
    assert wanted < set(bookie.__all__)
    for name in bookie.__all__:
        assert getattr(bookie, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        _ = bookie.conect  # type: ignore[attr-defined]


async def test_a_writer_is_entered_without_await(bk: BookKeeper) -> None:
    """The block closes the ledger, however it ends; the longer forms still work."""
    async with bk.create_ledger(custom_metadata={UNCLAIMED: b""}) as unclaimed:
        await unclaimed.append(b"a")
    assert unclaimed.is_closed
    with pytest.raises(ZeroDivisionError):
        async with bk.create_ledger() as failing:
            raise ZeroDivisionError
    assert failing.is_closed
    async with await bk.create_ledger() as writer:
        pass
    assert writer.is_closed
    async with asyncio.TaskGroup() as tasks:
        created = tasks.create_task(bk.create_ledger())
    await created.result().close()
    with pytest.raises(BadRequestError):
        async with bk.create_ledger(ensemble_size=0):
            pass


async def test_a_client_is_closed_without_a_block(cluster: RealCluster) -> None:
    """Once, twice, before it was entered, and inside of its block."""
    client = connect(cluster.uri)
    await client.aclose()
    await client.__aenter__()
    writer = await client.create_ledger()
    await client.aclose()
    await client.aclose()
    with pytest.raises(ClientClosedError):
        await writer.append(b"x")
    async with client:
        await client.aclose()


async def test_reprs_say_which_and_how(cluster: RealCluster) -> None:
    """The cluster, the ledger, its state and its end."""
    async with connect(cluster.uri) as bk:
        assert repr(bk) == f"<BookKeeper {cluster.uri!r}, connected>"
        writer = await bk.create_ledger()
        await writer.append_many([b"x"] * 3)
        assert repr(writer) == "<WriterHandle of ledger 0, open, last=2, confirmed=2>"
        reader = await bk.open_ledger(0)
        assert repr(reader) == "<ReaderHandle of ledger 0, OPEN, last=2>"
        await writer.close()
        assert repr(writer) == "<WriterHandle of ledger 0, closed, last=2, confirmed=2>"
        lost = await bk.create_ledger()
    assert repr(bk) == f"<BookKeeper {cluster.uri!r}, not connected>"
    assert repr(lost).startswith("<WriterHandle of ledger 1, ended: the client was closed")


def test_keywords_of_connect_are_the_settings() -> None:
    """A type checker knows those of ``[client]``, and those of ``[security]`` for clients."""
    of_security = SecuritySettings.model_fields.keys() - {
        "require_client_certificate",
        "token_keys_file",
        "require_roles",
        "principal_rules",
    }
    expected = ClientSettings.model_fields.keys() | of_security
    assert ClientOptions.__annotations__.keys() == expected
    assert {name.upper() for name in get_args(DigestName)} == set(DigestType.__members__)


async def test_misspelt_words_fail_in_a_type_checker(bk: BookKeeper) -> None:
    """Each fault needs the comment that silences `make types`; a needless comment fails, too."""
    with pytest.raises(ConfigurationError):
        connect("memory://x", add_timeout=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        connect("memory://x", batch_entries_max="many")  # type: ignore[arg-type]
    with pytest.raises(BadRequestError):
        await bk.create_ledger(digest_type="crc-32c")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await bk.create_ledger(digest="crc32c")  # type: ignore[call-arg]
