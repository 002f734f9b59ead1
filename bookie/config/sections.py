"""Every setting with its default, range and meaning; `conf/bookie.toml` is generated from these.

The name of a setting ends with the unit. A section checks the relations between its own values.
`Settings` checks the relations between sections. So a test may build one section with values that
are too small for a whole bookie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from bookie.addresses import is_host
from bookie.config.client_sections import ClientSettings, MetadataSettings, PlacementSettings
from bookie.config.connection_limits import ConnectionLimits
from bookie.config.quantities import Labels, Size
from bookie.config.section import DYNAMIC, OWN, Section
from bookie.config.security_section import SecuritySettings
from bookie.ids import ENTRY_SIZE_BYTES_MAX, is_vacant, is_valid_bookie_id

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

RECORD_OVERHEAD_BYTES = 4 * KIB
"""The largest total size of the headers around one entry, in a message or in a block."""

ENTRY_OVERHEAD_BYTES = 12
"""The bytes that an answer adds to each entry: 8 for the difference to the previous id, 4 for the
size."""


class BookieSettings(Section):
    """The identity of this bookie."""

    id: str = Field(
        default="",
        description="The permanent name of this bookie in ledgers; letters, digits and ._:- are "
        "allowed. A bookie needs it to serve. It is never derived from an address.",
        json_schema_extra=OWN,
    )
    labels: Labels = Field(
        default={},
        description='Its location, for placement: a table of names and values, { zone = "a", '
        'rack = "r1" }.',
        json_schema_extra=DYNAMIC,
    )
    replace_lost_data: bool = Field(
        default=True,
        description="Begin empty if all directories are empty although the bookie stored entries,"
        " and bookies that run have copies of all of them. It needs repair.enabled. Set it to false"
        " if the bookie may start before its disks are mounted.",
    )

    @field_validator("id")
    @classmethod
    def _valid_id(cls, value: str) -> str:
        if value and (is_vacant(value) or not is_valid_bookie_id(value)):
            raise ValueError("must be 1 to 128 letters, digits or ._:- and no reserved name")
        return value


def _plain_host(value: str) -> str:
    if value and not is_host(value):
        raise ValueError("must be a host name or an address, without brackets and port")
    return value


class ListenSettings(Section):
    """The address for clients."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address to listen on. Beyond loopback (0.0.0.0 is every address) it needs"
        " TLS, or security.allow_plaintext.",
    )
    port: int = Field(
        default=3181, ge=0, le=65535, description="The port to listen on; 0 picks one."
    )
    advertised_host: str = Field(
        default="",
        description="The host that clients connect to. Empty means the listen host, or the name "
        "of this machine if the listen host is a wildcard.",
        json_schema_extra=OWN,
    )
    advertised_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="The port that clients connect to; 0 means the listen port.",
    )
    plaintext_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="The port for clients without TLS, while a cluster changes to TLS. The bookie"
        " opens it if the bookie has a certificate and security.allow_plaintext is set. 0 means"
        " any free port, which clients find in the registration.",
    )
    frames: bool = Field(
        default=True,
        description="Serve clients also by frames, a faster carrier than gRPC with the same TLS,"
        " roles and limits. Clients go by gRPC where they cannot reach its port.",
    )
    frames_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="The port for frames. Without it they have any free port on loopback, which"
        " clients find in the registration. Beyond loopback, and where another host or port is"
        " advertised, frames need it.",
    )
    advertised_frames_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="The port by which clients by frames connect; 0 means frames_port. It has no"
        " effect without frames_port, to which it leads.",
    )

    _hosts = field_validator("host", "advertised_host")(_plain_host)

    @model_validator(mode="after")
    def _ports(self) -> Self:
        if self.plaintext_port and self.plaintext_port == self.port:
            raise ValueError("plaintext_port must differ from port")
        if self.frames_port and self.frames_port in (self.port, self.plaintext_port):
            raise ValueError("frames_port must differ from port and plaintext_port")
        return self


class SessionSettings(Section):
    """The behaviour of a bookie while the metadata store does not answer.

    The bookie continues to serve, unless a setting of this section makes the bookie exit with
    status 3.
    """

    policy: Literal["reconnect", "shutdown"] = Field(
        default="reconnect",
        description="reconnect: wait for the store, begin another session and register again;"
        " shutdown: end with the first lost session.",
    )
    give_up_after_timeouts: float = Field(
        default=0.0,
        ge=0,
        description="The longest time for which a bookie waits for a store that is away, in session"
        " timeouts. Then the bookie ends, as all bookies with this limit do. 0 means no limit. If"
        " you need a limit, 60 is a good value: ten minutes, so alerts come well before the end.",
    )

    @field_validator("give_up_after_timeouts")
    @classmethod
    def _outlives_a_session(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("must be 0 or at least 1")
        return value


class StorageSettings(Section):
    """The storage engine: journal files, index, checkpoints."""

    journal_dir: Path = Field(
        default=Path("/var/lib/bookie/journal"),
        description="Directory of the journal, which is also the first home of the data. Give it a"
        " device with fast syncs, of its own if you can.",
    )
    ledgers_dir: Path = Field(
        default=Path("/var/lib/bookie/ledgers"),
        description="Directory of the index and the entry logs, on the device with capacity.",
    )
    journal_file_bytes_max: Size = Field(
        default=256 * MIB,
        ge=64 * KIB,
        le=GIB,
        description="Size at which a new journal file begins.",
    )
    journal_allocate_bytes: Size = Field(
        default=16 * MIB,
        ge=64 * KIB,
        description="A journal file reserves its space in steps of this size as it grows.",
    )
    block_bytes_max: Size = Field(
        default=8 * MIB,
        ge=4 * KIB,
        le=8 * MIB,
        description="The most that one group commit writes.",
    )
    block_alignment_bytes: Literal[512, 4096] = Field(
        default=512,
        description="Blocks start at multiples of this: 512, or 4096 for a device with such "
        "sectors.",
    )
    checkpoint_journal_bytes: Size = Field(
        default=256 * MIB,
        ge=4 * KIB,
        description="Journal bytes after which the index is brought up to date; bounds replay.",
    )
    checkpoint_entries: int = Field(
        default=1_000_000,
        ge=1,
        description="Entries after which the index is brought up to date. Adds wait when twice as"
        " many have come while that is under way.",
    )
    checkpoint_interval_seconds: float = Field(
        default=60.0, gt=0, description="Time after which the index is brought up to date."
    )
    idle_marker_seconds: float = Field(
        default=1.0,
        gt=0,
        description="Idle time after which an empty block marks the last one as synced.",
    )
    read_threads: int = Field(
        default=4, ge=1, le=256, description="Threads for reads that the page cache cannot answer."
    )
    page_cache_bytes: Size = Field(
        default=GIB,
        ge=0,
        description="Newest journal bytes that stay in the page cache, and as much again of older"
        " bytes that were read. Older bytes are dropped when they are durable: a page cache that"
        " fills all memory halves the rate of adds. 0 leaves it to the kernel.",
    )
    reserve_bytes: Size = Field(
        default=64 * MIB,
        ge=0,
        description="Space reserved on each device for fences, recovery and starts on a full "
        "device.",
    )
    index_map_bytes: Size = Field(
        default=TIB,
        ge=MIB,
        description="Address space of the index; it is sparse and cannot grow while in use.",
    )
    read_coalesce_gap_bytes: Size = Field(
        default=4096, ge=0, description="Two reads with a gap of at most this size become one."
    )
    deleted_ledger_retention_seconds: float = Field(
        default=7 * 86400.0,
        ge=0,
        description="The shortest time for which a deleted ledger is remembered, so that a late"
        " writer is refused. Only time counts in which garbage collection saw that the ledger"
        " stays deleted.",
    )
    compaction_live_share_minor: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="A file with a smaller share of live data is always compacted.",
        json_schema_extra=DYNAMIC,
    )
    compaction_live_share_major: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="A file with a smaller share of live data is compacted while the share of "
        "all files together is also smaller.",
        json_schema_extra=DYNAMIC,
    )
    compaction_bytes_per_second: Size = Field(
        default=128 * MIB,
        ge=64 * KIB,
        description="The rate at which compaction reads and writes.",
        json_schema_extra=DYNAMIC,
    )
    compaction_interval_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Time between two looks for files to compact.",
        json_schema_extra=DYNAMIC,
    )
    journal_bytes_max: Size = Field(
        default=0,
        ge=0,
        description="Bound on all journal files together, for a journal with a device of its "
        "own. Beyond it their data moves to the ledgers directory. 0 means no "
        "limit.",
        json_schema_extra=DYNAMIC,
    )
    scrub_bytes_per_second: Size = Field(
        default=4 * MIB,
        ge=0,
        description="The rate at which the scrubber reads all files and the index, again and "
        "again, to find damage; 0 turns it off.",
        json_schema_extra=DYNAMIC,
    )
    sync_warn_seconds: float = Field(
        default=2.0,
        gt=0,
        description="A slower sync is logged. Set it below the timeout of clients: then the log "
        "explains their timeouts.",
    )
    sync_fail_seconds: float = Field(
        default=60.0, gt=0, description="A slower sync ends the process with exit status 74."
    )

    @property
    def journal_step_bytes(self) -> int:
        """The number of bytes by which a journal file grows."""
        return min(self.journal_allocate_bytes, self.journal_file_bytes_max)

    @model_validator(mode="after")
    def _relations(self) -> Self:
        self._at_most("block_alignment_bytes", "block_bytes_max")
        self._at_most("block_bytes_max", "journal_file_bytes_max")
        self._at_most("block_bytes_max", "checkpoint_journal_bytes")
        self._at_most("sync_warn_seconds", "sync_fail_seconds")
        self._at_most("compaction_live_share_minor", "compaction_live_share_major")
        if self.journal_dir == self.ledgers_dir:
            raise ValueError("journal_dir and ledgers_dir must be two directories")
        if self.block_bytes_max % self.block_alignment_bytes:
            raise ValueError("block_bytes_max must be a multiple of block_alignment_bytes")
        return self


class NodeSettings(ConnectionLimits):
    """Limits on the work that one bookie admits at a time, and on the use of its devices."""

    in_flight_add_bytes_max: Size = Field(
        default=256 * MIB,
        ge=4 * KIB,
        description="Bytes of adds admitted and not yet answered; beyond it streams are held back.",
    )
    in_flight_read_bytes_max: Size = Field(
        default=256 * MIB, ge=4 * KIB, description="Bytes of reads that are being answered."
    )
    read_entries_max: int = Field(
        default=4096, ge=1, le=65536, description="The most entries that one read returns."
    )
    read_bytes_max: Size = Field(
        default=4 * MIB,
        ge=1,
        le=7 * MIB,
        description="The most entry bytes that one read returns; the first entry always comes.",
    )
    identity_share_max: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of the bytes in flight that one identity may hold: a principal, or an"
        " address without one. Its adds beyond it are held back, and its reads are refused.",
    )
    connection_share_max: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of the bytes in flight that one connection may hold. By gRPC a client"
        " has one for adds and one for all else; by frames each stream has its own.",
    )
    identity_calls_max: int = Field(
        default=16384,
        ge=1,
        description="Calls of one identity at a time, streams included; fences may be a quarter"
        " more. A client opens about four streams to a bookie, for all of its ledgers.",
    )
    connection_streams_max: int = Field(
        default=64,
        ge=1,
        description="Streams of one connection at a time. Fewer than rpc.concurrent_streams_max"
        " leave room for calls.",
    )
    identity_watches_max: int = Field(
        default=50_000, ge=1, description="Ledgers that one identity watches at a time."
    )
    connection_watches_max: int = Field(
        default=25_000, ge=1, description="Ledgers that one connection watches at a time."
    )
    lac_watches_max: int = Field(
        default=100_000,
        ge=1,
        description="Ledgers watched at a time, summed over all watchers.",
        json_schema_extra=DYNAMIC,
    )
    identity_bytes_per_second: Size = Field(
        default=0,
        ge=0,
        description="Bytes that one caller may add in a second, and as many that it may read. A"
        " caller is a principal, or an address without one. 0 sets no limit.",
        json_schema_extra=DYNAMIC,
    )
    identity_requests_per_second: int = Field(
        default=0,
        ge=0,
        description="Adds and reads, each of one or more entries, that one caller may send in a"
        " second. 0 sets no limit.",
        json_schema_extra=DYNAMIC,
    )
    namespace_bytes_per_second: Size = Field(
        default=0,
        ge=0,
        description="Bytes that all callers together may add to the logs of one namespace in a"
        " second, and as many that they may read. 0 sets no limit.",
        json_schema_extra=DYNAMIC,
    )
    namespace_requests_per_second: int = Field(
        default=0,
        ge=0,
        description="Adds and reads of the logs of one namespace that all callers together may"
        " send in a second. 0 sets no limit.",
        json_schema_extra=DYNAMIC,
    )
    read_only: bool = Field(default=False, description="Start read-only and stay so.")
    disk_usage_max: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Share of a device in use above which it turns read-only.",
        json_schema_extra=DYNAMIC,
    )
    disk_usage_low_watermark: float = Field(
        default=0.90,
        gt=0,
        le=1,
        description="Share of a device in use below which it takes adds again.",
        json_schema_extra=DYNAMIC,
    )

    integrity_check_interval_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Time between the first two checks of a bookie in doubt; later ones are"
        " further apart. Entries that were missing are looked for again as often.",
        json_schema_extra=DYNAMIC,
    )
    integrity_check_repeat_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="Time between two checks of a bookie without doubt, more or less by a quarter."
        " The first one comes within integrity_check_interval_seconds after its start.",
        json_schema_extra=DYNAMIC,
    )
    integrity_check_ledgers_per_second: float = Field(
        default=200.0,
        gt=0,
        description="The highest rate at which such a check reads the metadata of ledgers.",
        json_schema_extra=DYNAMIC,
    )
    integrity_check_bytes_per_second: Size = Field(
        default=32 * MIB,
        ge=64 * KIB,
        description="The rate at which a check reads entries and index.",
        json_schema_extra=DYNAMIC,
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        self._at_most("disk_usage_low_watermark", "disk_usage_max")
        self._at_most("read_bytes_max", "in_flight_read_bytes_max")
        return self


class GarbageSettings(Section):
    """The deletion of a bookie's copies of ledgers that were deleted in the metadata store."""

    interval_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Time between two listings of the cluster's ledgers; at least 20 times as "
        "long as the last one took.",
        json_schema_extra=DYNAMIC,
    )
    grace_seconds: float = Field(
        default=86400.0,
        gt=0,
        le=1e9,
        description="The time for which a ledger waits that is missing without proof of its "
        "deletion. Only time in which this bookie listed the ledgers counts. A ledger with "
        "proof goes at once.",
        json_schema_extra=DYNAMIC,
    )
    stop_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="The share of the ledgers here that may be missing without proof. If more are "
        "missing, and more than one, the bookie keeps all of them until an operator "
        "forces the deletion.",
        json_schema_extra=DYNAMIC,
    )
    proof_seconds: float = Field(
        default=604800.0,
        gt=0,
        le=1e9,
        description="The time for which the proof of a deletion stays in the metadata store. A"
        " bookie that is away for longer gives the space back only after grace_seconds.",
        json_schema_extra=DYNAMIC,
    )


class RepairSettings(Section):
    """The repair of ledgers that lack copies. Every bookie repairs; one elected bookie audits."""

    enabled: bool = Field(
        default=True,
        description="Take part: audit the cluster while elected, and copy entries of marked"
        " ledgers. `bookie repair disable` pauses repair in the whole cluster.",
    )
    lost_bookie_delay_seconds: float = Field(
        default=600.0,
        ge=0,
        le=1e9,
        description="The absence after which a bookie counts as lost and others take over its"
        " copies. Longer than a restart, an upgrade or a reboot takes.",
        json_schema_extra=DYNAMIC,
    )
    away_share_max: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="If a larger share of all bookies is away at once, no bookie counts as lost:"
        " the network is more likely at fault.",
        json_schema_extra=DYNAMIC,
    )
    open_ledger_grace_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=1e9,
        description="The absence of a ledger's writer after which its open ledger is recovered and"
        " closed. A writer without a session for so long loses its ledgers.",
        json_schema_extra=DYNAMIC,
    )
    audit_interval_seconds: float = Field(
        default=86400.0,
        gt=0,
        le=1e9,
        description="Time between two audits. An audit compares every entry of every copy with"
        " the metadata.",
        json_schema_extra=DYNAMIC,
    )
    ledgers_at_once: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Ledgers that this bookie repairs at the same time.",
        json_schema_extra=DYNAMIC,
    )
    bytes_per_second_max: Size = Field(
        default=8 * MIB,
        ge=0,
        description="Bytes that repairs here check and copy per second; 0 is no limit.",
        json_schema_extra=DYNAMIC,
    )
    retry_seconds_max: float = Field(
        default=600.0,
        ge=1,
        le=1e9,
        description="The longest pause before a ledger is tried again that could not be repaired.",
        json_schema_extra=DYNAMIC,
    )
    unnamed_copies_grace_seconds: float = Field(
        default=86400.0,
        ge=0,
        le=1e9,
        description="A bookie keeps copies of a closed ledger that no longer names it for this"
        " long. A restart begins the time anew.",
        json_schema_extra=DYNAMIC,
    )


class RpcSettings(Section):
    """Limits of the gRPC server that protect all clients from a faulty or hostile client."""

    message_bytes_max: Size = Field(
        default=8 * MIB, ge=64 * KIB, le=64 * MIB, description="The largest request or answer."
    )
    metadata_bytes_max: Size = Field(
        default=8 * KIB, ge=KIB, le=MIB, description="The largest set of call metadata."
    )
    concurrent_streams_max: int = Field(
        default=128, ge=1, le=100_000, description="Calls at a time on one connection."
    )
    keepalive_seconds: float = Field(
        default=20.0,
        ge=1,
        description="Silence after which a connection is pinged; finds dead peers.",
    )
    keepalive_timeout_seconds: float = Field(
        default=10.0,
        ge=1,
        description="Time for the answer to a ping before the connection is closed.",
    )
    ping_interval_seconds_min: float = Field(
        default=10.0,
        ge=0,
        description="Shortest time between two pings of a peer; a peer that pings more often is "
        "disconnected.",
    )
    connection_idle_seconds_max: float = Field(
        default=300.0, ge=1, description="A connection without a call is closed after this."
    )
    handshake_timeout_seconds: float = Field(
        default=5.0, gt=0, description="Time for a new connection to finish its handshake."
    )
    call_seconds_max: float = Field(
        default=60.0,
        gt=0,
        description="A call or read that waits longer for the bookie, such as for a device, is"
        " given up, even if its client would wait.",
    )
    slow_reader_seconds: float = Field(
        default=60.0,
        gt=0,
        description="A client that does not take an answer for this long is disconnected, unless"
        " its link is slow: the connection takes 8 KiB a second or more.",
    )
    drain_seconds: float = Field(
        default=10.0, ge=0, description="Time for running calls to finish when the bookie stops."
    )
    reflection: bool = Field(
        default=False, description="Serve gRPC reflection, for debugging tools."
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        self._at_most("ping_interval_seconds_min", "keepalive_seconds")
        return self


class HttpSettings(Section):
    """The HTTP server for metrics, health and commands."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address to listen on. Beyond loopback it needs TLS, or"
        " security.allow_plaintext.",
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="The port to listen on; 0 picks one."
    )

    open_paths: str = Field(
        default="/healthz /readyz",
        description="The paths that need neither certificate nor role, separated by spaces. Add"
        " /metrics for a Prometheus without a certificate.",
    )

    _host = field_validator("host")(_plain_host)


LogFormat: TypeAlias = Literal["json", "console"]


class LogSettings(Section):
    """The log of the daemon on standard error, with one line for each change of state."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="The least severe line written: debug, info, warning or error.",
        json_schema_extra=DYNAMIC,
    )
    format: LogFormat = Field(default="json", description="json, or console for people.")


class Settings(Section):
    """All settings of a process; a component should get only its own section."""

    bookie: BookieSettings = BookieSettings()
    listen: ListenSettings = ListenSettings()
    metadata: MetadataSettings = MetadataSettings()
    session: SessionSettings = SessionSettings()
    storage: StorageSettings = StorageSettings()
    limits: NodeSettings = NodeSettings()
    garbage: GarbageSettings = GarbageSettings()
    repair: RepairSettings = RepairSettings()
    rpc: RpcSettings = RpcSettings()
    http: HttpSettings = HttpSettings()
    security: SecuritySettings = SecuritySettings()
    log: LogSettings = LogSettings()
    client: ClientSettings = ClientSettings()
    placement: PlacementSettings = PlacementSettings()

    @model_validator(mode="after")
    def _relations(self) -> Self:
        """Check that a bookie can receive, store and return an entry of the largest size."""
        room = ENTRY_SIZE_BYTES_MAX + RECORD_OVERHEAD_BYTES
        for name, value in (
            ("storage.block_bytes_max", self.storage.block_bytes_max),
            ("rpc.message_bytes_max", self.rpc.message_bytes_max),
            ("limits.in_flight_add_bytes_max", self.limits.in_flight_add_bytes_max),
            ("limits.in_flight_read_bytes_max", self.limits.in_flight_read_bytes_max),
        ):
            if value < room:
                raise ValueError(f"{name} must be at least {room} bytes, to hold the largest entry")
        answer = self.limits.read_bytes_max + self.limits.read_entries_max * ENTRY_OVERHEAD_BYTES
        if answer + RECORD_OVERHEAD_BYTES > self.rpc.message_bytes_max:
            raise ValueError(
                "limits.read_bytes_max and limits.read_entries_max allow an answer larger than"
                " rpc.message_bytes_max"
            )
        return self
