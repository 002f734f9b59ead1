"""The questions that ``bookie metadata`` asks before a command destroys records.

Each function reads the store, and returns the question for one command. If the command destroys
nothing, the function returns None.
"""

from __future__ import annotations

from pathlib import Path

from bookie.cli.options import confirm
from bookie.cli.stores import open_metadata
from bookie.cluster.keys import essential
from bookie.errors import NoSuchKeyError
from bookie.metadata.export import differences, walk

SHOWN_MAX = 5
"""The largest number of records that a question names."""


def ask(question: str | None) -> None:
    """Ask `question`; if the answer is not yes, raise an error as `confirm` does.

    If `question` is None, do nothing.
    """
    if question is not None:
        confirm(question, yes=False)


async def of_overwriting(uri: str, key: str, value: bytes) -> str | None:
    """Return the question for a put; None if the put changes no record that a cluster needs."""
    what = essential(key)
    if what is None:
        return None
    async with open_metadata(uri) as store:
        there = await store.get(key)
    return None if there is None or there.value == value else f"Overwrite {key}, {what}?"


async def of_deleting(uri: str, key: str) -> str:
    """Return the question for the deletion of one record.

    Raises:
        NoSuchKeyError: the record does not exist.
    """
    async with open_metadata(uri) as store:
        there = await store.get(key)
    if there is None:
        raise NoSuchKeyError(f"{key} does not exist")
    return f"Delete {key}, {essential(key) or f'a record of {len(there.value)} bytes'}?"


async def of_deleting_all(uri: str, key: str) -> str:
    """Return the question for the deletion of all records at and below `key`.

    Raises:
        NoSuchKeyError: there is no record at or below `key`.
    """
    records, ephemeral, vital = 0, 0, set()
    async with open_metadata(uri) as store:
        async for record in walk(store, key):
            records += 1
            ephemeral += record.ephemeral
            if (what := essential(record.key)) is not None:
                vital.add(what)
    if not records:
        raise NoSuchKeyError(f"there is nothing at or below {key}")
    question = f"Delete all {records} records at and below {key}"
    if ephemeral:
        question += f", {ephemeral} of live sessions"
    if vital:
        question += f"; among them {_some(sorted(vital))}"
    return question + "?"


async def of_importing(uri: str, records: list[tuple[str, bytes]]) -> str | None:
    """Return the question for an import; None if the import changes no existing record."""
    replaced = []
    async with open_metadata(uri, create=True) as store:
        for key, value in records:
            there = await store.get(key)
            if there is not None and there.value != value:
                replaced.append(key)
    return _of_replacing(uri, replaced)


async def of_migrating(source: str, target: str, target_config: Path | None) -> str | None:
    """Return the question for a migration; None if it changes no existing record of the target."""
    async with (
        open_metadata(source) as left,
        open_metadata(target, target_config, create=True) as right,
    ):
        replaced = [
            found.key
            async for found in differences(left, right)
            if found.left is not None and found.right is not None
        ]
    return _of_replacing(target, replaced)


def _of_replacing(uri: str, keys: list[str]) -> str | None:
    if not keys:
        return None
    return f"Give {len(keys)} records of {uri} other values: {_some(keys)}?"


def _some(words: list[str]) -> str:
    shown = words[:SHOWN_MAX]
    if len(words) > SHOWN_MAX:
        shown.append(f"{len(words) - SHOWN_MAX} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
