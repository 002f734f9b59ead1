"""The audit log: refused calls and destructive calls, each with the caller and its address.

Lines go to the log of the process, with the event ``audit_refused`` or ``audit_did``. A flood of
refused calls must not fill a disk. So the lines per second are limited. The audit log counts lines
above the limit, and logs only the number of these lines.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from bookie.env import Clock
from bookie.telemetry import event_log

LINES_PER_SECOND_MAX: Final = 50
"""The largest number of lines with the same event within a second."""

LINES_EACH_MAX: Final = 20
"""The largest number of lines with the same event and the same caller within a second.

So one caller cannot use up the limit of all callers, and so hide the lines about other callers.
"""

_log = event_log("bookie.audit")


class AuditLog:
    """Writes the audit log of a bookie."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = clock.monotonic()
        self._lines = {"audit_refused": 0, "audit_did": 0}
        self._lines_of: Counter[tuple[str, str]] = Counter()
        """Event and caller → lines that were written in this second."""
        self._left_out = {"audit_refused": 0, "audit_did": 0}

    def refused(
        self, who: str, address: str, what: str, ledger_id: int | None, reason: str
    ) -> None:
        """Log a refused call; `reason` is the missing right, or the fault of the token."""
        if self._has_room("audit_refused", who):
            _log.warning(
                "audit_refused", who=who, where=address, what=what, ledger=ledger_id, reason=reason
            )

    def did(
        self, who: str, address: str, what: str, ledger_id: int | None, *, always: bool = False
    ) -> None:
        """Log a destructive call that was carried out; with `always`, even above the limits."""
        if always or self._has_room("audit_did", who):
            _log.info("audit_did", who=who, where=address, what=what, ledger=ledger_id)

    def _has_room(self, event: str, who: str) -> bool:
        now = self._clock.monotonic()
        if now - self._begun >= 1.0:
            self._begun = now
            for name, count in self._left_out.items():
                if count:
                    _log.warning("audit_lines_left_out", of=name, count=count)
            self._lines = dict.fromkeys(self._lines, 0)
            self._left_out = dict.fromkeys(self._left_out, 0)
            self._lines_of.clear()
        own = self._lines_of[event, who]
        if own >= LINES_EACH_MAX or self._lines[event] >= LINES_PER_SECOND_MAX:
            self._left_out[event] += 1
            return False
        self._lines[event] += 1
        self._lines_of[event, who] = own + 1
        return True
