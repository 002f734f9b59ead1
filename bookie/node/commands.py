"""Moved to `bookie.formats.commands`."""

from bookie.formats.commands import (
    AddCommand,
    Info,
    LacReply,
    LacState,
    LedgerRow,
    ReadCommand,
    ReadReply,
    Reply,
)

__all__ = [
    "AddCommand",
    "Info",
    "LacReply",
    "LacState",
    "LedgerRow",
    "ReadCommand",
    "ReadReply",
    "Reply",
]
