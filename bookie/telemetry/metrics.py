"""The metrics of a bookie, for Prometheus.

Each bookie has its own `Metrics` object with its own registry, so that several bookies can run in
one process, as in tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from bookie.telemetry.fast_metrics import FastCounter, FastHistogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import Metric

SECONDS_BUCKETS = (
    *(50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Buckets in seconds: from one sync on a fast device (about 100 µs) to 30 seconds."""

BYTES_BUCKETS = tuple(float(4**power) for power in range(4, 13))
"""Buckets from 256 B to 16 MiB: from one small entry to more than the largest block."""

COUNT_BUCKETS = tuple(float(2**power) for power in range(13))
"""Buckets from 1 to 4096 requests in one group commit."""

READ_SOURCES = ("cache", "journal_file", "thread")
"""The sources from which a read may get its bytes."""

GARBAGE_OUTCOMES = ("done", "aborted", "stopped")
"""The possible outcomes of a round of garbage collection."""

SHARES = (
    ("connection", "adds"),
    ("connection", "reads"),
    ("connection", "streams"),
    ("connection", "watches"),
    ("identity", "adds"),
    ("identity", "calls"),
    ("identity", "reads"),
    ("identity", "watches"),
)
"""Each pair names the holder of a share and a resource that the share limits. The calls of a
connection are missing, because HTTP/2 limits them."""

REPAIR_OUTCOMES = (
    "repaired",
    "was-fine",
    "deleted",
    "recovered",
    "no-good-copy",
    "no-spare",
    "refused",
    "open",
    "away",
    "locked",
    "not-recovered",
)
"""The outcomes of a repair; after one of the first four outcomes, nothing remains to do."""

CONNECTION_ENDS = ("address", "total", "unfinished", "http_address", "http_total")
"""The reasons to end a connection: too many from one address or in total, or unfinished bytes."""

ERROR_KINDS = (
    "conflict",
    "corruption",
    "read",
    "request",
    "scrub",
    "slow_sync",
    "storage_failed",
    "unexpected",
)
"""Kinds of errors that no caller caused. Each count starts at 0, so that ``rate`` in Prometheus
shows even the first error."""


class Metrics:
    """All metrics of one bookie, in their own registry.

    Most attributes are prometheus-client objects and may be used from any thread. Metrics that
    change at every request are `FastCounter` or `FastHistogram` objects, which only the event
    loop's thread may change. Names of metrics have the prefix ``bookie_``. The names of counters
    end in ``_total``. The names of amounts in seconds or bytes contain the unit. The values of each
    label come from a fixed set, so labels never name ledgers or clients.
    """

    exposed: ClassVar[tuple[str, ...]] = ("",)
    """Prefixes of the metric names that `exposition` returns."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Info, ProcessCollector

        self.registry: CollectorRegistry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        declare = _Declare(self.registry)
        self._declare_journal(declare)
        self._declare_index_and_reads(declare)
        self._declare_reclaiming(declare)
        self._declare_requests(declare)
        self._declare_limits(declare)
        self._declare_server(declare)
        self._declare_repair(declare)
        self.info = Info("bookie", "Which bookie this is and what it runs.", registry=self.registry)

    def _declare_journal(self, declare: _Declare) -> None:
        self.journal_queue_bytes = declare.gauge(
            "journal_queue_bytes", "Bytes accepted and waiting for the journal thread."
        )
        self.journal_queue_seconds = declare.fast_histogram(
            "journal_queue_seconds", "Time the first request of a group waited for the thread."
        )
        self.journal_group_requests = declare.fast_histogram(
            "journal_group_requests", "Requests written by one group commit.", COUNT_BUCKETS
        )
        self.journal_group_bytes = declare.fast_histogram(
            "journal_group_bytes", "Bytes of one block, padding included.", BYTES_BUCKETS
        )
        self.journal_write_seconds = declare.fast_histogram(
            "journal_write_seconds", "Time to write one block, before its sync."
        )
        self.journal_sync_seconds = declare.fast_histogram(
            "journal_sync_seconds", "Time of one fdatasync of the journal."
        )
        self.journal_handback_seconds = declare.fast_histogram(
            "journal_handback_seconds",
            "Time from the sync of a block until the event loop completes its requests.",
        )
        self.journal_bytes_total = declare.fast_counter(
            "journal_bytes_total", "Bytes written to the journal, headers and padding included."
        )

    def _declare_index_and_reads(self, declare: _Declare) -> None:
        self.checkpoint_seconds = declare.histogram(
            "checkpoint_seconds", "Time of one checkpoint, from the barrier to the committed mark."
        )
        self.index_commit_seconds = declare.histogram(
            "index_commit_seconds", "Time of one write transaction of the index, its sync included."
        )
        self.index_pages_total = declare.counter("index_pages_total", "Index pages written.")
        self.checkpoints_total = declare.counter("checkpoints_total", "Checkpoints committed.")
        self.read_seconds = declare.fast_histogram(
            "read_seconds", "Time of one read request inside the bookie."
        )
        self.reads_total = declare.counter(
            "reads_total",
            "Reads from a device or memory, by source: cache (not yet written), journal_file (page"
            " cache, in the event loop) or thread.",
            "source",
        )
        for source in READ_SOURCES:
            self.reads_total.labels(source)
        self.entries_added_total = declare.fast_counter("entries_added_total", "Entries accepted.")
        self.bytes_added_total = declare.fast_counter("bytes_added_total", "Entry bytes accepted.")
        self.entries_read_total = declare.fast_counter("entries_read_total", "Entries returned.")
        self.bytes_read_total = declare.fast_counter("bytes_read_total", "Entry bytes returned.")

    def _declare_reclaiming(self, declare: _Declare) -> None:
        self.compaction_rounds_total = declare.counter(
            "compaction_rounds_total", "Rounds of compaction that took a file."
        )
        self.compaction_seconds = declare.histogram(
            "compaction_seconds", "Time of one round of compaction that took a file."
        )
        self.compaction_files_total = declare.counter(
            "compaction_files_total", "Files that were searched for live entries to move."
        )
        self.compaction_kept_files_total = declare.counter(
            "compaction_kept_files_total",
            "Files that were not removed, because a part of them is unreadable.",
        )
        self.compaction_bytes_total = declare.counter(
            "compaction_bytes_total", "Live entry bytes that were moved into new logs."
        )
        self.reclaimed_bytes_total = declare.counter(
            "reclaimed_bytes_total",
            "Bytes of files that were removed, because they had no live entry.",
        )

        self.garbage_rounds_total = declare.counter(
            "garbage_rounds_total",
            "Rounds of garbage collection, by outcome: done, aborted (the metadata store did not"
            " answer) or stopped (an operator must decide first).",
            "outcome",
        )
        for outcome in GARBAGE_OUTCOMES:
            self.garbage_rounds_total.labels(outcome)
        self.garbage_seconds = declare.histogram(
            "garbage_seconds", "Time of one round of garbage collection, its listing included."
        )
        self.garbage_ledgers_total = declare.counter(
            "garbage_ledgers_total",
            "Ledgers deleted because the metadata store no longer has them.",
        )
        self.garbage_stopped = declare.gauge(
            "garbage_stopped",
            "1 = the metadata store went back in time, or too many ledgers are absent from it;"
            " an operator must decide.",
        )
        self.garbage_waiting_ledgers = declare.gauge(
            "garbage_waiting_ledgers",
            "Ledgers that are absent from the metadata store without proof of their deletion.",
        )

    def _declare_requests(self, declare: _Declare) -> None:
        self.requests_total = declare.counter(
            "requests_total",
            "Requests answered, by rpc and in-band status. A stream that was refused and brought no"
            " request counts as one.",
            "rpc",
            "status",
        )
        self.reads_given_up_total = declare.counter(
            "reads_given_up_total",
            "Reads of streams that had no result before their timeout.",
        )
        self.rate_limited_total = declare.counter(
            "rate_limited_total",
            "Requests refused because a rate was used up, by the owner of the rate: identity or"
            " namespace.",
            "kind",
        )
        self.in_flight_add_bytes = declare.gauge(
            "in_flight_add_bytes", "Bytes of adds admitted and not yet answered."
        )
        self.adds_held_back = declare.gauge(
            "adds_held_back", "1 while adds wait for a checkpoint that is late, else 0."
        )
        self.in_flight_read_bytes = declare.gauge(
            "in_flight_read_bytes", "Bytes reserved for reads that are not yet answered."
        )
        self.unfinished_bytes = declare.gauge(
            "unfinished_bytes",
            "Bytes received of messages that are incomplete or not yet read; an estimate.",
        )
        self.ledger_states = declare.gauge("ledger_states", "Ledgers whose state is in memory.")
        self.integrity_check_needed = declare.gauge(
            "integrity_check_needed",
            "1 from the detection of damaged or missing durable data until its repair, else 0.",
        )
        self.limbo_ledgers = declare.gauge(
            "limbo_ledgers", "Ledgers in limbo: the bookie may have lost entries of these ledgers."
        )
        self.missing_entries = declare.gauge(
            "missing_entries",
            "Entries that the last check did not find, although ensembles assign them to this"
            " bookie; 0 before the first check, which comes soon after a start.",
        )
        self.integrity_check_age_seconds = declare.gauge(
            "integrity_check_age_seconds",
            "Seconds since the end of the last check of all entries that this bookie should have;"
            " before the first check, since the start.",
        )
        self.scrub_bytes_total = declare.counter(
            "scrub_bytes_total", "Bytes of files and index that the scrubber has read."
        )
        self.scrub_passes_total = declare.counter(
            "scrub_passes_total", "Passes of the scrubber over all files and the index."
        )
        self.lac_watches = declare.gauge(
            "lac_watches", "Watches of ledgers; a ledger with two watchers counts twice."
        )
        self.errors_total = declare.counter(
            "errors_total", "Errors that no caller caused, by kind.", "kind"
        )
        for kind in ERROR_KINDS:
            self.errors_total.labels(kind)

    def _declare_limits(self, declare: _Declare) -> None:
        self.identity_share = declare.gauge(
            "identity_share",
            "Largest share of the bytes of adds or reads in flight that one identity holds.",
        )
        self.share_exceeded_total = declare.counter(
            "share_exceeded_total",
            "Requests over the share of a connection or identity: adds wait, all others are"
            " refused.",
            "holder",
            "of",
        )
        for pair in SHARES:
            self.share_exceeded_total.labels(*pair)
        self.slow_readers_ended_total = declare.counter(
            "slow_readers_ended_total",
            "Calls that ended with their connection, because the client read too slowly for"
            " rpc.slow_reader_seconds.",
        )
        self.calls_given_up_total = declare.counter(
            "calls_given_up_total",
            "Calls that were answered with an error, because they had waited for the bookie for"
            " rpc.call_seconds_max.",
        )

    def _declare_server(self, declare: _Declare) -> None:
        self.loop_lag_seconds = declare.histogram(
            "loop_lag_seconds", "How late the event loop woke up; long slices of Python show here."
        )
        self.connections = declare.gauge(
            "connections", "Connections of clients to the gRPC ports, when last counted."
        )
        self.connections_ended_total = declare.counter(
            "connections_ended_total",
            "Connections that were ended because too many were open, from one address or in total,"
            " or had too many unfinished bytes; reasons of the HTTP port begin with http_.",
            "reason",
        )
        for reason in CONNECTION_ENDS:
            self.connections_ended_total.labels(reason)
        self.server_status = declare.gauge(
            "server_status", "1 = writable, 0 = read-only, -1 = not registered."
        )
        self.metadata_away_seconds = declare.gauge(
            "metadata_away_seconds",
            "Time since the metadata store stopped answering; 0 while it answers.",
        )
        self.certificate_expiry_timestamp_seconds = declare.gauge(
            "certificate_expiry_timestamp_seconds",
            "When the first certificate in a file of [security] expires, in seconds since 1970.",
            "file",
        )
        self.plaintext_allowed = declare.gauge(
            "plaintext_allowed", "1 while security.allow_plaintext is set."
        )
        self.disk_free_bytes = declare.gauge(
            "disk_free_bytes", "Bytes free for this process, by device.", "device"
        )
        self.disk_total_bytes = declare.gauge(
            "disk_total_bytes", "Size of the file system, by device.", "device"
        )

    def _declare_repair(self, declare: _Declare) -> None:
        self.repair_auditor = declare.gauge(
            "repair_auditor", "1 while the auditor of the cluster runs here, else 0."
        )
        self.repair_bookies_away = declare.gauge(
            "repair_bookies_away",
            "Bookies that are not registered; 0 unless the auditor runs here.",
        )
        self.repair_split = declare.gauge(
            "repair_split",
            "1 while so many bookies are away that none of them counts as lost; 0 unless the"
            " auditor runs here.",
        )
        self.repair_audit_age_seconds = declare.gauge(
            "repair_audit_age_seconds",
            "Seconds since the end of the last audit, or without one since the auditor's start; 0"
            " unless the auditor runs here.",
        )
        self.repair_marked_ledgers = declare.gauge(
            "repair_marked_ledgers",
            "Ledgers that lack copies; 0 unless the auditor runs here.",
        )
        self.repair_abandoned_ledgers = declare.gauge(
            "repair_abandoned_ledgers",
            "Open ledgers whose writer is gone; 0 unless the auditor runs here.",
        )
        self.repair_copied_entries_total = declare.counter(
            "repair_copied_entries_total", "Entries that this bookie's repairs copied."
        )
        self.repair_copied_bytes_total = declare.counter(
            "repair_copied_bytes_total", "Bytes of the entries that this bookie's repairs copied."
        )
        self.repair_outcomes_total = declare.counter(
            "repair_outcomes_total", "Repairs of this bookie by outcome.", "outcome"
        )
        for outcome in REPAIR_OUTCOMES:
            self.repair_outcomes_total.labels(outcome)
        self.repair_unnamed_ledgers = declare.gauge(
            "repair_unnamed_ledgers",
            "Ledgers with copies here whose metadata does not name this bookie.",
        )
        self.repair_reclaimed_ledgers_total = declare.counter(
            "repair_reclaimed_ledgers_total", "Ledgers whose unnamed copies were removed here."
        )
        self.repair_reclaimed_bytes_total = declare.counter(
            "repair_reclaimed_bytes_total",
            "Bytes of the entries of unnamed copies that were removed here.",
        )

    def exposition(self) -> tuple[bytes, str]:
        """Return the metrics in Prometheus's text format, and the content type of this format.

        The library takes the lock of each metric; a hundred series take much less than a
        millisecond.
        """
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        shown = _Shown(self.registry, self.exposed)
        return generate_latest(shown), CONTENT_TYPE_PLAIN_0_0_4


class _Declare:
    """Creates metrics in a registry, with the prefix ``bookie_`` before their names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(f"bookie_{name}", text, labels, registry=self._registry)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        from prometheus_client import Counter

        return Counter(f"bookie_{name}", text, labels, registry=self._registry)

    def fast_counter(self, name: str, text: str) -> FastCounter:
        counter = FastCounter(f"bookie_{name}", text)
        self._registry.register(counter)
        return counter

    def fast_histogram(
        self, name: str, text: str, bounds: tuple[float, ...] = SECONDS_BUCKETS
    ) -> FastHistogram:
        histogram = FastHistogram(f"bookie_{name}", text, bounds)
        self._registry.register(histogram)
        return histogram

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...] = SECONDS_BUCKETS
    ) -> Histogram:
        from prometheus_client import Histogram

        return Histogram(f"bookie_{name}", text, buckets=buckets, registry=self._registry)


class _Shown:
    """A view of a registry that has only names with certain prefixes, without `_created` series.

    The `_created` series are useless and would double the number of series. The library can omit
    such series only for the whole process, but the program that embeds bookie may need them.
    """

    def __init__(self, registry: CollectorRegistry, prefixes: tuple[str, ...]) -> None:
        self._registry = registry
        self._prefixes = prefixes

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if family.name.startswith(self._prefixes):
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                yield family
