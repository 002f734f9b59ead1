"""The rule of a roll: the size or age of a ledger at which a partition begins a new ledger.

The log's policy sets the size and the age (:mod:`bookie.log.catalog.log_policy` has the defaults).
The owners and publishers of a log use this rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bookie.log.catalog.log_policy import LogPolicy


@dataclass(frozen=True, slots=True)
class RollLimits:
    """The greatest size and age of one ledger; infinite if the policy sets no limit."""

    size_bytes: float
    age_seconds: float

    @classmethod
    def of(cls, policy: LogPolicy, *, seconds_max: float = math.inf) -> RollLimits:
        """Return the limits of a complete policy, with an age of at most `seconds_max`."""
        seconds = policy.roll_seconds or math.inf
        return cls(policy.roll_bytes or math.inf, min(seconds, seconds_max))

    def is_due(self, size_bytes: int, age_seconds: float) -> bool:
        """True if a ledger of this size and age is too large or too old for further entries."""
        return size_bytes >= self.size_bytes or age_seconds >= self.age_seconds
