"""Ids with several lives, as the history knows them: each ledger that has an id gets a number."""

from __future__ import annotations

from bookie.entry.digest import digest_of_key
from bookie.ledger.metadata import LedgerMetadata

LATER_LIFE = 1_000_000
"""The number of a later life of an id is greater than its former one by this."""


class LivesOfIds:
    """Numbers of ledgers. The first one of an id has the id as its number."""

    def __init__(self) -> None:
        self._by_token: dict[int, int] = {}
        self._by_key: dict[bytes, int] = {}
        self._newest: dict[int, int] = {}

    def made(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """The metadata store took this ledger."""
        if metadata.c_token in self._by_token:
            return
        before = self._newest.get(ledger_id)
        number = ledger_id if before is None else before + LATER_LIFE
        self._newest[ledger_id] = self._by_token[metadata.c_token] = number
        self._by_key[metadata.password_key] = number
        self._by_key[digest_of_key(metadata.password_key)] = number

    @property
    def numbers(self) -> set[int]:
        """Of all ledgers."""
        return set(self._by_token.values())

    def newest(self, ledger_id: int) -> int:
        """The number of the newest ledger of an id."""
        return self._newest.get(ledger_id, ledger_id)

    def of(self, metadata: LedgerMetadata) -> int:
        """The number of a ledger."""
        return self._by_token[metadata.c_token]

    def of_key(self, ledger_id: int, key: bytes | None) -> int:
        """The number of the ledger with this key, or with this digest of it."""
        return self._by_key.get(key or b"", ledger_id)
