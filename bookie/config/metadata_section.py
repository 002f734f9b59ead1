"""The section ``[metadata]``: where the metadata store is, and how we prove who we are."""

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
        description="A store of its own for namespaces and the policies of logs, which several"
        " clusters may share; empty = the store of uri. Named as uri is, with the same"
        " credentials.",
    )
    session_timeout_seconds: float = Field(
        default=10.0,
        ge=1,
        le=300,
        description="How long a silent bookie stays registered; its lease ends after this.",
    )
    tls_ca_file: str = Field(
        default="",
        description="Certificates (PEM) that sign those of the metadata servers; given, the"
        " connections to zk:// and etcd:// are TLS.",
    )
    tls_certificate_file: str = Field(
        default="",
        description="Our own certificate (PEM), for servers that ask for one; needs tls_key_file.",
    )
    tls_key_file: str = Field(default="", description="The key (PEM) of our own certificate.")
    user: str = Field(default="", description="Who we are to zk:// and etcd:// servers.")
    password: SecretStr = Field(
        default=SecretStr(""),
        description="The password of that user; better given as the variable"
        " BOOKIE_METADATA__PASSWORD than written here.",
    )
    sasl_mechanism: Literal["none", "digest", "digest-md5"] = Field(
        default="none",
        description="How user and password are shown to ZooKeeper: digest is its own scheme,"
        " digest-md5 is SASL, none is not at all. etcd has one way of its own.",
    )
    access: Literal["open", "user"] = Field(
        default="open",
        description="Who may read and write what is put on ZooKeeper: open is everybody who reaches"
        " the server, user is that user alone. The same for all that use the cluster. What lies"
        " there already stays as it is. What all clusters share below /.bookie holds no records and"
        " is open to all, but nobody may delete it. In etcd roles say it.",
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
