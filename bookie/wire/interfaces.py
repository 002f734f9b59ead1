"""Protocols of the two sides that this floor joins: the node, and gRPC's call objects.

gRPC for Python has no type information; `CallContext` lists the methods that are used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from bookie.env import Outcome
from bookie.wire.commands import (
    AddCommand,
    Info,
    LacReply,
    LacState,
    LedgerRow,
    ReadCommand,
    ReadReply,
    Reply,
)
from bookie.wire.unary_codec import Ranges

SERVICE = "bookie.v1.Bookie"
"""The full name of the service, in call paths and for health checks."""


class CallContext(Protocol):
    """The servicer's side of one call."""

    async def read(self) -> Any:
        """The next message's bytes, or `grpc.aio.EOF`."""

    async def write(self, message: bytes, /) -> None:
        """Send one message; returns when gRPC has taken it, which is its back-pressure."""

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...], /) -> None:
        """Tell the client at once that the call has been taken up."""

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Metadata that the client sent with the call."""

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        """Call back when the call is over, its answer sent or not."""


class Watcher(Protocol):
    """One subscriber to changes of LACs."""

    def subscribe(self, ledger_id: int, /) -> None:
        """Report this ledger's state now, and whenever it changes."""

    def unsubscribe(self, ledger_id: int, /) -> None:
        """End the subscription to this ledger."""

    def close(self) -> None:
        """End all subscriptions."""


class EntryNode(Protocol):
    """Entries of one bookie: the requests about one ledger. No method raises for bad input."""

    def try_admit_add(self, size: int, /) -> bool:
        """Take `size` bytes if they may be in flight now. If True, `add` must follow at once."""

    async def admit_add(self, size: int, /) -> None:
        """Wait until `size` bytes may be in flight, and take them. `add` must follow at once."""

    def add(self, command: AddCommand, admitted: int, /) -> Outcome[Reply]:
        """Accept or refuse an add; it is settled when the answer may be sent.

        The `admitted` bytes are free again then.
        """

    def add_unnamed(self, command: AddCommand, admitted: int, /) -> Outcome[Reply]:
        """`add` for a client that named no incarnation of the bookie."""

    def try_read(self, command: ReadCommand, /) -> ReadReply | None:
        """The reply of `read` if it needs no wait; else None."""

    async def read(self, command: ReadCommand, /) -> ReadReply:
        """Read entries, after fencing if asked to."""

    async def read_lac(self, ledger_id: int, master_key: bytes, /) -> LacReply:
        """The end of a ledger as the bookie knows it."""

    async def fence(self, ledger_id: int, master_key: bytes, /) -> LacReply:
        """Fence a ledger; durable when it returns, whatever it says."""

    async def force(self, ledger_id: int, /) -> Reply:
        """Make all entries durable that were accepted before."""

    async def write_lac(self, ledger_id: int, master_key: bytes, packet: bytes, /) -> Reply:
        """Store an explicit LAC."""


class BookieNode(EntryNode, Protocol):
    """One bookie, as this floor serves it."""

    @property
    def instance_id(self) -> str:
        """The cluster that the bookie belongs to."""

    @property
    def bookie_id(self) -> str:
        """The bookie's id in the cluster."""

    @property
    def incarnation(self) -> str:
        """The id of the bookie's present state; empty if it does not say."""

    def list_entries(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, key: bytes, /
    ) -> AsyncIterator[Ranges]:
        """Pages of ranges of stored ids."""

    def list_ledgers(self, after_ledger_id: int, /) -> AsyncIterator[list[LedgerRow]]:
        """Pages of ledgers in id order."""

    async def info(self) -> Info:
        """The bookie's description of itself."""

    def watch(self, callback: Callable[[LacState], None], /) -> Watcher:
        """A new subscriber; the callback runs in the event loop and must not block."""
