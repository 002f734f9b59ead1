"""The client's side of a carrier: a carrier brings calls to a bookie, by gRPC or by frames."""

from __future__ import annotations

from collections.abc import AsyncIterable
from enum import IntEnum
from typing import Any, Protocol

from bookie.wire.call_metadata import Pairs


class CallCode(IntEnum):
    """The reasons for which a carrier ends a call, with the names and numbers of gRPC."""

    OK = 0
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A call by frames failed in the carrier; gRPC raises its own errors with the same methods."""

    def __init__(self, code: CallCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> CallCode:
        return self._code

    def details(self) -> str:
        return self._details


class Carrier(Protocol):
    """A client's connections to one bookie, which open at their first use.

    The calls have the methods of `grpc.aio`'s calls. A call raises one of `failures` if it fails,
    and CancelledError if it is cancelled or the carrier is closed.
    """

    failures: tuple[type[Exception], ...]
    """The errors of failed calls; each has the methods `code` and `details`."""
    broken: tuple[type[Exception], ...]
    """The errors of a write to a call that has ended."""

    @property
    def is_connected(self) -> bool:
        """True if a connection is ready, and no attempt to connect has failed since."""

    @property
    def is_failing(self) -> bool:
        """True if many attempts to connect failed in a row, so another carrier should be tried."""

    def prepared(self, metadata: Pairs, /) -> Any:
        """Convert the metadata into the carrier's own form once, for many calls."""

    def stream(self, rpc: str, metadata: Any, /, *, is_bulk: bool = False) -> Any:
        """Begin a stream; bulk data has a connection of its own, so that it delays no fence."""

    def call(self, rpc: str, request: bytes, metadata: Any, /) -> Any:
        """Begin a call with one answer; awaiting it returns the answer's bytes, or None."""

    def listing(
        self, rpc: str, request: bytes, metadata: Any, timeout: float | None, /
    ) -> AsyncIterable[bytes]:
        """Begin a call with many answers, which fails after `timeout` seconds."""

    async def close(self) -> None:
        """End all calls and close the connections."""
