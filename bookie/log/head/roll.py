"""The rule of a roll: the size and the age at which a partition continues in another ledger.

The policy of the log decides both (:mod:`bookie.log.catalog.log_policy` has the defaults). Owners
and publishers ask this rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bookie.log.catalog.log_policy import LogPolicy


@dataclass(frozen=True, slots=True)
class RollLimits:
    """The limits of one ledger; infinite if the policy sets none."""

    size_bytes: float
    age_seconds: float

    @classmethod
    def of(cls, policy: LogPolicy, *, seconds_max: float = math.inf) -> RollLimits:
        """The limits of a whole policy, with an age of at most `seconds_max`."""
        seconds = policy.roll_seconds or math.inf
        return cls(policy.roll_bytes or math.inf, min(seconds, seconds_max))

    def is_due(self, size_bytes: int, age_seconds: float) -> bool:
        """True if a ledger of this size and age takes no further entries."""
        return size_bytes >= self.size_bytes or age_seconds >= self.age_seconds
