"""Readiness of a bookie for clients: each part of the daemon sets and removes its own obstacle.

A bookie is ready while no part has set an obstacle. A part of the daemon can also set a remark;
with a remark, the bookie stays ready. For example, a read-only bookie still answers reads, fences
and recoveries. A bookie without a registration still serves clients that know its address. If a
bookie without a registration were not ready, a Kubernetes service would remove the bookie's
address, and clients could not reach the bookie.
"""

from __future__ import annotations

import enum


class Part(enum.StrEnum):
    """The parts of a daemon that set obstacles and remarks."""

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

    A new object has the obstacle of `Part.BOOT`, because the bookie is starting. Call
    ``clear(Part.BOOT)`` when the bookie serves.
    """

    def __init__(self) -> None:
        self._obstacles: dict[Part, str] = {Part.BOOT: "the bookie is starting"}
        self._remarks: dict[Part, str] = {}

    def block(self, part: Part, reason: str) -> None:
        """Set the obstacle of one part, and replace the part's former obstacle."""
        self._obstacles[part] = reason

    def clear(self, part: Part) -> None:
        self._obstacles.pop(part, None)

    def remark(self, part: Part, text: str) -> None:
        """Set the remark of one part; an empty text removes the part's remark."""
        self._remarks[part] = text

    @property
    def is_ready(self) -> bool:
        return not self._obstacles

    def report(self) -> dict[str, object]:
        """Return the answer for ``/readyz``: ready or not, the obstacles and the remarks."""
        return {
            "ready": self.is_ready,
            "reasons": [f"{part}: {reason}" for part, reason in self._obstacles.items()],
            "remarks": [text for text in self._remarks.values() if text],
        }
