"""What a bookie says about itself: metrics for Prometheus and one structured line per state change.

The libraries prometheus-client and structlog are imported at the first use. They are slow to
import, and a client does not need them.
"""

from bookie.telemetry.events import (
    Event,
    EventLog,
    configure_logging,
    event_log,
    log_uncaught,
    set_log_level,
    writes_json,
)
from bookie.telemetry.metrics import Metrics

__all__ = [
    "Event",
    "EventLog",
    "Metrics",
    "configure_logging",
    "event_log",
    "log_uncaught",
    "set_log_level",
    "writes_json",
]
