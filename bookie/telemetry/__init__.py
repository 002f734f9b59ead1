"""Telemetry of a bookie: metrics for Prometheus, and structured log lines about state changes.

The library prometheus-client is imported at its first use, because the import is slow and clients
do not need the library.
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
