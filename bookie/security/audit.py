"""The audit log: who did or tried what, and from where.

Lines go to the log of the process, with the event ``audit_refused`` or ``audit_did``. A flood of
refused calls must not fill a disk. Beyond a number of lines a second, further ones are only
counted, and the count is logged.
"""

from __future__ import annotations

from typing import Final

from bookie.env import Clock
from bookie.telemetry import event_log

LINES_PER_SECOND_MAX: Final = 50
"""The most lines of one event within a second."""

_log = event_log("bookie.audit")


class AuditLog:
    """Writes the audit log of a bookie."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = clock.monotonic()
        self._lines = {"audit_refused": 0, "audit_did": 0}
        self._left_out = {"audit_refused": 0, "audit_did": 0}

    def refused(
        self, who: str, address: str, what: str, ledger_id: int | None, reason: str
    ) -> None:
        """Note a refused call: `reason` is the right that is missing, or why a token is refused."""
        if self._has_room("audit_refused"):
            _log.warning(
                "audit_refused", who=who, where=address, what=what, ledger=ledger_id, reason=reason
            )

    def did(
        self, who: str, address: str, what: str, ledger_id: int | None, *, always: bool = False
    ) -> None:
        """Note something destructive that was done; what an admin did, `always`."""
        if always or self._has_room("audit_did"):
            _log.info("audit_did", who=who, where=address, what=what, ledger=ledger_id)

    def _has_room(self, event: str) -> bool:
        now = self._clock.monotonic()
        if now - self._begun >= 1.0:
            self._begun = now
            for name, count in self._left_out.items():
                if count:
                    _log.warning("audit_lines_left_out", of=name, count=count)
            self._lines = dict.fromkeys(self._lines, 0)
            self._left_out = dict.fromkeys(self._left_out, 0)
        self._lines[event] += 1
        if self._lines[event] <= LINES_PER_SECOND_MAX:
            return True
        self._left_out[event] += 1
        return False
