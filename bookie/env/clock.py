"""Interfaces through which the engine gets the time and random bytes."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, TypeAlias

from bookie.errors import BadRequestError
from bookie.ids import DIGITS_MAX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Moment: TypeAlias = datetime | int
"""A point in time, as callers write it: a datetime with a time zone, or ms since 1970."""


class Clock(Protocol):
    """Reads a monotonic clock, a wall clock and the id of this boot, and makes random nonces."""

    def monotonic(self) -> float:
        """Return seconds that never decrease; only differences are meaningful."""

    def now_ms(self) -> int:
        """Return ms since 1970; use them for display and retention, but not to order events."""

    def nonce(self) -> bytes:
        """Return 16 random bytes, which no other call returns."""

    def boot_id(self) -> str:
        """Return an id that differs after each start of the operating system; empty if unknown."""


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    """Seconds of CLOCK_MONOTONIC."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def nonce(self) -> bytes:
        return os.urandom(16)

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""


def moment_ms(moment: object) -> int:
    """Return the ms since 1970 of a `Moment`; a datetime is rounded up to a whole ms.

    Raises:
        BadRequestError: the value has another type, or is a datetime without a time zone.
    """
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        since = moment - _EPOCH
        return -(-since // timedelta(milliseconds=1))
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    if isinstance(moment, datetime):
        raise BadRequestError(f"the time {moment} has no time zone: say which, such as UTC")
    raise BadRequestError(
        f"a time is a datetime with a time zone, or ms since 1970, not {moment!r}"
    )


def parse_moment(text: str) -> int:
    """Return the ms since 1970 of `text`: a number of ms, or ISO 8601 with a time zone.

    Raises:
        BadRequestError: `text` is not a time.
    """
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequestError(
            f"{text!r} is no time: write 2026-01-31T09:30:00Z, or ms since 1970"
        ) from error
    if moment.tzinfo is None:
        utc = moment.isoformat() + "Z"
        raise BadRequestError(f"{text!r} has no time zone: for UTC, write {utc}")
    return moment_ms(moment)


def moment_text(milliseconds: int) -> str:
    """Return ms since 1970 as ISO 8601 text in UTC; a time beyond `datetime` becomes ``N ms``."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(seconds: float) -> str:
    """Return a duration as text for people, without fractions of seconds: ``40 days, 0:00:07``."""
    return str(timedelta(seconds=int(seconds)))


def boot_time_seconds() -> float:
    """Return the seconds since the machine started, including suspended time.

    All processes of the machine get the same time.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def jitter() -> float:
    """Return a random number in [0, 1), with which clients spread their actions over time."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
