"""Protocols of the objects that `wire` connects: the node, and the calls that a carrier brings.

A carrier takes bytes from the network: gRPC or frames. Each carrier gives the handlers of streams a
`CallContext`, so the handlers do not depend on a carrier.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
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


class BrokenCallError(Exception):
    """The call has ended, so nothing can be read or sent; only a carrier raises it."""


class CallerContext(Protocol):
    """The bookie's knowledge about a call and its client."""

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata that the client sent with the call."""

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        """Call `callback` when the call is over, whether its answer was sent or not."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what the transport knows about the client, such as its certificate."""

    def peer(self) -> str:
        """Return the client's address, as ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``."""


class CallContext(Protocol):
    """The server's side of one call with several messages.

    When the connection breaks, the carrier cancels the call's handler, or `read` and `write` raise
    `BrokenCallError`.
    """

    async def read(self) -> bytes | None:
        """Return the next message's bytes; None after the client's last message."""

    async def write(self, message: bytes, /) -> None:
        """Send one message; wait until the carrier takes it, so a slow client slows the sender."""

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...], /) -> None:
        """Report to the client at once that the bookie has accepted the call."""


class IdentifiedCall(CallContext, CallerContext, Protocol):
    """A call with several messages, whose client is known."""


class Watcher(Protocol):
    """One subscriber to changes of LACs."""

    def subscribe(self, ledger_id: int, /) -> None:
        """Report the ledger's LAC state now and after each change."""

    def unsubscribe(self, ledger_id: int, /) -> None:
        """End the subscription to this ledger."""

    def close(self) -> None:
        """End all subscriptions."""


class EntryNode(Protocol):
    """Requests about one ledger's entries; for a bad request, a method returns an error status."""

    def try_admit_add(self, size: int, recovery: bool = False, /) -> bool:
        """Reserve `size` bytes in flight if there is room; after a True, call `add` at once.

        A `recovery` add may exceed the limit by a quarter.
        """

    async def admit_add(self, size: int, /) -> None:
        """Wait for room for `size` bytes in flight and reserve them; then call `add` at once."""

    def add(self, command: AddCommand, admitted: int, /) -> Outcome[Reply]:
        """Accept or refuse an add; the returned outcome is done when the answer may be sent.

        When the outcome is done, the `admitted` bytes are no longer reserved.
        """

    def add_unnamed(self, command: AddCommand, admitted: int, /) -> Outcome[Reply]:
        """Like `add`, for a client that named no incarnation of the bookie."""

    def try_read(self, command: ReadCommand, /) -> ReadReply | None:
        """Return the same reply as `read` if it is available at once; otherwise None."""

    async def read(self, command: ReadCommand, /) -> ReadReply:
        """Read entries, after a fence if the command requests one."""

    async def read_lac(self, ledger_id: int, master_key: bytes, /) -> LacReply:
        """Return the end of a ledger as the bookie knows it."""

    async def fence(self, ledger_id: int, master_key: bytes, /) -> LacReply:
        """Fence a ledger durably and return its end; if the key is refused, nothing is fenced."""

    async def force(self, ledger_id: int, /) -> Reply:
        """Make all entries of the ledger durable that the bookie has accepted so far."""

    async def write_lac(self, ledger_id: int, master_key: bytes, packet: bytes, /) -> Reply:
        """Store an explicit LAC."""


class BookieNode(EntryNode, Protocol):
    """One bookie, as `wire` serves it."""

    @property
    def instance_id(self) -> str:
        """The id of the bookie's cluster."""

    @property
    def bookie_id(self) -> str:
        """The bookie's id in the cluster."""

    @property
    def incarnation(self) -> str:
        """The bookie's incarnation, the id of its current state; empty if unknown."""

    def list_entries(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, key: bytes, /
    ) -> AsyncIterator[Ranges]:
        """Yield the ranges of stored entry ids, page by page."""

    def list_ledgers(self, after_ledger_id: int, /) -> AsyncIterator[list[LedgerRow]]:
        """Yield the ledgers in id order, page by page."""

    async def info(self) -> Info:
        """Return the bookie's description of itself."""

    def watch(self, callback: Callable[[LacState], None], /) -> Watcher:
        """Return a subscriber; `callback` gets its updates in the event loop and must not block."""
