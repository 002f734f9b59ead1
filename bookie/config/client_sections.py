"""The sections that clients read: ``[metadata]``, ``[placement]`` and ``[client]``."""

from __future__ import annotations

from typing import ClassVar, Literal, Self, TypeAlias

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from bookie.config.quantities import Size
from bookie.config.section import DYNAMIC, Section
from bookie.ids import BATCH_SIZE_BYTES_MAX

Transport: TypeAlias = Literal["auto", "grpc", "frames"]
"""The ways in which a client reaches bookies: gRPC, frames, or an automatic choice (``auto``)."""


class MetadataSettings(Section):
    """The metadata store that all bookies and clients of a cluster share."""

    own: ClassVar[bool] = True

    uri: str = Field(
        default="local:///var/lib/bookie/metadata",
        description="memory://NAME, local:///DIRECTORY (the processes of one machine),"
        " zk://HOST:PORT,HOST:PORT/SCOPE or etcd://HOST:PORT,HOST:PORT/SCOPE.",
    )
    configuration_uri: str = Field(
        default="",
        description="A separate store for namespaces and log policies, which several clusters "
        "may share; empty means the store of uri. It has the same form as uri, and the same "
        "credentials.",
    )
    session_timeout_seconds: float = Field(
        default=10.0,
        ge=1,
        le=300,
        description="Time for which a silent bookie stays registered; then its session ends.",
    )
    tls_ca_file: str = Field(
        default="",
        description="The CA certificates (PEM) of the metadata servers. If set, the connections "
        "to zk:// and etcd:// use TLS.",
    )
    tls_certificate_file: str = Field(
        default="",
        description="Our own certificate (PEM), for servers that ask for one; needs tls_key_file.",
    )
    tls_key_file: str = Field(default="", description="The key (PEM) of our own certificate.")
    user: str = Field(default="", description="The user name at zk:// and etcd:// servers.")
    password: SecretStr = Field(
        default=SecretStr(""),
        description="The password of that user. Set it in the variable "
        "BOOKIE_METADATA__PASSWORD rather than here.",
    )
    sasl_mechanism: Literal["none", "digest", "digest-md5"] = Field(
        default="none",
        description="How ZooKeeper gets user and password: digest is its own scheme, digest-md5 "
        "is SASL, none sends neither. etcd has only its own scheme.",
    )
    access: Literal["open", "user", "kinds"] = Field(
        default="open",
        description="The clients that read and write records on ZooKeeper: open means every "
        "client of the server, user means that user alone, kinds means the users in acl_admins "
        "and the other lists, each with the least rights. Use one value for the whole "
        "cluster. A change does not apply to existing records. Nodes that all clusters share below "
        "/.bookie hold no records: every client may use them, but not delete them. "
        "In etcd use roles.",
    )
    acl_admins: str = Field(
        default="",
        description="With access = kinds: the ZooKeeper users who may do everything, such as "
        "sasl:ops; x509:CN=ops. Semicolons separate them. Give all processes the same lists.",
    )
    acl_bookies: str = Field(default="", description="The users that bookies have at ZooKeeper.")
    acl_writers: str = Field(
        default="", description="The users who write, consume and delete logs and ledgers."
    )
    acl_readers: str = Field(
        default="", description="The users who only read; world:anyone means every client."
    )

    @field_validator("uri", "configuration_uri")
    @classmethod
    def _no_credentials(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.field_name == "configuration_uri":
            return value
        if "://" not in value:
            raise ValueError("must look like SCHEME://…, for instance local:///var/lib/bookie")
        if "@" in value:
            raise ValueError("must not hold credentials: addresses end up in logs and listings")
        return value


class PlacementSettings(Section):
    """This section decides how clients choose the bookies of a ledger.

    Set these values as cluster settings. Labels of bookies (`bookie node label`) name the racks,
    zones and regions. In a bookie, only repair uses this section.
    """

    policy: Literal["default", "rack", "zone", "region"] = Field(
        default="default",
        description="The label that tells which bookies fail together. default: none, all bookies"
        " are equal. The copies of each entry are spread over as many as possible.",
        json_schema_extra=DYNAMIC,
    )
    domains_min: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Racks, zones or regions that the copies of each entry should span at least.",
        json_schema_extra=DYNAMIC,
    )
    ack_domains_min: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Racks, zones or regions that must have stored an entry before it is"
        " acknowledged, beside the ack quorum. Appends fail while too few answer.",
        json_schema_extra=DYNAMIC,
    )
    enforce: bool = Field(
        default=False,
        description="Refuse new ledgers and replacements whose copies would span fewer domains.",
        json_schema_extra=DYNAMIC,
    )
    weigh_free_space: bool = Field(
        default=False,
        description="Choose bookies with more free space more often, up to three times as often as"
        " the median.",
        json_schema_extra=DYNAMIC,
    )


class ClientSettings(Section):
    """A client's timeouts for one batch, and its limits on unacknowledged entries of one ledger.

    `connect` in Python and all commands that connect to bookies read this section from the file
    that BOOKIE_CONFIG names, and from variables BOOKIE_CLIENT__KEY. In a bookie, only repair uses
    this section.
    """

    own: ClassVar[bool] = True

    add_timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Time for a bookie to answer an add before it is replaced. A pause of the "
        "client's own event loop does not count.",
    )
    replace_after_seconds: float = Field(
        default=3.0,
        gt=0,
        description="Time for a bookie whose connection broke to come back before it is replaced. "
        "If the other bookies are too few to acknowledge, it has 0.1 s.",
    )
    changes_per_minute_max: int = Field(
        default=20, ge=0, description="Replacements of bookies in one ledger; 0 replaces none."
    )
    read_timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Time for a bookie to answer a read before it counts as unknown.",
    )
    rate_patience_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Time for which an append or a read waits while a bookie says that the rate is"
        " used up, and takes nothing. Every answer that takes something begins it anew.",
    )
    connect_timeout_seconds: float = Field(
        default=5.0, gt=0, description="Time to connect to a bookie."
    )
    speculative_read_seconds: float = Field(
        default=2.0, gt=0, description="Silence after which the next replica is asked as well."
    )
    in_flight_entries_max: int = Field(
        default=65536, ge=1, description="Entries of one ledger sent and not yet acknowledged."
    )
    in_flight_bytes_max: Size = Field(
        default=64 * 2**20,
        ge=2**10,
        description="Bytes of one ledger sent and not yet acknowledged.",
    )
    batch_entries_max: int = Field(
        default=4096, ge=1, le=65536, description="The most entries in one request."
    )
    batch_bytes_max: Size = Field(
        default=BATCH_SIZE_BYTES_MAX,
        ge=2**10,
        le=BATCH_SIZE_BYTES_MAX,
        description="The most entry bytes in one request of several entries.",
    )
    tail_refresh_seconds: float = Field(
        default=10.0, gt=0, description="Silence after which a tailing reader asks by itself."
    )
    digest_least: Literal["dummy", "crc32", "crc32c", "hmac"] = Field(
        default="dummy",
        description="The weakest digest of a ledger that the client makes, opens or recovers. The"
        " metadata of a ledger names its digest, so a process that changes the metadata could turn"
        " the check of entries off. dummy accepts all ledgers.",
    )

    transport: Transport = Field(
        default="auto",
        description="The carrier of calls to bookies. auto: gRPC at once, and frames as soon as a"
        " bookie that offers them has answered by frames. grpc or frames: that carrier alone."
        " Beyond loopback, frames need listen.frames_port at the bookie.",
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        self._at_most("speculative_read_seconds", "read_timeout_seconds")
        self._at_most("batch_entries_max", "in_flight_entries_max")
        self._at_most("batch_bytes_max", "in_flight_bytes_max")
        return self
