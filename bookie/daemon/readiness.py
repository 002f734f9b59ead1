"""Readiness for traffic: each part of the daemon states and withdraws its own obstacle.

A bookie is ready when no part states an obstacle. A remark does not stop traffic. A read-only
bookie still answers reads, fences and recovery. A bookie that lost its registration still serves
the clients that know it. If such a bookie were not ready, a service would take its name away, and
cut these clients off.
"""

from __future__ import annotations

import enum


class Part(enum.StrEnum):
    """The parts of a daemon that state obstacles and remarks."""

    BOOT = "boot"
    SHUTDOWN = "shutdown"
    DESCRIPTORS = "descriptors"
    METADATA = "metadata"
    REGISTRATION = "registration"
    READ_ONLY = "read-only"
    DOUBT = "doubt"
    STORE = "store"


class Readiness:
    """The obstacles and remarks of one bookie. Not thread safe: use it only in the event loop.

    A new object holds the obstacle that the bookie is starting; `clear` this obstacle when the boot
    has ended.
    """

    def __init__(self) -> None:
        self._obstacles: dict[Part, str] = {Part.BOOT: "the bookie is starting"}
        self._remarks: dict[Part, str] = {}

    def block(self, part: Part, reason: str) -> None:
        """State the obstacle of one part, in place of the part's former obstacle."""
        self._obstacles[part] = reason

    def clear(self, part: Part) -> None:
        """Remove the obstacle of one part, if it has one."""
        self._obstacles.pop(part, None)

    def remark(self, part: Part, text: str) -> None:
        """Replace the remark of one part; it stops no traffic, and an empty text removes it."""
        self._remarks[part] = text

    @property
    def is_ready(self) -> bool:
        """True while no part states an obstacle."""
        return not self._obstacles

    def report(self) -> dict[str, object]:
        """Return the answer for ``/readyz``: ready or not, the obstacles and the remarks."""
        return {
            "ready": self.is_ready,
            "reasons": [f"{part}: {reason}" for part, reason in self._obstacles.items()],
            "remarks": [text for text in self._remarks.values() if text],
        }
