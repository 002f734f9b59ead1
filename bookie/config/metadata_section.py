"""The section ``[metadata]``: where the metadata store is, and our credentials."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from bookie.config.section import Section


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
        "may share; empty means the store of uri. Written as uri is, with the same "
        "credentials.",
    )
    session_timeout_seconds: float = Field(
        default=10.0,
        ge=1,
        le=300,
        description="How long a silent bookie stays registered: the time after which its "
        "session ends.",
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
        description="The password of that user. Better set the variable "
        "BOOKIE_METADATA__PASSWORD than write it here.",
    )
    sasl_mechanism: Literal["none", "digest", "digest-md5"] = Field(
        default="none",
        description="How user and password are sent to ZooKeeper: digest is its own scheme, "
        "digest-md5 is SASL, none sends neither. etcd has one way of its own.",
    )
    access: Literal["open", "user"] = Field(
        default="open",
        description="Who may read and write records on ZooKeeper: open means every client of "
        "the server, user means that user alone. Use one value for the whole "
        "cluster. Existing records keep theirs. Nodes that all clusters share below "
        "/.bookie hold no records; every client may use them, none may delete them. "
        "In etcd use roles.",
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
